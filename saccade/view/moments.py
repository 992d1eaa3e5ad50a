"""Attention snapshots during training ("moments"): `watch/step-N.json` in the folder of a run.

A moment is `{"schema": 1, "step": N, "documents": [...]}` with packed attention documents of a few fixed validation
inputs, the same at every step.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from saccade.files import atomic_write
from saccade.parsing import read_json_object
from saccade.view.codec import pack_document
from saccade.view.document import Document

FOLDER = "watch"
FILE_NAME = re.compile(r"step-(\d+)\.json")
SCHEMA = 1
MAX_MOMENTS = 22  # evenly spaced ones, besides the first and the last
# Names of the entropy curves; keys of the JSON of `/v1/run`.
CURVE_NAMES = {"cross": "output to input", "writer": "output to itself", "reader": "input to itself"}


def compute_interval(step: int, *, every: int) -> int:
    """Compute the steps between two moments of a run at `step`: `every`, doubled until there are few enough."""
    interval = every
    while step > MAX_MOMENTS * interval:
        interval *= 2
    return interval


def list_steps(run: Path) -> list[int]:
    """List the steps of all moments, in order."""
    folder = run / FOLDER
    names = (FILE_NAME.fullmatch(item.name) for item in folder.iterdir()) if folder.is_dir() else ()
    return sorted(int(name[1]) for name in names if name)


def get_path(run: Path, step: int) -> Path:
    return run / FOLDER / f"step-{step}.json"


def write(run: Path, step: int, documents: Sequence[Document], *, every: int) -> None:
    """Write a moment, and delete older ones that are no multiple of the current interval."""
    (run / FOLDER).mkdir(exist_ok=True)
    moment = {"schema": SCHEMA, "step": step, "documents": [pack_document(document) for document in documents]}
    atomic_write(get_path(run, step), json.dumps(moment, ensure_ascii=False, separators=(",", ":")).encode())
    interval = compute_interval(step, every=every)
    remove(run, (old for old in list_steps(run) if old % interval and old != step))


def remove_after(run: Path, *, last_step: int) -> None:
    """Delete the moments after the step from which a run resumes, and temporary files of a killed process."""
    remove(run, (step for step in list_steps(run) if step > last_step))
    for leftover in (run / FOLDER).glob(".*.tmp"):
        leftover.unlink(missing_ok=True)


def remove(run: Path, steps: Iterable[int]) -> None:
    for step in steps:
        get_path(run, step).unlink(missing_ok=True)


def read(run: Path, step: int) -> dict[str, Any]:
    return read_json_object(get_path(run, step))


def read_mean_entropies(run: Path) -> dict[str, list[Any]]:
    """Read the mean entropy over all heads in bits, as curves over steps: {"step": [...], curve name: [...]}."""
    entropies: dict[int, dict[str, float]] = {}
    for step in list_steps(run):
        try:
            entropies[step] = _read_entropies(get_path(run, step), get_path(run, step).stat().st_mtime_ns)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):  # deleted meanwhile, or damaged
            continue
    names = [name for name in CURVE_NAMES.values() if any(name in values for values in entropies.values())]
    return {"step": [*entropies], **{name: [values.get(name) for values in entropies.values()] for name in names}}


@lru_cache(maxsize=256)
def _read_entropies(path: Path, modified_ns: int) -> dict[str, float]:
    """Read the mean entropy of each part of the model; cached until the file is modified."""
    values: dict[str, list[float]] = {}
    for document in read_json_object(path)["documents"]:
        for entry in document["maps"]:
            values.setdefault(CURVE_NAMES[entry["part"]], []).extend(
                document["statistics"][entry["address"]]["entropy"]
            )
    return {name: sum(numbers) / len(numbers) for name, numbers in values.items() if numbers}
