"""As many steps as fit into some minutes: a schedule has to know its end before it begins."""

import json
from pathlib import Path
from typing import Any

import saccade
from saccade.config.load import override
from saccade.config.schema import Recipe

FEW = 150  # steps by which speed is measured, the last two thirds of them
MARGIN = 0.97  # of the minutes: validations and the end take some


def steps_within(minutes: float, recipe: Recipe, run: Path) -> int:
    """Steps of the recipe, by the speed of a few of them, which are taken in `run`."""
    return int(60 * MARGIN * minutes * speed_of(recipe, run))


def speed_of(recipe: Recipe, run: Path, *, few: int = FEW) -> float:
    """Steps a second, by a few of them, which are taken in `run`."""
    settings = [f"train.steps={few}", f"train.report_every={few // 3}", "train.valid_every=100000"]
    saccade.train(override(recipe, settings), run=run)
    first, *_, last = [line for line in lines_of(run) if line["event"] == "train"]
    return float((last["step"] - first["step"]) / (last["seconds"] - first["seconds"]))


def lines_of(run: Path) -> list[dict[str, Any]]:
    """What a run has told."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
