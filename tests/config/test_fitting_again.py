"""What does not go with a second reading of a text is told in one line."""

from typing import Any

import pytest

from saccade.config.load import load, validate
from saccade.errors import SaccadeError

LABEL: dict[str, Any] = {"task": "label", "writer": {"kind": "label"}, "objectives": [{"kind": "label"}]}
SEGMENTS = {"kind": "transformer-xl", "content": True, "segments": True}


def test_a_text_is_read_once_unless_that_is_asked_for() -> None:
    assert load("classify").reader.again is None
    again = load("classify", overrides=["reader.again.stack.dim=256", "reader.again.start=end"]).reader.again
    assert (again.stack.dim, again.start) == (256, "end")


@pytest.mark.parametrize(
    ("tables", "said"),
    [
        ({"reader": {"again": {}}}, 'reader.again is for labels and for vectors of texts, got writer.kind = "tokens"'),
        ({**LABEL, "reader": {"again": {}, "stack": {"kind": "recurrent"}}}, 'got reader.stack.kind = "recurrent"'),
        ({**LABEL, "reader": {"again": {}, "levels": True}}, "set reader.levels = false"),
        (
            {**LABEL, "reader": {"again": {"stack": {"norm": "pre", "residual": "reversible"}}}},
            "set it to true on both stacks",
        ),
        ({**LABEL, "reader": {"again": {"positions": SEGMENTS}}}, "reader.again.positions.segments: only the first"),
        ({**LABEL, "reader": {"again": {"stack": {"kind": "recurrent"}}}}, "reader.again.stack.kind"),
        ({**LABEL, "reader": {"kind": "joined", "ask": {"again": {}}}}, "leave reader.ask.again out"),
    ],
)
def test_what_does_not_fit_is_refused(tables: dict[str, Any], said: str) -> None:
    with pytest.raises(SaccadeError, match=said) as raised:
        validate(tables)
    assert "\n" not in str(raised.value)
