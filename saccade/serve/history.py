"""The training history of a run as JSON for the watch page, read from its files, during training and afterwards."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from saccade.bounds import parse_toml
from saccade.errors import SaccadeError
from saccade.parsing import read_text
from saccade.runs import CARD, METRICS, RECIPE, SAMPLES, get_state, is_training, read_metrics
from saccade.view import moments

SCHEMA = 1
MAX_CURVE_POINTS = 2000  # more than a screen has columns of pixels
MAX_VALIDATIONS = 40  # with sample outputs
PREPARING = "preparing"  # the state of a run that has no recipe yet

Lines = Sequence[Mapping[str, Any]]


def read_history(run: Path | None) -> dict[str, Any]:
    """Read everything that the page of a run shows, except the attention snapshots, which it loads one by one."""
    recipe = _read_recipe(run)
    settings = recipe.get("train")
    settings = settings if isinstance(settings, dict) else {}
    lines = [] if run is None else read_metrics(run / METRICS)
    samples = [] if run is None else read_metrics(run / SAMPLES)
    return {
        "schema": SCHEMA,
        "name": "" if run is None else run.name,
        "recipe": recipe.get("name", ""),
        "state": PREPARING if run is None or not recipe else get_state(run),
        "step": max((line["step"] for line in lines), default=0),
        "budget": {name: settings.get(name) for name in ("steps", "epochs", "minutes")},
        "metric": settings.get("metric", "loss"),
        "train": to_columns([line for line in lines if line.get("event") == "train"]),
        "valid": to_columns([line for line in lines if line.get("event") == "valid"]),
        "samples": subsample_evenly(
            [*{line["step"]: select_samples(line) for line in samples}.values()], MAX_VALIDATIONS
        ),
        "watched": bool(settings.get("watch")),
        "moments": [] if run is None else moments.list_steps(run),
        "sharpness": {"step": []} if run is None else moments.read_mean_entropies(run),
    }


def compute_version(run: Path | None) -> str:
    """Compute an ETag from the modification times and sizes of the files: it changes whenever the history may."""
    if run is None:
        return PREPARING
    marks = [str(is_training(run))]
    for name in (METRICS, SAMPLES, RECIPE, CARD, moments.FOLDER):
        try:
            status = (run / name).stat()
            marks.append(f"{status.st_mtime_ns:x}.{status.st_size:x}")
        except OSError:
            marks.append("-")
    return "-".join(marks)


def to_columns(lines: Lines) -> dict[str, list[Any]]:
    """Convert log lines to columns of at most MAX_CURVE_POINTS values; missing and non-finite values are None."""
    lines = subsample_evenly(lines, MAX_CURVE_POINTS)
    names = dict.fromkeys(name for line in lines for name, value in line.items() if _is_number(value))
    return {name: [line.get(name) if _is_number(line.get(name)) else None for line in lines] for name in names}


def subsample_evenly(items: Sequence[Any], max_items: int) -> list[Any]:
    """Keep every n-th item so that at most `max_items` remain; always keep the last."""
    every = -(-len(items) // max_items) or 1
    return [item for back, item in enumerate(reversed(items)) if back % every == 0][::-1]


def select_samples(line: Mapping[str, Any]) -> dict[str, Any]:
    return {"step": line["step"], "samples": line.get("samples", [])}


def read_history_with_attention(run: Path) -> dict[str, Any]:
    """Read the history with all attention snapshots, for a self-contained page."""
    history, attention = read_history(run), dict[str, Any]()
    for step in history["moments"]:
        with suppress(SaccadeError):  # a damaged snapshot is left out
            attention[str(step)] = moments.read(run, step)
    return {**history, "moments": [int(step) for step in attention], "attention": attention}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _read_recipe(run: Path | None) -> dict[str, Any]:
    try:
        return {} if run is None else parse_toml(read_text(run / RECIPE), RECIPE)
    except SaccadeError:
        return {}
