"""Chooses how the processes of a training share the model (replicas, shards, tensor parallelism)."""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from saccade.config.schema import Recipe, Train
from saccade.config.training import Parallel
from saccade.errors import SaccadeError
from saccade.runs import RECIPE
from saccade.train.distributed.ranks import Ranks
from saccade.train.machine import MEMORY_MARGIN

DIMENSIONS = ("data", "shard", "tensor")  # of the device mesh, the last one between neighbouring ranks
DEFAULT_MICRO_BATCHES = 8  # of a step under torchrun, so that 1, 2, 4 and 8 processes can share them


class ParallelLayout(NamedTuple):
    """Sizes of the dimensions of the device mesh."""

    data: int = 1
    shard: int = 1
    tensor: int = 1

    @property
    def is_plain(self) -> bool:
        """Whether each process has the whole model: DistributedDataParallel, or a single process."""
        return self.shard == self.tensor == 1

    def describe(self) -> str:
        names = {
            "data": f"{self.data} replicas",
            "shard": f"shards of 1/{self.shard} (FSDP2)",
            "tensor": f"matrix products split over {self.tensor}",
        }
        parts = [names[name] for name, size in self._asdict().items() if size > 1]
        return ", ".join(parts) or "one process"


class StateSizes(NamedTuple):
    """Bytes of what a training keeps for a whole model between and during steps."""

    parameters: int
    gradients: int
    optimizer: int
    average: int

    @property
    def total(self) -> int:
        return sum(self)


def get_world_size() -> int:
    """Number of processes that torchrun started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_launched() -> bool:
    """Whether torchrun or --processes started this process, with any number of processes."""
    return get_world_size() > 1 or "TORCHELASTIC_RUN_ID" in os.environ


def choose_micro_batches(settings: Train) -> Train:
    """Return the settings with the number of micro-batches of a step that is stored in a new run."""
    if is_launched() and settings.accumulate == 1:
        return settings.model_copy(update={"accumulate": DEFAULT_MICRO_BATCHES})
    return settings


def accumulates_per_process(run: Path) -> bool:
    """Whether a run was trained up to 0.9, where each process had `train.accumulate` micro-batches of a step."""
    return "parallel" not in tomllib.loads((run / RECIPE).read_text(encoding="utf-8")).get("train", {})


def forget_other_layout(recipe: Recipe, overrides: Sequence[str]) -> Recipe:
    """Return the recipe of a resumed run without sizes of its layout that were meant for other processes.

    Where overrides set one of them, the run's others no longer hold.
    """
    parallel, world = recipe.train.parallel, get_world_size()
    given = {name for name in DIMENSIONS if any(item.startswith(f"train.parallel.{name}=") for item in overrides)}
    fixed = math.prod(size or 1 for size in (parallel.data, parallel.shard, parallel.tensor))
    is_open = None in (parallel.data, parallel.shard)
    if not given and (fixed == world or (is_open and world % fixed == 0)):
        return recipe
    kept = {name: getattr(parallel, name) for name in ("timeout", *given)}
    return recipe.model_copy(update={"train": recipe.train.model_copy(update={"parallel": Parallel(**kept)})})


def choose_parallel_layout(settings: Train, *, world: int, sizes: StateSizes, memory: int) -> ParallelLayout:
    """Choose the sizes of all dimensions; those that the recipe leaves open follow from model size and memory.

    Without `shard`, replicas are sharded only if parameters, gradients and optimizer do not fit into the `memory` of
    one device (bytes), over as few processes as possible.
    """
    wanted = settings.parallel
    rest, remainder = divmod(world, wanted.tensor)
    shard, data = wanted.shard, wanted.data
    if shard is None and data is not None:
        shard = max(1, rest // data)
    if shard is None:
        options = [size for size in range(1, rest + 1) if rest % size == 0]
        enough = [size for size in options if sizes.total / (size * wanted.tensor) <= MEMORY_MARGIN * memory]
        shard = enough[0] if enough else max(rest, 1)
    layout = ParallelLayout(max(1, rest // shard) if data is None else data, shard, wanted.tensor)
    if remainder or layout.data * layout.shard * layout.tensor != world:
        raise SaccadeError(
            f"train.parallel: data x shard x tensor must be the number of processes, {world}, got data={wanted.data}, "
            f"shard={wanted.shard}, tensor={wanted.tensor}; leave data out, or start another number of processes"
        )
    check_micro_batches(settings.accumulate, layout)
    return layout


def check_micro_batches(count: int, layout: ParallelLayout) -> None:
    """Refuse a number of processes that cannot share the micro-batches of a step equally."""
    sharing = layout.data * layout.shard
    if count % sharing:
        valid = ", ".join(str(size) for size in range(1, count + 1) if count % size == 0)
        raise SaccadeError(
            f"a step has train.accumulate={count} micro-batches, which {sharing} processes cannot share equally; start "
            f"{'one of ' if count > 1 else ''}{valid} (x train.parallel.tensor), or set train.accumulate to a multiple "
            f"of {sharing}, which changes the batch"
        )


def check_settings(settings: Train, layout: ParallelLayout) -> None:
    """Refuse settings that need the whole model in each process."""
    if layout.is_plain:
        return
    needs_whole = {
        "train.watch=true": settings.watch,
        'train.on_out_of_memory="split"': settings.on_out_of_memory == "split",
    }
    for name, is_set in needs_whole.items():
        if is_set:
            raise SaccadeError(
                f"{name} needs the whole model in each process, got {layout.describe()}; leave it out, or set "
                "train.parallel.shard=1 and train.parallel.tensor=1"
            )


def measure_states(model: nn.Module, settings: Train) -> StateSizes:
    """Return the bytes of parameters, gradients, Adam's two moments and the moving average of a whole model."""
    parameters = sum(p.numel() * p.element_size() for p in model.parameters())
    trained = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    return StateSizes(parameters, trained, 2 * trained, parameters if settings.ema else 0)


def check_memory(sizes: StateSizes, layout: ParallelLayout, *, memory: int) -> None:
    """Refuse a training whose parameters, gradients and optimizer state alone exceed the memory of a device."""
    each, gib = sizes.total / (layout.shard * layout.tensor), 1024**3
    if each > memory:
        needed = math.ceil(sizes.total / (MEMORY_MARGIN * memory))
        raise SaccadeError(
            f"parameters, gradients and optimizer take {each / gib:,.1f} GiB in each process, whose device has "
            f"{memory / gib:,.1f} GiB; share them between {needed} or more such devices (--processes {needed}), or "
            "train a smaller model, or fewer of its parameters (freeze, train.lora)"
        )


def choose_shard_dim(shape: Sequence[int], size: int, split: Collection[int] = ()) -> int:
    """Return the dimension along which FSDP2 shards a parameter: the first that `size` processes can share evenly.

    Dimensions in `split` are split by tensor parallelism already; without an even one it is the first of all.
    """
    even = (dim for dim, length in enumerate(shape) if length % size == 0 and dim not in split)
    return next(even, 0)


def get_device_memory(device: torch.device, ranks: Ranks) -> int:
    """Return the bytes of memory of this process's device; processes of one machine share that of a CPU."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    local = int(os.environ.get("LOCAL_WORLD_SIZE", ranks.world_size))
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // local
    except (AttributeError, ValueError, OSError):  # not known on this system: assume that the model fits
        return 2**63


def join_mesh(ranks: Ranks, layout: ParallelLayout, device: torch.device) -> Ranks:
    """Create the device mesh of a layout, unless each process has the whole model, and return the ranks with it."""
    if layout.is_plain:
        return ranks
    mesh = init_device_mesh(device.type, tuple(layout), mesh_dim_names=DIMENSIONS)
    batch_group = mesh["data", "shard"]._flatten("batch").get_group()
    return replace(ranks, mesh=mesh, tensor=layout.tensor, batch_group=batch_group)


def describe_layout(layout: ParallelLayout, settings: Train, sizes: StateSizes, *, memory: int) -> str:
    """Describe a layout and the memory that parameters, gradients and optimizer take in each process, in one line."""
    sharing, gib = layout.data * layout.shard, 1024**3
    world, each = sharing * layout.tensor, sizes.total / (layout.shard * layout.tensor)
    return (
        f"{world} processes: {layout.describe()}; {settings.accumulate} micro-batches a step, "
        f"{settings.accumulate // sharing} in each process; about {each / gib:.3g} of {memory / gib:.3g} GiB a process "
        "for parameters, gradients and optimizer, activations not counted"
    )
