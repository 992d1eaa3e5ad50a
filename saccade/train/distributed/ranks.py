"""Data-parallel training with DistributedDataParallel: `torchrun --nproc-per-node N -m saccade train ...`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from saccade.errors import SaccadeError

Result = TypeVar("Result")
_finished_barrier: list[dist.Work] = []
BUCKET_SIZE = 2**23  # gradients that are exchanged together: 32 MiB in float32
TIMEOUT = timedelta(hours=2)  # other ranks wait while rank 0 prepares data or decodes for validation


@dataclass(frozen=True)
class Ranks:
    """The rank of this process among all; without torchrun there is one."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0  # on this machine

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, the only one that writes files and prints."""
        return self.rank == 0

    def all_reduce(self, value: Tensor) -> Tensor:
        """Sum a tensor over all processes, in place."""
        if self.world_size > 1:
            dist.all_reduce(value)
        return value

    def any_rank(self, flag: bool, device: torch.device) -> bool:
        """Whether the flag is set in any process; all processes must call this at the same step."""
        if self.world_size == 1:
            return flag
        return bool(self.all_reduce(torch.tensor(int(flag), device=device)).item())

    def run_main_first(self, make: Callable[[], Result]) -> Result:
        """Call `make` on rank 0, which writes its result to disk, then on the others, which find it there."""
        if self.world_size == 1:
            return make()
        made = make() if self.is_main else None
        self.barrier()
        result = make() if made is None else made
        self.barrier()
        return result

    def barrier(self) -> None:
        """Wait until all processes are here.

        The finished operation is kept: if a thread of Gloo dropped the last reference to it, that thread would wait for
        the GIL, which the main thread holds while it waits for the thread at the end of the process group.
        """
        if self.world_size > 1:
            work = dist.barrier(async_op=True)
            work.wait()
            _finished_barrier[:] = [work]

    def wrap_ddp(self, module: nn.Module, device: torch.device) -> nn.Module:
        """Wrap a module in DistributedDataParallel, which averages gradients over processes and broadcasts weights."""
        if self.world_size == 1:
            return module
        return DistributedDataParallel(module, device_ids=[device.index] if device.type == "cuda" else None)

    def skip_sync_unless_last(self, module: nn.Module, *, last: bool) -> AbstractContextManager[None]:
        """Skip the synchronization of gradients for all but the last micro-batch of a step."""
        if isinstance(module, DistributedDataParallel) and not last:
            return module.no_sync()
        return contextlib.nullcontext()

    @torch.no_grad()
    def average_gradients(self, module: nn.Module) -> None:
        """Average the gradients of a module over all processes, in buckets; its buffers become those of rank 0.

        DistributedDataParallel does this during the backward pass, which then must succeed in every process.
        """
        if self.world_size == 1:
            return
        for buffer in module.buffers():
            dist.broadcast(buffer, src=0)
        bucket: list[Tensor] = []
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                bucket.append(parameter.grad)
            if sum(gradient.numel() for gradient in bucket) >= BUCKET_SIZE:
                self._average(bucket)
                bucket = []
        self._average(bucket)

    def _average(self, tensors: Sequence[Tensor]) -> None:
        """Average tensors over all processes, in place, with one all-reduce."""
        if tensors:
            flat = self.all_reduce(torch.cat([tensor.flatten() for tensor in tensors]) / self.world_size)
            for tensor, mean in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):
                tensor.copy_(mean.view_as(tensor))

    def close(self) -> None:
        if self.world_size > 1 and dist.is_initialized():
            dist.destroy_process_group()


def init_distributed(device: torch.device) -> tuple[Ranks, torch.device]:
    """Join the process group that torchrun describes; return this process's ranks and device."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        return Ranks(), device
    ranks = Ranks(int(os.environ["RANK"]), world, int(os.environ.get("LOCAL_RANK", os.environ["RANK"])))
    if device.type == "cuda":
        if ranks.local_rank >= torch.cuda.device_count():
            raise SaccadeError(
                f"process {ranks.local_rank} of this machine has no GPU: there are {torch.cuda.device_count()}; "
                "start as many processes as GPUs (torchrun --nproc-per-node), or set train.device=cpu"
            )
        device = torch.device("cuda", ranks.local_rank)
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=TIMEOUT)
    return ranks, device
