"""Runs on disk: where they are and what state they are in. Does not import torch."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saccade.bounds import MAX_INTEGER, parse_toml
from saccade.errors import SaccadeError
from saccade.files import lock_file
from saccade.parsing import parse_json, read_text

RECIPE, WEIGHTS = "recipe.toml", "model.safetensors"  # with the tokenizers, all that prediction needs
CHECKPOINTS, METRICS, CARD = "checkpoints", "metrics.jsonl", "card.md"
FILTER_REPORT = "filter.json"  # what `data.filter` has dropped: counts and examples by reason
SKIPPED_ROWS = "skipped.jsonl"  # rows that `data.on_error = "skip"` has skipped: one line of JSON for each
SAMPLES = "samples.jsonl"  # outputs for some validation examples, one line per validation
EXAMPLES = "examples.json"  # validation examples that the page of `saccade serve` shows
EXAMPLE_FILE = "example"  # with the suffix of the file: the image or audio of the only example
MAX_EXAMPLES = 8
MAX_EXAMPLE_BYTES = 1_000_000  # of that file
MAX_EXAMPLE_CHARACTERS = 4000  # of an input or a reference
UNREADABLE = "unreadable"  # state of a run whose files cannot be read
LOCK = ".training"  # locked by the process that trains the run
LAUNCH = ".launch"  # which start of torchrun trains the run
_callbacks: list[Callable[[Path], None]] = []


@dataclass(frozen=True)
class RunEntry:
    """One run in the list of `saccade runs`."""

    name: str
    path: str
    state: str  # training, interrupted, finished or unreadable
    step: int
    score: str  # of the weights in use, by train.metric
    bytes: int  # size of the weights

    @property
    def size(self) -> str:
        return f"{self.bytes / 1e6:.1f} MB" if self.bytes else "-"


def get_runs_folder() -> Path:
    """The folder of all runs: $SACCADE_RUNS, or ./runs."""
    return Path(os.environ.get("SACCADE_RUNS") or "runs")


def find_run(name: str | Path) -> Path:
    """The folder of a run, given by its path or by its name in the folder of runs.

    A folder of the same name that is no run, such as the one that a run was imported from, does not hide the run.
    """
    path = Path(name)
    inside = get_runs_folder() / path
    if path.is_absolute() or not inside.exists():
        return path
    is_hidden = path.is_dir() and not (path / RECIPE).exists() and (inside / RECIPE).exists()
    return inside if is_hidden or not path.exists() else path


def build_not_a_run_error(path: Path) -> SaccadeError:
    """The error for a folder that is no run, with the most similar name."""
    others = [entry.name for entry in get_runs_folder().glob("*/") if entry != path and entry.name != str(path)]
    close = difflib.get_close_matches(path.name, others, n=1)
    hint = f"did you mean '{close[0]}'?" if close else "`saccade runs` lists the runs"
    return SaccadeError(f"'{path}' is not a run: expected a folder with {RECIPE}; {hint}")


@contextmanager
def lock_run(path: Path) -> Iterator[None]:
    """Lock a run against training by other processes; the lock ends with the process.

    The file stays: whoever removed it could let a second process lock a new file of the same name.
    """
    try:
        file = (path / LOCK).open("a")
    except OSError as error:
        raise SaccadeError(f"cannot write to the run '{path}': {error.strerror}; check your permission") from None
    with file:
        if not lock_file(file):
            raise SaccadeError(f"run '{path}' is being trained by another process; wait until it ends")
        if not _is_open_file(path / LOCK, file.fileno()):  # a process that failed has removed its folder
            raise SaccadeError(f"the folder '{path}' was removed by another process; try again")
        for callback in _callbacks:
            callback(path)
        yield


def _is_open_file(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:
        return False


@contextmanager
def notify_of_runs(callback: Callable[[Path], None]) -> Iterator[None]:
    """Call back with the folder of every run that this process starts to train, before training starts."""
    _callbacks.append(callback)
    try:
        yield
    finally:
        _callbacks.remove(callback)


def is_training(path: Path) -> bool:
    try:
        with (path / LOCK).open("r") as file:
            return not lock_file(file, shared=True)
    except OSError:
        return False


def list_runs(folder: Path | None = None) -> list[RunEntry]:
    """All runs of a folder, newest last."""
    folder = get_runs_folder() if folder is None else folder
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if os.path.isfile(path / RECIPE)]  # False where others may not look
    entries = [(_get_time(path / RECIPE), path.name, path) for path in found]
    return [_try_to_describe_run(path) for _, _, path in sorted(entries)]


def _get_time(path: Path) -> float:
    """The time of the last change; 0 for a file that was removed meanwhile."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _try_to_describe_run(path: Path) -> RunEntry:
    """The entry of a run; one that cannot be read is listed as such, and does not end the list."""
    try:
        return describe_run(path)
    except OSError:
        return RunEntry(path.name, str(path), UNREADABLE, step=0, score="-", bytes=0)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The complete lines of metrics.jsonl; an empty list where there is no such file yet."""
    return [values for _, values in read_metric_lines(path)]


def read_metric_lines(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Complete lines with a step, as text and as values.

    The last line may be incomplete while the run is training; others may be damaged.
    """
    found = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []:
        try:
            values = parse_json(line, path.name)
        except SaccadeError:
            continue
        if isinstance(values, dict) and _is_metric_line(values):
            found.append((line, values))
    return found


def get_number(line: Mapping[str, Any], name: str) -> float | None:
    """A number in a line of metrics.jsonl; None if there is none."""
    value = line.get(name)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _is_metric_line(values: dict[str, Any]) -> bool:
    """Whether a line has a step, and no number that is too large for a float."""
    numbers = [value for value in values.values() if isinstance(value, int)]
    return isinstance(values.get("step"), int) and all(abs(number) <= MAX_INTEGER for number in numbers)


def describe_run(path: Path) -> RunEntry:
    """State, last step, score and size of a run."""
    lines = read_metrics(path / METRICS)
    weights = path / WEIGHTS
    return RunEntry(
        name=path.name,
        path=str(path),
        state=get_state(path),
        step=max((line["step"] for line in lines), default=0),
        score=_format_score(lines, _read_metric(path / RECIPE)),
        bytes=weights.stat().st_size if weights.exists() else 0,
    )


def get_state(path: Path) -> str:
    """training, interrupted or finished; new where there is no run yet."""
    if not (path / RECIPE).is_file():
        return "new"
    if is_training(path):
        return "training"
    if (path / CARD).exists():  # the last file of a run; resuming removes it
        return "finished"
    is_copy = (path / WEIGHTS).exists() and not (path / CHECKPOINTS).is_dir()  # of what prediction needs
    return "finished" if is_copy else "interrupted"


def get_validation_score(lines: list[dict[str, Any]], metric: str, last_step: float = math.inf) -> float | None:
    """Score of the weights in use: averaged checkpoints where they were chosen, else the best validation.

    With `last_step`, that of the best validation up to this step. None where nothing was validated.
    """
    best = [line for line in lines if line.get("event") == "valid" and line.get("best") and line["step"] <= last_step]
    mean = [line for line in lines if line.get("event") == "average" and line.get("chosen") and last_step == math.inf]
    values = [get_number(line, metric) for line in [*best, *mean]]
    return values[-1] if values else None


def _format_score(lines: list[dict[str, Any]], metric: str) -> str:
    value = get_validation_score(lines, metric)
    return "-" if value is None else f"{metric} {value:.2f}"


def _read_metric(path: Path) -> str:
    try:
        return str(parse_toml(read_text(path), path.name)["train"]["metric"])
    except (SaccadeError, KeyError, TypeError):
        return "loss"  # errors of the recipe are reported when the run is used


def read_examples(path: Path) -> list[dict[str, str]]:
    """Validation examples of a run: `input`, `reference`, of a question about a file `question`, and `file`.

    Of runs without examples.json, those of the last validation whose inputs are texts. What is damaged is left out: a
    run may come from elsewhere.
    """
    try:
        found = parse_json(read_text(path / EXAMPLES), EXAMPLES)
    except SaccadeError:
        lines = read_metrics(path / SAMPLES)
        found = lines[-1].get("samples") if lines else []
    examples = [_clean_example(item) for item in found if isinstance(item, dict)] if isinstance(found, list) else []
    return [item for item in examples if item][:MAX_EXAMPLES]


def _clean_example(item: dict[str, Any]) -> dict[str, str]:
    names = ("input", "reference", "question", "file")
    clean = {name: value for name in names if isinstance(value := item.get(name), str)}
    return clean if all(len(value) <= MAX_EXAMPLE_CHARACTERS for value in clean.values()) else {}


def read_example_file(path: Path, name: str) -> bytes:
    """The file of an example, which must lie in the run and be small; empty if it does not."""
    file = path / name
    if Path(name).name != name or Path(name).stem != EXAMPLE_FILE or file.is_symlink() or not file.is_file():
        return b""
    return file.read_bytes() if file.stat().st_size <= MAX_EXAMPLE_BYTES else b""
