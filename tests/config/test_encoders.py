"""Compatible and incompatible settings in recipes of encoders."""

from typing import Any

import pytest

from saccade.config.load import load, override, validate
from saccade.errors import SaccadeError

GOOD: dict[str, Any] = {
    "task": "encode",
    "tokenizer": {"cls_token": True, "mask_token": True},
    "writer": {"kind": "masked"},
    "objectives": [{"kind": "masked"}],
}
PAIRS: dict[str, Any] = {
    "writer": {"kind": "masked", "pairs": True},
    "objectives": [{"kind": "masked", "pairs": "next"}],
}


def test_an_encoder_reads_tokens_and_restores_hidden_ones() -> None:
    recipe = validate(GOOD)
    assert (
        recipe.writer.kind == "masked"
        and recipe.objectives[0].mask_rate == 0.15
        and recipe.objectives[0].dynamic_masking
    )
    assert validate({**GOOD, **PAIRS}).objectives[0].pairs == "next"
    assert validate({**GOOD, "writer": {"kind": "states", "pooler": True}}).writer.pooler


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"writer": {"kind": "tokens"}}, 'task = "encode" goes with writer.kind = "masked"'),
        ({"task": "translate"}, 'task = "translate" goes with writer.kind ='),
        ({"objectives": [{"kind": "next-token"}]}, 'cannot be trained by the objective "next-token"; use "masked"'),
        (
            {"tokenizer": {"cls_token": True}},
            "masked language modelling needs a mask token; set tokenizer.mask_token = true",
        ),
        ({**PAIRS, "tokenizer": {"mask_token": True}}, "classified by the first state; set tokenizer.cls_token = true"),
        ({"writer": {"kind": "masked", "pairs": True}}, r"writer.pairs = true needs objectives.0.pairs ="),
        ({"objectives": [{"kind": "masked", "pairs": "order"}]}, "writer.pairs = false needs objectives.0.pairs"),
        ({**PAIRS, "data": {"cross_document": True}}, "from one document; set data.cross_document = false"),
        (
            {**PAIRS, "tokenizer": {"mask_token": True, "cls_token": True, "dropout": 0.1}},
            "tokenizer.dropout must be 0",
        ),
        ({"tokenizer": {"mask_token": True, "shared": False}}, "one vocabulary"),
        ({"train": {"metric": "bleu"}}, 'has no references for train.metric = "bleu"'),
        (
            {"objectives": [{"kind": "masked", "mask_replace_prob": 0.9, "random_replace_prob": 0.2}]},
            "together at most 1, got 0.9 and 0.2",
        ),
        ({"objectives": [{"kind": "masked", "mask_rate": 0.0}]}, "rate"),
        ({"reader": {"stack": {"share_layers": True, "experts": {}}}}, "experts are different in every layer"),
        ({"reader": {"kind": "none"}}, 'task = "encode" goes with reader.kind = "tokens"'),
    ],
)
def test_incompatible_settings_are_reported(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SaccadeError, match=message):
        validate({**GOOD, **changes})


def test_settings_of_papers() -> None:
    """Devlin et al. 2019, section 3.1 and appendix A.2; Liu et al. 2019, section 4; Lan et al. 2020, section 3."""
    bert, roberta, albert = (load(name) for name in ("bert", "roberta", "albert"))
    for recipe in (bert, roberta, albert):
        [masked] = recipe.objectives
        assert (masked.mask_rate, masked.mask_replace_prob, masked.random_replace_prob) == (0.15, 0.8, 0.1)
        stack = recipe.reader.stack
        assert (stack.layers, stack.dim, stack.heads, stack.ff, stack.norm) == (12, 768, 12, 3072, "post")
    assert [recipe.objectives[0].pairs for recipe in (bert, roberta, albert)] == ["next", "none", "order"]
    assert [recipe.objectives[0].dynamic_masking for recipe in (bert, roberta, albert)] == [False, True, True]
    assert albert.reader.stack.share_layers and albert.reader.embedding_dim == 128
    assert not override(bert, ["reader.segments=0"]).reader.segments
