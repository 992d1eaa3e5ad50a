"""Checkpoints in `checkpoints/step-N/`: safetensors and JSON without pickle, written atomically.

One process writes whole tensors, one file for each group of them. Several processes write parts of tensors, see
distributed/sharded_checkpoint.py. Both kinds can be read with any number of processes.
"""

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
import torch
from torch import Tensor, nn

from saccade.errors import SaccadeError
from saccade.model.run import named_weights
from saccade.train.distributed.parts import copy_part

WHOLE_VERSION, SHARDED_VERSION = 1, 2  # of the format; raised when it changes incompatibly
STATE_FILE = "state.json"
STEP_FOLDER = re.compile(r"step-(\d+)")
BEST_FILE = re.compile(r"best-(\d+)\.safetensors")  # weights of the best step in validation so far
HIDDEN_PREFIX = "."  # of folders that are being written or removed

# Raised by reading a damaged checkpoint
READ_ERRORS = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)

Tensors = Mapping[str, Tensor]
Json = Mapping[str, Any]


@dataclass(frozen=True)
class Checkpoint:
    path: Path
    state: dict[str, Any]

    @property
    def step(self) -> int:
        return int(self.state["step"])

    def load_tensors(self, name: str) -> dict[str, Tensor]:
        """Load the tensors of one file, such as "model" or "optimizer"; {} if the checkpoint has no such file."""
        if self.is_sharded:
            from saccade.train.distributed import sharded_checkpoint

            return sharded_checkpoint.read_whole(self.path, name)
        if f"{name}.safetensors" not in self.state["files"]:
            return {}
        return safetensors.torch.load_file(self.path / f"{name}.safetensors")

    def load_shapes(self, name: str) -> dict[str, tuple[torch.Size, torch.dtype]]:
        """Return shape and dtype of the tensors of a group; {} if the checkpoint has no such group."""
        if self.is_sharded:
            from saccade.train.distributed import sharded_checkpoint

            return sharded_checkpoint.read_shapes(self.path, name)
        if f"{name}.safetensors" not in self.state["files"]:
            return {}
        with safetensors.safe_open(self.path / f"{name}.safetensors", framework="pt") as file:
            tensors = ((key, file.get_tensor(key)) for key in file.keys())  # noqa: SIM118
            return {key: (tensor.shape, tensor.dtype) for key, tensor in tensors}

    def check_shapes(self, model: nn.Module) -> None:
        """Raise unless the checkpoint has exactly the tensors of a model, as it has if the recipe was not edited."""
        expected = {name: tuple(tensor.shape) for name, tensor in named_weights(model).items()}
        shapes = {name: tuple(shape) for name, (shape, _) in self.load_shapes("model").items()}
        hint = "put recipe.toml back as it was, or train a new run"
        for name in sorted(expected.keys() | shapes.keys()):
            if name not in shapes or name not in expected:
                problem = "lacks" if name not in shapes else "has an unknown"
                raise SaccadeError(f"{self.path} {problem} tensor {name!r}; {hint}")
            if shapes[name] != expected[name]:
                problem = f"{name} must be {expected[name]} by the recipe, got {shapes[name]}"
                raise SaccadeError(f"{self.path}: {problem}; {hint}")

    def load_into(self, name: str, targets: Tensors) -> None:
        """Load tensors of a group into these, in place; of a DTensor only the part of this process."""
        if self.is_sharded:
            from saccade.train.distributed import sharded_checkpoint

            sharded_checkpoint.read_into(self.path, name, targets)
            return
        with safetensors.safe_open(self.path / f"{name}.safetensors", framework="pt") as file:
            for key, target in targets.items():
                copy_part(target, file.get_tensor(key))

    @property
    def is_sharded(self) -> bool:
        return bool(self.state["schema_version"] == SHARDED_VERSION)


def get_partial_path(folder: Path, step: int) -> Path:
    """Return the folder of a checkpoint while it is being written."""
    return folder / f"{HIDDEN_PREFIX}step-{step}.partial"


def complete_folder(folder: Path, *, step: int, record: Json) -> Path:
    """Write the record of a checkpoint whose tensors are written, flush it to disk and give it its name."""
    partial, final = get_partial_path(folder, step), folder / f"step-{step}"
    write_file(partial / STATE_FILE, serialize_with_digest(record))
    sync_folder(partial)
    remove(final)  # a damaged one of the same step
    partial.rename(final)
    sync_folder(folder)
    return final


def save(folder: Path, *, step: int, groups: Mapping[str, Tensors], state: Json) -> Path:
    """Write `folder/step-N` under a temporary name, flush it to disk and rename it."""
    partial = get_partial_path(folder, step)
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        sums = {}
        for name, tensors in groups.items():
            content = safetensors.torch.save({key: value.detach().contiguous() for key, value in tensors.items()})
            write_file(partial / f"{name}.safetensors", content)
            sums[f"{name}.safetensors"] = hashlib.sha256(content).hexdigest()
        record = {"schema_version": WHOLE_VERSION, "step": step, **state, "files": sums}
        return complete_folder(folder, step=step, record=record)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise build_write_error(folder, step, error) from None


def build_write_error(folder: Path, step: int, error: OSError) -> SaccadeError:
    newest = find_newest_name(folder)
    return SaccadeError(
        f"cannot write checkpoint '{folder / f'step-{step}'}': {error.strerror or error}; "
        f"{f'the last intact one is {newest}' if newest else 'there is none before it'}; free disk space, then "
        "resume the run"
    )


def load_latest(folder: Path, *, warn: Callable[[str], None]) -> Checkpoint | None:
    """Load the newest intact checkpoint, with a warning for each damaged one; None if there are no checkpoints."""
    found = list_steps(folder)
    for step in found:
        path = folder / f"step-{step}"
        try:
            return Checkpoint(path, read_verified_state(path))
        except READ_ERRORS as error:
            if isinstance(error, SaccadeError):
                raise
            warn(f"checkpoint '{path}' is damaged ({error}); the one before it is used")
    if found:
        raise SaccadeError(f"none of the {len(found)} checkpoints in '{folder}' can be read; start the run anew")
    return None


def load_step(folder: Path, step: int) -> Checkpoint:
    """Load the checkpoint of a step, whose digests another process has verified."""
    path = folder / f"step-{step}"
    return Checkpoint(path, json.loads((path / STATE_FILE).read_text(encoding="utf-8")))


def load_intact(folder: Path, steps: Iterable[int], *, warn: Callable[[str], None]) -> list[Checkpoint]:
    """Load the checkpoints of these steps, with a warning for each damaged one, which is left out."""
    found = []
    for path in (folder / f"step-{step}" for step in steps):
        try:
            found.append(Checkpoint(path, read_verified_state(path)))
        except READ_ERRORS as error:
            warn(f"checkpoint '{path}' is damaged ({error}); it is left out of the mean")
    return found


def read_verified_state(path: Path) -> dict[str, Any]:
    """Read the state of a checkpoint and verify the digests of all its files; raises ValueError if one differs."""
    state = json.loads((path / STATE_FILE).read_text(encoding="utf-8"))
    version = state["schema_version"]
    if version > SHARDED_VERSION:
        raise SaccadeError(
            f"checkpoint '{path}' has version {version}, this saccade reads up to {SHARDED_VERSION}; "
            "a newer saccade wrote it: pip install --upgrade saccade"
        )
    seal = state.pop("seal")
    if seal != compute_digest(state):
        raise ValueError(f"{STATE_FILE} was changed")
    for name, expected in state["files"].items():
        with (path / name).open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != expected:
                raise ValueError(f"{name} differs from its SHA-256 digest")
    return dict(state)


def list_steps(folder: Path) -> list[int]:
    """List the steps that have a checkpoint, newest first."""
    return list_numbers(folder, STEP_FOLDER)


def list_numbers(folder: Path, pattern: re.Pattern[str]) -> list[int]:
    """List the step numbers in file names that match a pattern, newest first."""
    if not folder.is_dir():
        return []
    names = (pattern.fullmatch(item.name) for item in folder.iterdir())
    return sorted((int(match[1]) for match in names if match), reverse=True)


def get_best_path(folder: Path, step: int) -> Path:
    return folder / f"best-{step}.safetensors"


def find_newest_name(folder: Path) -> str:
    """Return the name of the newest intact checkpoint; "" if there is none."""
    for step in list_steps(folder):
        with contextlib.suppress(*READ_ERRORS, SaccadeError):
            read_verified_state(folder / f"step-{step}")
            return f"step-{step}"
    return ""


def prune(folder: Path, *, keep: int, needed: Iterable[int], current: int = 0) -> None:
    """Remove old checkpoints, except the newest `keep`, the `needed` ones, and the best weights as of each of these.

    The best weights as of `current`, the step that training has reached, stay too.
    """
    kept_steps = set(needed) | set(list_steps(folder)[:keep])
    for step in list_steps(folder):
        if step not in kept_steps:
            remove(folder / f"step-{step}")
    remaining, bests = [current, *list_steps(folder)], list_numbers(folder, BEST_FILE)
    needed_bests = {next((best for best in bests if best <= step), None) for step in remaining}
    for best in bests:
        if best not in needed_bests:
            get_best_path(folder, best).unlink(missing_ok=True)


def remove_newer(folder: Path, *, step: int, warn: Callable[[str], None]) -> None:
    """Remove checkpoints newer than the step a run resumes from: `prune` would keep a damaged one as the newest."""
    for newer in list_steps(folder):
        if newer > step:
            warn(f"checkpoint '{folder / f'step-{newer}'}' is removed")
            remove(folder / f"step-{newer}")
    for newer in list_numbers(folder, BEST_FILE):
        if newer > step:
            get_best_path(folder, newer).unlink(missing_ok=True)


def remove(path: Path) -> None:
    """Rename a checkpoint, then remove it, so that a partly removed one is never found."""
    if path.exists():
        leaving = path.with_name(f"{HIDDEN_PREFIX}{path.name}.leaving")
        shutil.rmtree(leaving, ignore_errors=True)
        path.rename(leaving)
        shutil.rmtree(leaving, ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    """Remove partly written or partly removed files of a killed process."""
    if folder.is_dir():
        for item in folder.iterdir():
            if item.name.startswith(f"{HIDDEN_PREFIX}step-"):
                shutil.rmtree(item, ignore_errors=True)
            elif item.name.startswith(f"{HIDDEN_PREFIX}best-"):
                item.unlink(missing_ok=True)


def serialize_with_digest(record: Mapping[str, Any]) -> bytes:
    """Serialize a record as JSON, with a digest of itself under "seal"."""
    return json.dumps({**record, "seal": compute_digest(record)}, indent=1).encode()


def compute_digest(record: Mapping[str, Any]) -> str:
    """Hash a record after a round trip through JSON, which turns integer keys into strings that sort differently."""
    parsed = json.loads(json.dumps(record))
    return hashlib.sha256(json.dumps(parsed, sort_keys=True).encode()).hexdigest()


def write_file(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to disk, so that a rename survives a power failure (POSIX only)."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
