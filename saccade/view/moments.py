"""What a model attends to in a few fixed texts while it learns: `watch/step-N.json` of a run, one for each moment.

A moment is `{"schema": 1, "step": N, "documents": [...]}` with packed attention documents, always of the same texts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from saccade.files import atomic_write
from saccade.view.codec import packed
from saccade.view.document import Document

FOLDER = "watch"
NAME = re.compile(r"step-(\d+)\.json")
SCHEMA = 1
MOST = 22  # moments at even distances that are kept, beside the first and the last
PARTS = {"cross": "output to input", "writer": "output to itself", "reader": "input to itself"}


def spacing(step: int, *, every: int) -> int:
    """How many steps lie between two moments of a run that has come so far: `every`, doubled as often as needed."""
    distance = every
    while step > MOST * distance:
        distance *= 2
    return distance


def steps(run: Path) -> list[int]:
    """The steps that have a moment, in order."""
    folder = run / FOLDER
    names = (NAME.fullmatch(item.name) for item in folder.iterdir()) if folder.is_dir() else ()
    return sorted(int(name[1]) for name in names if name)


def path_of(run: Path, step: int) -> Path:
    return run / FOLDER / f"step-{step}.json"


def write(run: Path, step: int, documents: Sequence[Document], *, every: int) -> None:
    """Adds a moment, and leaves out every second one where there would be too many."""
    (run / FOLDER).mkdir(exist_ok=True)
    moment = {"schema": SCHEMA, "step": step, "documents": [packed(document) for document in documents]}
    atomic_write(path_of(run, step), json.dumps(moment, ensure_ascii=False, separators=(",", ":")).encode())
    distance = spacing(step, every=every)
    remove(run, (old for old in steps(run) if old % distance and old != step))


def cut(run: Path, *, after: int) -> None:
    """Removes what is later than the step from which a run goes on, and what a killed process left half written."""
    remove(run, (step for step in steps(run) if step > after))
    for leftover in (run / FOLDER).glob(".*.tmp"):
        leftover.unlink(missing_ok=True)


def remove(run: Path, unwanted: Iterable[int]) -> None:
    for step in unwanted:
        path_of(run, step).unlink(missing_ok=True)


def read(run: Path, step: int) -> dict[str, Any]:
    return dict(json.loads(path_of(run, step).read_bytes()))


def sharpness(run: Path) -> dict[str, list[Any]]:
    """The mean entropy of all heads at each moment, in bits, for each kind of attention: {"step": [...], name: ...}."""
    found: dict[int, dict[str, float]] = {}
    for step in steps(run):
        try:
            found[step] = _entropies(path_of(run, step), path_of(run, step).stat().st_mtime_ns)
        except (OSError, ValueError, KeyError):  # left out a moment ago, or damaged: the others are shown
            continue
    names = [name for name in PARTS.values() if any(name in values for values in found.values())]
    return {"step": [*found], **{name: [values.get(name) for values in found.values()] for name in names}}


@lru_cache(maxsize=256)
def _entropies(path: Path, written: int) -> dict[str, float]:
    """The mean entropy for each kind of attention, read once for each time that the file was written."""
    values: dict[str, list[float]] = {}
    for document in json.loads(path.read_bytes())["documents"]:
        for entry in document["maps"]:
            values.setdefault(PARTS[entry["part"]], []).extend(document["statistics"][entry["address"]]["entropy"])
    return {name: sum(numbers) / len(numbers) for name, numbers in values.items() if numbers}
