"""Settings that are incompatible with two-stream attention are refused in one line."""

from typing import Any

import pytest

from saccade.config.load import load, validate
from saccade.errors import SaccadeError

STACK: dict[str, Any] = {"attention_bias": False}
WHERE: dict[str, Any] = {"kind": "transformer-xl", "content_bias": True, "relative_segments": True}


def recipe(*, reader: dict[str, Any] | None = None, **tables: Any) -> Any:
    given: dict[str, Any] = {
        "task": "encode", "reader": {"stack": STACK, "positions": WHERE, **(reader or {})},
        "writer": {"kind": "permuted"}, "objectives": [{"kind": "permuted"}],
    }  # fmt: skip
    return validate({**given, **tables})


def test_the_shipped_recipe_is_one() -> None:
    for tiny in (False, True):
        assert load("xlnet", tiny=tiny).writer.kind == "permuted"
    assert recipe().reader.positions.relative_segments


@pytest.mark.parametrize(
    ("reader", "said"),
    [
        ({"stack": {"kind": "recurrent"}, "positions": {"kind": "none"}}, "needs a Transformer reader of tokens"),
        ({"stack": {**STACK, "norm": "pre"}}, "needs reader.stack.norm = \"post\", got 'pre'; set it so"),
        ({"stack": {**STACK, "residual": False}}, "reader.stack.residual = true, got False"),
        ({"stack": {**STACK, "window": 3}}, 'reader.stack.window = "none"'),
        ({"stack": {**STACK, "experts": {"count": 4}}}, 'reader.stack.experts = "none"'),
        ({"causal": True}, "set reader.causal = false"),
        ({"embedding_dim": 64}, 'set reader.embedding_dim = "none"'),
        ({"positions": {"kind": "learned"}}, 'got reader.positions.kind = "learned"; set it to "transformer-xl"'),
        ({"positions": {"kind": "none"}}, 'got reader.positions.kind = "none"; set it to "transformer-xl"'),
    ],
)
def test_incompatible_readers_are_refused(reader: dict[str, Any], said: str) -> None:
    with pytest.raises(SaccadeError) as error:
        recipe(reader=reader)
    assert said in str(error.value)


def test_memory_needs_segments() -> None:
    with pytest.raises(SaccadeError, match="memory_length = 7 needs several segments; set segment_length too"):
        recipe(objectives=[{"kind": "permuted", "memory_length": 7}])


def test_writer_and_objective_belong_together() -> None:
    with pytest.raises(SaccadeError, match='"permuted" cannot be trained by the objective "masked"'):
        recipe(objectives=[{"kind": "masked"}])


def test_only_readers_tell_segments_apart() -> None:
    with pytest.raises(SaccadeError, match=r"writer.positions.relative_segments is for readers"):
        validate({"writer": {"positions": WHERE}})
