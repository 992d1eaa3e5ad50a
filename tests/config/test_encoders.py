"""Recipes of encoders: what goes together."""

from typing import Any

import pytest

from saccade.config.load import load, override, validate
from saccade.errors import SaccadeError

GOOD: dict[str, Any] = {
    "task": "encode",
    "tokenizer": {"begin": True, "mask": True},
    "writer": {"kind": "masked"},
    "objectives": [{"kind": "masked"}],
}
PAIRS: dict[str, Any] = {
    "writer": {"kind": "masked", "pairs": True},
    "objectives": [{"kind": "masked", "pairs": "next"}],
}


def test_an_encoder_reads_tokens_and_restores_hidden_ones() -> None:
    recipe = validate(GOOD)
    assert recipe.writer.kind == "masked" and recipe.objectives[0].rate == 0.15 and recipe.objectives[0].dynamic
    assert validate({**GOOD, **PAIRS}).objectives[0].pairs == "next"
    assert validate({**GOOD, "writer": {"kind": "states", "pool": True}}).writer.pool


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"writer": {"kind": "tokens"}}, 'task = "encode" goes with writer.kind = "masked"'),
        ({"task": "translate"}, 'task = "translate" goes with writer.kind ='),
        ({"objectives": [{"kind": "next-token"}]}, 'cannot learn by the objective "next-token"; take "masked"'),
        ({"tokenizer": {"begin": True}}, "tokens are hidden by a piece of the tokenizer; set tokenizer.mask = true"),
        ({**PAIRS, "tokenizer": {"mask": True}}, "told by the first state; set tokenizer.begin = true"),
        ({"writer": {"kind": "masked", "pairs": True}}, r"writer.pairs = true needs objectives.0.pairs ="),
        ({"objectives": [{"kind": "masked", "pairs": "order"}]}, "writer.pairs = false needs objectives.0.pairs"),
        ({**PAIRS, "data": {"cross": True}}, "of one document; set data.cross = false"),
        ({**PAIRS, "tokenizer": {"mask": True, "begin": True, "dropout": 0.1}}, "tokenizer.dropout must be 0"),
        ({"tokenizer": {"mask": True, "shared": False}}, "one vocabulary"),
        ({"train": {"metric": "bleu"}}, 'has no references for train.metric = "bleu"'),
        ({"objectives": [{"kind": "masked", "masked": 0.9, "replaced": 0.2}]}, "together at most 1, got 0.9 and 0.2"),
        ({"objectives": [{"kind": "masked", "rate": 0.0}]}, "rate"),
        ({"reader": {"stack": {"share": True, "experts": {}}}}, "experts are different in every layer"),
        ({"reader": {"kind": "none"}}, 'task = "encode" goes with reader.kind = "tokens"'),
    ],
)
def test_what_does_not_go_together_is_told(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SaccadeError, match=message):
        validate({**GOOD, **changes})


def test_settings_of_papers() -> None:
    """Devlin et al. 2019, section 3.1 and appendix A.2; Liu et al. 2019, section 4; Lan et al. 2020, section 3."""
    bert, roberta, albert = (load(name) for name in ("bert", "roberta", "albert"))
    for recipe in (bert, roberta, albert):
        [masked] = recipe.objectives
        assert (masked.rate, masked.masked, masked.replaced) == (0.15, 0.8, 0.1)
        stack = recipe.reader.stack
        assert (stack.layers, stack.dim, stack.heads, stack.ff, stack.norm) == (12, 768, 12, 3072, "post")
    assert [recipe.objectives[0].pairs for recipe in (bert, roberta, albert)] == ["next", "none", "order"]
    assert [recipe.objectives[0].dynamic for recipe in (bert, roberta, albert)] == [False, True, True]
    assert albert.reader.stack.share and albert.reader.embedding_dim == 128
    assert not override(bert, ["reader.segments=0"]).reader.segments
