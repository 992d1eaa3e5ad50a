"""Rows of results that several scripts write."""

from pathlib import Path
from typing import Any

from minutes import read_metrics

from saccade.model.run import count_parameters
from saccade.runs import WEIGHTS


def read_training_cost(what: str, run: Path, *, seed: int) -> list[dict[str, Any]]:
    """Return minutes and steps of a training, and the size of the model."""
    lines = read_metrics(run)
    return [
        build_row(f"{what}: minutes of training", lines[-1]["seconds"] / 60, "min", seed),
        build_row(f"{what}: steps", max(line.get("step", 0) for line in lines), "", seed),
        build_row(f"{what}: parameters", count_parameters(run / WEIGHTS) / 1e6, "M", seed),
    ]


def build_row(what: str, value: float, unit: str, seed: int, **more: Any) -> dict[str, Any]:
    return {"what": what, "value": round(value, 3), "unit": unit, "seed": seed, **more}
