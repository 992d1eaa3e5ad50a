"""How a run has come to where it is, read from its files alone: the same for one in training and one long finished."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from saccade.runs import CARD, METRICS, RECIPE, SAMPLES, in_training, read_metrics, state_of
from saccade.view import moments

SCHEMA = 1
POINTS = 2000  # of a curve, more than a screen is wide
VALIDATIONS = 40  # whose samples are shown
PREPARING = "preparing"  # the state of a run that has no recipe yet

Lines = Sequence[Mapping[str, Any]]


def history(run: Path | None) -> dict[str, Any]:
    """All that the page of a run shows, except for the attention of each moment."""
    recipe = _recipe(run)
    settings = recipe.get("train", {})
    lines = [] if run is None else read_metrics(run / METRICS)
    samples = [] if run is None else read_metrics(run / SAMPLES)
    return {
        "schema": SCHEMA,
        "name": "" if run is None else run.name,
        "recipe": recipe.get("name", ""),
        "state": PREPARING if run is None or not recipe else state_of(run),
        "step": max((line["step"] for line in lines), default=0),
        "budget": {name: settings.get(name) for name in ("steps", "epochs", "minutes")},
        "metric": settings.get("metric", "loss"),
        "train": columns([line for line in lines if line.get("event") == "train"]),
        "valid": columns([line for line in lines if line.get("event") == "valid"]),
        "samples": spread([*{line["step"]: told(line) for line in samples}.values()], VALIDATIONS),
        "watched": bool(settings.get("watch")),
        "moments": [] if run is None else moments.steps(run),
        "sharpness": {"step": []} if run is None else moments.sharpness(run),
    }


def version(run: Path | None) -> str:
    """Another text whenever the history may be another one."""
    if run is None:
        return PREPARING
    marks = [str(in_training(run))]
    for name in (METRICS, SAMPLES, RECIPE, CARD, moments.FOLDER):
        try:
            found = (run / name).stat()
            marks.append(f"{found.st_mtime_ns:x}.{found.st_size:x}")
        except OSError:
            marks.append("-")
    return "-".join(marks)


def columns(lines: Lines) -> dict[str, list[Any]]:
    """Rows of numbers as columns, of at most so many rows; what is no number in a row is None there."""
    lines = spread(lines, POINTS)
    names = dict.fromkeys(name for line in lines for name, value in line.items() if _is_number(value))
    return {name: [line.get(name) if _is_number(line.get(name)) else None for line in lines] for name in names}


def spread(items: Sequence[Any], most: int) -> list[Any]:
    """At most so many of them, evenly, the last one always."""
    every = -(-len(items) // most) or 1
    return [item for back, item in enumerate(reversed(items)) if back % every == 0][::-1]


def told(line: Mapping[str, Any]) -> dict[str, Any]:
    return {"step": line["step"], "samples": line.get("samples", [])}


def whole(run: Path) -> dict[str, Any]:
    """The history with the attention of all moments, for a page that stands alone."""
    found = history(run)
    return {**found, "attention": {str(step): moments.read(run, step) for step in found["moments"]}}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _recipe(run: Path | None) -> dict[str, Any]:
    try:
        return {} if run is None else tomllib.loads((run / RECIPE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
