"""Find out how many steps fit into some minutes, since a schedule needs the number of steps in advance."""

import json
from pathlib import Path
from typing import Any

import saccade
from saccade.config.load import override
from saccade.config.schema import Recipe

PROBE_STEPS = 150  # steps by which speed is measured, the last two thirds of them
MARGIN = 0.97  # of the minutes: validations and the end take some


def count_steps_within(minutes: float, recipe: Recipe, run: Path) -> int:
    """Return the steps that fit into the minutes, by the speed of a few steps in the folder `run`."""
    return int(60 * MARGIN * minutes * measure_speed(recipe, run))


def measure_speed(recipe: Recipe, run: Path, *, few: int = PROBE_STEPS) -> float:
    """Measure the steps per second with a few steps in the folder `run`."""
    settings = [f"train.steps={few}", f"train.report_every={few // 3}", "train.valid_every=100000"]
    saccade.train(override(recipe, settings), run=run)
    first, *_, last = [line for line in read_metrics(run) if line["event"] == "train"]
    return float((last["step"] - first["step"]) / (last["seconds"] - first["seconds"]))


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl of a run."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
