"""The folder of runs: where they are and how far each has come, known without torch."""

from __future__ import annotations

import difflib
import json
import os
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saccade.errors import SaccadeError

try:
    import fcntl
except ImportError:  # Windows has no such locks, so nobody is kept out there
    fcntl = None  # type: ignore[assignment]

RECIPE, WEIGHTS = "recipe.toml", "model.safetensors"  # with the tokenizers all that is needed to use a model
CHECKPOINTS, METRICS, CARD = "checkpoints", "metrics.jsonl", "card.md"
SAMPLES = "samples.jsonl"  # what the model wrote for some validation texts, one line for each validation
LOCK = ".training"  # held by the process that trains the run, for as long as it lives
_told: list[Callable[[Path], None]] = []


@dataclass(frozen=True)
class Entry:
    """One run as `saccade runs` shows it."""

    name: str
    path: str
    state: str  # training, interrupted or finished
    step: int
    score: str  # of the weights in use, by the metric that the recipe chose
    bytes: int  # of the weights

    @property
    def size(self) -> str:
        return f"{self.bytes / 1e6:.1f} MB" if self.bytes else "-"


def runs_folder() -> Path:
    """./runs, or what SACCADE_RUNS says."""
    return Path(os.environ.get("SACCADE_RUNS") or "runs")


def find_run(name: str | Path) -> Path:
    """The folder of a run given by its path, or by its name in the folder of runs."""
    path = Path(name)
    inside = runs_folder() / path
    if not path.exists() and not path.is_absolute() and inside.exists():
        return inside
    return path


def not_a_run(path: Path) -> SaccadeError:
    """The message for a folder that is no run, with the name that may have been meant."""
    close = difflib.get_close_matches(path.name, [entry.name for entry in runs_folder().glob("*/")], n=1)
    hint = f"did you mean '{close[0]}'?" if close else "`saccade runs` lists the runs"
    return SaccadeError(f"'{path}' is not a run: expected a folder with {RECIPE}; {hint}")


@contextmanager
def training(path: Path) -> Iterator[None]:
    """Keeps every other process from training the same run; a process that dies lets go of it."""
    lock = path / LOCK
    try:
        file = lock.open("a")
    except OSError as error:
        raise SaccadeError(f"cannot write to the run '{path}': {error.strerror}; check your permission") from None
    with file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise SaccadeError(f"run '{path}' is being trained by another process; wait until it ends") from None
        for tell in _told:
            tell(path)
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


@contextmanager
def hearing_of_runs(tell: Callable[[Path], None]) -> Iterator[None]:
    """Tells the folder of every run that this process begins to train, before anything else is known of it."""
    _told.append(tell)
    try:
        yield
    finally:
        _told.remove(tell)


def in_training(path: Path) -> bool:
    try:
        with (path / LOCK).open("r") as file:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    except OSError:
        return False


def list_runs(folder: Path | None = None) -> list[Entry]:
    """All runs of a folder, newest last."""
    folder = runs_folder() if folder is None else folder
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if (path / RECIPE).is_file()]
    return [_entry(path) for path in sorted(found, key=lambda path: ((path / RECIPE).stat().st_mtime, path.name))]


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """What every whole line of metrics.jsonl says; nothing where there is no such file yet."""
    return [values for _, values in metric_lines(path)]


def metric_lines(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Every whole line, as text and as values; the last one may be half written while the run goes on."""
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []:
        try:
            values = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(values, dict) and isinstance(values.get("step"), int):
            found.append((line, values))
    return found


def _entry(path: Path) -> Entry:
    lines = read_metrics(path / METRICS)
    weights = path / WEIGHTS
    return Entry(
        name=path.name,
        path=str(path),
        state=state_of(path),
        step=max((line["step"] for line in lines), default=0),
        score=_score(lines, _metric(path / RECIPE)),
        bytes=weights.stat().st_size if weights.exists() else 0,
    )


def state_of(path: Path) -> str:
    """training, interrupted or finished."""
    if in_training(path):
        return "training"
    written = [file.stat().st_mtime for name in (METRICS, RECIPE) if (file := path / name).exists()]
    card = path / CARD  # the last file of a run; one that went on has newer metrics
    return "finished" if card.exists() and card.stat().st_mtime >= max(written) else "interrupted"


def _score(lines: list[dict[str, Any]], metric: str) -> str:
    """That of the weights in use: the mean of checkpoints where it was chosen, else the best validation so far."""
    best = [line for line in lines if line.get("event") == "valid" and line.get("best")]
    mean = [line for line in lines if line.get("event") == "average" and line.get("chosen")]
    value = [line.get(metric) for line in [*best, *mean]][-1:]
    return f"{metric} {value[0]:.2f}" if value and isinstance(value[0], int | float) else "-"


def _metric(path: Path) -> str:
    try:
        return str(tomllib.loads(path.read_text(encoding="utf-8"))["train"]["metric"])
    except (OSError, ValueError, KeyError, TypeError):
        return "loss"  # what a broken recipe has is told when somebody uses it, not in a list
