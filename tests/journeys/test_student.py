"""A student: tries the demonstration, looks at attention, and checks what a lecture says."""

import re
import sys

import pytest


def test_first_steps_from_a_wheel(place):
    origin = place.run_python("import saccade, sys; print(saccade.__file__); print(sys.prefix)").split()
    assert origin[0].startswith(origin[1]) and origin[1] != sys.prefix, "saccade is that of the wheel"
    assert re.fullmatch(r"saccade \d+\.\d+\.\d+\n", place.run("saccade --version"))
    assert "multi30k" in place.run("saccade recipes")
    wrong = place.run("saccade predict nothing hello", code=2)
    assert wrong.startswith("error: ") and "Traceback" not in wrong


@pytest.mark.slow
def test_demo_then_view_then_lectures(place):
    assert "show-attend-tell" in place.run("saccade demo --list")
    shown = place.run("saccade demo")
    score = re.search(r"([\d.]+)% of 1,000 dates exactly right", shown)
    assert score and float(score[1]) >= 95 and "reached" in shown
    for line in re.findall(r"^ +(saccade (?:predict|view) .*?) {3}", shown, re.MULTILINE):  # what it says to try next
        assert place.run(line).strip()
    assert place.run('saccade predict demo-1 "zondag 3 mei 1456"') == "1456-05-03\n"
    place.run('saccade view demo-1 "4 juin 1932" --html attention.html')
    assert "<html" in place.read("attention.html") and "1932-06-04" in place.read("attention.html").replace("\\u", "")
    maps = place.run_json('saccade view demo-1 "4 juin 1932"')
    assert any(sum(row) == pytest.approx(1, abs=1e-3) for row in find_rows(maps))
    assert len(place.run_json("saccade lectures list")) >= 114
    [row] = place.run_json("saccade lectures run 62")
    assert row["row"] == 62 and row["state"] == "holds"
    assert "112" in (example := place.run("saccade lectures trace")) and "0.88" in example
    traced = place.run('saccade lectures trace demo-1 "5 May 1994" --layer 1 --head 2')
    assert all(f"\n{name}  " in traced for name in ("Q", "K", "V", "E", "A", "Y"))


def find_rows(value):
    """All lists of numbers in a JSON value."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        if value and all(isinstance(one, int | float) for one in value):
            yield value
        else:
            for one in value:
                yield from find_rows(one)
