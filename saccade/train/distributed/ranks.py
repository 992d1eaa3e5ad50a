"""One process or many: the same loop. `torchrun --nproc-per-node N -m saccade train ...` starts many."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from saccade.errors import SaccadeError

Made = TypeVar("Made")
PATIENCE = timedelta(hours=2)  # the others wait while the first one prepares data or decodes for validation


@dataclass(frozen=True)
class Ranks:
    """Which of the processes this one is; without torchrun, the only one."""

    rank: int = 0
    world: int = 1
    local: int = 0  # among those on this machine

    @property
    def main(self) -> bool:
        """Only this process writes files and talks."""
        return self.rank == 0

    def total(self, value: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.world > 1:
            dist.all_reduce(value)
        return value

    def any(self, flag: bool, device: torch.device) -> bool:
        """Whether the flag stands in any process; all of them must ask at the same step."""
        if self.world == 1:
            return flag
        return bool(self.total(torch.tensor(int(flag), device=device)).item())

    def first(self, make: Callable[[], Made]) -> Made:
        """The first process makes something on disk, then the others find it there."""
        if self.world == 1:
            return make()
        made = make() if self.main else None
        dist.barrier()
        again = make() if made is None else made
        dist.barrier()
        return again

    def wait(self) -> None:
        if self.world > 1:
            dist.barrier()

    def wrap(self, module: nn.Module, device: torch.device) -> nn.Module:
        """Gradients of a wrapped module are means over the processes; its weights start as those of the first."""
        if self.world == 1:
            return module
        return DistributedDataParallel(module, device_ids=[device.index] if device.type == "cuda" else None)

    def quiet(self, module: nn.Module, *, last: bool) -> AbstractContextManager[None]:
        """No talk between processes before the last micro-batch of a step."""
        if isinstance(module, DistributedDataParallel) and not last:
            return module.no_sync()
        return contextlib.nullcontext()

    def close(self) -> None:
        if self.world > 1 and dist.is_initialized():
            dist.destroy_process_group()


def join(device: torch.device) -> tuple[Ranks, torch.device]:
    """This process's place among those that torchrun started, and its device."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        return Ranks(), device
    ranks = Ranks(int(os.environ["RANK"]), world, int(os.environ.get("LOCAL_RANK", os.environ["RANK"])))
    if device.type == "cuda":
        if ranks.local >= torch.cuda.device_count():
            raise SaccadeError(
                f"process {ranks.local} of this machine has no GPU: there are {torch.cuda.device_count()}; "
                "start as many processes as GPUs (torchrun --nproc-per-node), or set train.device=cpu"
            )
        device = torch.device("cuda", ranks.local)
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=PATIENCE)
    return ranks, device
