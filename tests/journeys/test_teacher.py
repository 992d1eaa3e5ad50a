"""A teacher: a handout, figures from a trained model, a ladder of architectures, and exercises that can be checked."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

EXERCISES = (ROOT / "docs" / "lectures.md").read_text("utf-8").partition("## Exercises")[2].partition("\n## ")[0]


@pytest.mark.slow
def test_handout_has_rows_figures_and_errata(place):
    assert place.run("saccade lectures report --out handout --lecture S4") == "handout/index.html\n"
    page = place.read("handout/index.html")
    assert len(re.findall(r'id="row-\d+"', page)) > 5 and "rrata" in page
    assert not re.search(r'(src|href)="https?://', page), "the page works offline"
    assert {"handout/row-8.svg", "handout/row-8.csv"} <= {*place.list_files("handout/row-*")}
    for figure in place.list_files("handout/row-*.csv"):
        assert len(place.read(figure).splitlines()) > 1


@pytest.mark.slow
def test_figures_of_a_trained_model(place):
    place.run("saccade train dates --tiny --run class train.steps=40 data.train.0.examples=500")
    place.run('saccade view class "5 May 1994" --png heads.png')
    place.run('saccade view class "5 May 1994" --part reader --layer 1 --head 2 --png head.png')
    place.run('saccade view class "5 May 1994" --html heads.html')
    assert (place.folder / "heads.png").read_bytes().startswith(b"\x89PNG")
    assert (place.folder / "head.png").stat().st_size > 2000
    assert "Content-Security-Policy" in place.read("heads.html")


@pytest.mark.slow
def test_ladder_compares_its_rungs(place):
    place.run(
        "saccade ladder --rungs no-attention,attention,transformer --length 8 --out ladder train.steps=30 "
        "train.schedule.warmup_steps=10"
    )
    table = json.loads(place.read("ladder/ladder.json"))
    text = json.dumps(table)
    assert all(f'"{name}"' in text for name in ("no-attention", "attention", "transformer"))
    assert place.read("ladder/report.md").count("|") > 20
    assert {"ladder/lengths.svg", "ladder/lengths.png"} <= {*place.list_files("ladder/lengths.*")}


@pytest.mark.slow
def test_exercises_can_be_done_as_they_are_written(place):
    lines = re.findall(r"^\$ (saccade .*?)(?:  #.*)?$", EXERCISES, re.MULTILINE)
    assert len(lines) >= 7
    for line in lines:
        trains = line.startswith(("saccade train", "saccade ladder"))
        printed = place.run(f"{line} train.steps=20 train.schedule.warmup_steps=5" if trains else line)
        assert printed or line.startswith("saccade train")
