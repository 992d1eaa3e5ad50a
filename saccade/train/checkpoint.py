"""Everything needed to go on, in `checkpoints/step-N/`: safetensors and JSON, whole or absent, nothing pickled."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from saccade.errors import SaccadeError

SCHEMA = 1  # raised when an older checkpoint can no longer be read as it is
STATE = "state.json"
NAME = re.compile(r"step-(\d+)")
BEST = re.compile(r"best-(\d+)\.safetensors")  # weights alone, of a step that validated best so far
HIDDEN = "."  # begins the names of folders that are being written or removed

BROKEN = (OSError, ValueError, KeyError, TypeError, AttributeError)  # what reading a damaged checkpoint raises

Tensors = Mapping[str, Tensor]
Json = Mapping[str, Any]


@dataclass(frozen=True)
class Checkpoint:
    path: Path
    state: dict[str, Any]

    @property
    def step(self) -> int:
        return int(self.state["step"])

    def tensors(self, name: str) -> dict[str, Tensor]:
        """The tensors of one file, such as "model" or "optimizer"; none where there is no such file."""
        if f"{name}.safetensors" not in self.state["files"]:
            return {}
        return safetensors.torch.load_file(self.path / f"{name}.safetensors")


def save(folder: Path, *, step: int, groups: Mapping[str, Tensors], state: Json) -> Path:
    """Writes `folder/step-N` under another name, flushes it to the disk, and renames it."""
    partial, final = folder / f"{HIDDEN}step-{step}.partial", folder / f"step-{step}"
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        sums = {}
        for name, tensors in groups.items():
            content = safetensors.torch.save({key: value.detach().contiguous() for key, value in tensors.items()})
            write_file(partial / f"{name}.safetensors", content)
            sums[f"{name}.safetensors"] = hashlib.sha256(content).hexdigest()
        record = {"schema_version": SCHEMA, "step": step, **state, "files": sums}
        write_file(partial / STATE, sealed(record))
        sync_folder(partial)
        remove(final)  # a corrupt one of the same step
        partial.rename(final)
        sync_folder(folder)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        kept = newest_name(folder)
        raise SaccadeError(
            f"cannot write checkpoint '{final}': {error.strerror or error}; "
            f"{f'the last whole one is {kept}' if kept else 'there is none before it'}; make room, then resume the run"
        ) from None
    return final


def latest(folder: Path, *, warn: Callable[[str], None]) -> Checkpoint | None:
    """The newest whole checkpoint; each broken one is named and the one before it is tried."""
    found = steps(folder)
    for step in found:
        path = folder / f"step-{step}"
        try:
            return Checkpoint(path, verified(path))
        except BROKEN as error:
            if isinstance(error, SaccadeError):
                raise
            warn(f"checkpoint '{path}' is broken ({error}); the one before it is used")
    if found:
        raise SaccadeError(f"none of the {len(found)} checkpoints in '{folder}' can be read; start the run anew")
    return None


def whole(folder: Path, wanted: Iterable[int], *, warn: Callable[[str], None]) -> list[Checkpoint]:
    """Those of the wanted checkpoints that are as they were written; the others are named."""
    found = []
    for path in (folder / f"step-{step}" for step in wanted):
        try:
            found.append(Checkpoint(path, verified(path)))
        except BROKEN as error:
            warn(f"checkpoint '{path}' is broken ({error}); it is left out of the mean")
    return found


def verified(path: Path) -> dict[str, Any]:
    """The state of a checkpoint whose files are all as they were written."""
    state = json.loads((path / STATE).read_text(encoding="utf-8"))
    version = state["schema_version"]
    if version > SCHEMA:
        raise SaccadeError(
            f"checkpoint '{path}' has version {version}, this saccade reads up to {SCHEMA}; "
            "a newer saccade wrote it: pip install --upgrade saccade"
        )
    seal = state.pop("seal")
    if seal != digest(state):
        raise ValueError(f"{STATE} was changed")
    for name, expected in state["files"].items():
        with (path / name).open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != expected:
                raise ValueError(f"{name} is not what was written")
    return dict(state)


def steps(folder: Path) -> list[int]:
    """The steps that have a checkpoint, newest first."""
    return numbers(folder, NAME)


def numbers(folder: Path, name: re.Pattern[str]) -> list[int]:
    """The steps in names of this form, newest first."""
    if not folder.is_dir():
        return []
    names = (name.fullmatch(item.name) for item in folder.iterdir())
    return sorted((int(match[1]) for match in names if match), reverse=True)


def best_path(folder: Path, step: int) -> Path:
    return folder / f"best-{step}.safetensors"


def newest_name(folder: Path) -> str:
    """The newest checkpoint that is whole; no name where there is none."""
    for step in steps(folder):
        with contextlib.suppress(*BROKEN, SaccadeError):
            verified(folder / f"step-{step}")
            return f"step-{step}"
    return ""


def prune(folder: Path, *, keep: int, needed: Iterable[int]) -> None:
    """Removes all but the newest `keep` checkpoints, those of the `needed` steps, and what was best at each of them."""
    spared = set(needed) | set(steps(folder)[:keep])
    for step in steps(folder):
        if step not in spared:
            remove(folder / f"step-{step}")
    kept, bests = steps(folder), numbers(folder, BEST)
    wanted = {next((best for best in bests if best <= step), None) for step in kept}
    for best in bests:
        if best not in wanted:
            best_path(folder, best).unlink(missing_ok=True)


def cut(folder: Path, *, step: int, warn: Callable[[str], None]) -> None:
    """Removes what is newer than the step a run goes on from: a broken checkpoint would outlive the whole ones."""
    for newer in steps(folder):
        if newer > step:
            warn(f"checkpoint '{folder / f'step-{newer}'}' is removed")
            remove(folder / f"step-{newer}")
    for newer in numbers(folder, BEST):
        if newer > step:
            best_path(folder, newer).unlink(missing_ok=True)


def remove(path: Path) -> None:
    """Removes a checkpoint, under another name, so that no half of one is ever found."""
    if path.exists():
        leaving = path.with_name(f"{HIDDEN}{path.name}.leaving")
        shutil.rmtree(leaving, ignore_errors=True)
        path.rename(leaving)
        shutil.rmtree(leaving, ignore_errors=True)


def tidy(folder: Path) -> None:
    """Removes what a killed process left half written or half removed."""
    if folder.is_dir():
        for item in folder.iterdir():
            if item.name.startswith(f"{HIDDEN}step-"):
                shutil.rmtree(item, ignore_errors=True)
            elif item.name.startswith(f"{HIDDEN}best-"):
                item.unlink(missing_ok=True)


def sealed(record: Mapping[str, Any]) -> bytes:
    """The record as JSON, with a digest of itself."""
    return json.dumps({**record, "seal": digest(record)}, indent=1).encode()


def digest(record: Mapping[str, Any]) -> str:
    """Of the record as it is read again: JSON turns numbers that are keys into text, which sorts otherwise."""
    read = json.loads(json.dumps(record))
    return hashlib.sha256(json.dumps(read, sort_keys=True).encode()).hexdigest()


def write_file(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Makes names in a folder last through a power failure; systems that cannot open folders do it themselves."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
