"""Checkpoints that several processes write together, with torch.distributed.checkpoint as safetensors.

Each process writes its part of every tensor to files of its own, in a thread, while training goes on; tensors that all
processes hold are shared among them. Any number of processes, in any layout, can read them. Only tensors go this way:
torch.distributed.checkpoint would serialize other objects in a format that can run code when it is read. Names have the
group in front: "model.NAME", "optimizer.exp_avg:NAME", "ema.NAME".
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.checkpoint.storage import WriteResult

from saccade.train import checkpoint
from saccade.train.checkpoint import Json

DIGESTS = "digests"  # suffix of a file with the digests of the files of one process, until rank 0 has collected them


class ShardWriter(HuggingFaceStorageWriter):
    """Writes the files of this process with their digests; rank 0 adds `state` and renames the folder at the end."""

    def __init__(self, folder: Path, *, step: int, state: Json, names: Mapping[str, int]) -> None:
        self.folder, self.step, self.state = folder, step, state
        self.partial = checkpoint.get_partial_path(folder, step)
        super().__init__(str(self.partial), fqn_to_index_mapping=dict(names), save_distributed=True)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> torch.futures.Future[list[WriteResult]]:
        written = super().write_data(plan, planner)
        results = written.wait()
        sums = {}
        for name in sorted({result.storage_data.relative_path for result in results}):
            with (self.partial / name).open("rb") as file:
                sums[name] = hashlib.file_digest(file, "sha256").hexdigest()
        if sums:
            checkpoint.write_file(self.partial / f"{min(sums)}.{DIGESTS}", json.dumps(sums).encode())
        return written

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        sums: dict[str, str] = {}
        for path in sorted(self.partial.glob(f"*.{DIGESTS}")):
            sums |= json.loads(path.read_text(encoding="utf-8"))
            path.unlink()
        record = {"schema_version": checkpoint.SHARDED_VERSION, "step": self.step, **self.state, "files": sums}
        checkpoint.complete_folder(self.folder, step=self.step, record=record)


def start_saving(
    folder: Path, *, step: int, groups: Mapping[str, Mapping[str, Tensor]], state: Json, process_group: Any
) -> Future[Any]:
    """Copy all tensors and write them as `folder/step-N` in a thread; all processes must call this.

    When the future is done in all processes, the checkpoint is complete; before, `folder` has none of this step.
    """
    tensors, files = {}, {}
    for number, (group, members) in enumerate(groups.items(), start=1):
        for name, tensor in members.items():
            tensors[f"{group}.{name}"], files[f"{group}.{name}"] = tensor.detach(), number
    writer = ShardWriter(folder, step=step, state=state, names=files)
    future: Any = async_save(tensors, storage_writer=writer, process_group=process_group)
    return future


def read_shapes(path: Path, group: str) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Return shape and dtype of all tensors of a group, by name."""
    found = HuggingFaceStorageReader(str(path)).read_metadata().state_dict_metadata
    return {
        name.removeprefix(f"{group}."): (tensor.size, tensor.properties.dtype)
        for name, tensor in found.items()
        if name.startswith(f"{group}.") and isinstance(tensor, TensorStorageMetadata)
    }


def read_whole(path: Path, group: str) -> dict[str, Tensor]:
    """Read all tensors of a group, whole, on the CPU."""
    tensors = {name: torch.empty(size, dtype=dtype) for name, (size, dtype) in read_shapes(path, group).items()}
    read_into(path, group, tensors)
    return tensors


def read_into(path: Path, group: str, targets: Mapping[str, Tensor]) -> None:
    """Read tensors of a group into these, in place; of a DTensor only the part of this process is read."""
    wanted: dict[str, Any] = {f"{group}.{name}": tensor for name, tensor in targets.items()}
    with warnings.catch_warnings():  # that every process reads for itself is meant
        warnings.simplefilter("ignore", UserWarning)
        load(wanted, storage_reader=HuggingFaceStorageReader(str(path)), no_dist=True)
