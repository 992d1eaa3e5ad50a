"""Settings that are incompatible with a second pass over the text are refused in one line."""

from typing import Any

import pytest

from saccade.config.load import load, validate
from saccade.errors import SaccadeError

LABEL: dict[str, Any] = {"task": "classify", "writer": {"kind": "label"}, "objectives": [{"kind": "label"}]}
SEGMENTS = {"kind": "transformer-xl", "content_bias": True, "relative_segments": True}


def test_a_text_is_read_once_unless_that_is_asked_for() -> None:
    assert load("classify").reader.second_pass is None
    again = load(
        "classify", overrides=["reader.second_pass.stack.dim=256", "reader.second_pass.start_token=end"]
    ).reader.second_pass
    assert (again.stack.dim, again.start_token) == (256, "end")


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        (
            {"reader": {"second_pass": {}}},
            'reader.second_pass is for classification and embeddings, got writer.kind = "tokens"',
        ),
        (
            {**LABEL, "reader": {"second_pass": {}, "stack": {"kind": "recurrent"}}},
            'got reader.stack.kind = "recurrent"',
        ),
        ({**LABEL, "reader": {"second_pass": {}, "concat_embedding": True}}, "set reader.concat_embedding = false"),
        (
            {**LABEL, "reader": {"second_pass": {"stack": {"norm": "pre", "residual": "reversible"}}}},
            "set it to true on both stacks",
        ),
        (
            {**LABEL, "reader": {"second_pass": {"positions": SEGMENTS}}},
            "reader.second_pass.positions.relative_segments: only the first",
        ),
        ({**LABEL, "reader": {"second_pass": {"stack": {"kind": "recurrent"}}}}, "reader.second_pass.stack.kind"),
        (
            {**LABEL, "reader": {"kind": "joined", "question": {"second_pass": {}}}},
            "leave reader.question.second_pass out",
        ),
    ],
)
def test_incompatible_settings_are_refused(tables: dict[str, Any], said: str) -> None:
    with pytest.raises(SaccadeError, match=said) as raised:
        validate(tables)
    assert "\n" not in str(raised.value)
