"""JSON that others have written: errors are one line with the file and the row."""

import pytest

from saccade import parsing
from saccade.errors import SaccadeError


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"f:3: not valid JSON \(Expecting property name"),
        ("9" * 5000, "f:3: has a number of more than 4,300 digits; write it with fewer"),
        ("[" * 100_000, "f:3: nested too deeply, expected at most 64 levels; write it with fewer"),
        ('{"a":' * 200 + "1" + "}" * 200, "f:3: nested too deeply"),
        (b"\xff", r"f:3: not valid UTF-8 \(byte 0\); convert it to UTF-8"),
    ],
)
def test_what_is_no_json_is_one_line(text, message):
    with pytest.raises(SaccadeError, match=message):
        parsing.parse_json(text, "f:3")


def test_levels_up_to_the_limit_are_read():
    levels = parsing.MAX_NESTING
    assert parsing.parse_json("[" * levels + "]" * levels, "x")
    with pytest.raises(SaccadeError, match="nested too deeply"):
        parsing.parse_json("[" * (levels + 1) + "]" * (levels + 1), "x")


def test_files_are_read_up_to_a_limit(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    path.write_text("[1]")
    assert parsing.read_json(path) == [1]
    with pytest.raises(SaccadeError, match="x.json: expected a JSON object, got list; restore the file"):
        parsing.read_json_object(path)
    monkeypatch.setattr(parsing, "MAX_JSON_BYTES", 2)
    with pytest.raises(SaccadeError, match="x.json has more than 2 bytes; is it the right file?"):
        parsing.read_json(path)
    with pytest.raises(SaccadeError, match="cannot be read: Is a directory"):
        parsing.read_text(tmp_path)
    path.write_bytes(b"\xff")
    monkeypatch.undo()
    with pytest.raises(SaccadeError, match="x.json: not valid UTF-8"):
        parsing.read_text(path)
