"""The processes of a training that torchrun or --processes started, and what they exchange."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from saccade.errors import LocalError, SaccadeError

Result = TypeVar("Result")
_finished_barrier: list[dist.Work] = []
SLOW_TIMEOUT = timedelta(hours=6)  # the other ranks wait while rank 0 tokenizes the data
CHECKPOINT_TIMEOUT = timedelta(hours=1)  # until all ranks have written their part


@dataclass(frozen=True)
class Ranks:
    """The rank of this process among all; without torchrun there is one.

    Ranks that split matrix products (tensor parallelism) are neighbours and get the same micro-batches.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0  # on this machine
    tensor: int = 1  # processes that share each micro-batch
    mesh: Any = None  # DeviceMesh with the dimensions data, shard, tensor; None for plain data parallelism
    batch_group: Any = None  # processes with the same place in the dimension tensor; None: all
    slow_group: Any = None  # all processes on the CPU, for what may take long, such as preparing data
    checkpoint_group: Any = None  # the same for threads that write checkpoints

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, the only one that writes files and prints."""
        return self.rank == 0

    @property
    def is_distributed(self) -> bool:
        """Whether a process group connects the processes; one process can have one too, to measure its cost."""
        return self.slow_group is not None

    @property
    def batch_rank(self) -> int:
        """Place of this process among those that share the micro-batches of a step."""
        return self.rank // self.tensor

    @property
    def batch_world(self) -> int:
        """Number of processes that share the micro-batches of a step: data x shard."""
        return self.world_size // self.tensor

    def all_reduce(self, value: Tensor) -> Tensor:
        """Sum a tensor over the processes that share the micro-batches of a step, in place."""
        if self.is_distributed:
            dist.all_reduce(value, group=self.batch_group)
        return value

    def any_rank(self, flag: bool, device: torch.device) -> bool:
        """Whether the flag is set in any process; all processes must call this at the same step."""
        if not self.is_distributed:
            return flag
        total = torch.tensor(int(flag), device=device)
        dist.all_reduce(total)
        return bool(total.item())

    def all_equal(self, value: Hashable) -> bool:
        """Whether a value, which is compared by its text, is the same in all processes; the device does not wait."""
        if self.world_size == 1:
            return True
        number = int.from_bytes(hashlib.blake2b(repr(value).encode(), digest_size=7).digest(), "little")
        bounds = torch.tensor([number, -number])
        dist.all_reduce(bounds, op=dist.ReduceOp.MAX, group=self.slow_group)
        return bool(bounds.sum() == 0)

    def broadcast(self, value: Result) -> Result:
        """Return the value of rank 0, which must be serializable as JSON, in all processes."""
        if not self.is_distributed:
            return value
        content = torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8)
        length = torch.tensor(len(content))
        dist.broadcast(length, src=0, group=self.slow_group)
        content = content if self.is_main else torch.empty(int(length), dtype=torch.uint8)
        dist.broadcast(content, src=0, group=self.slow_group)
        return json.loads(bytes(content.tolist()))

    def gather(self, value: Result) -> list[Result]:
        """Return the values of all processes that share the micro-batches, which must be serializable as JSON."""
        if not self.is_distributed:
            return [value]
        content = torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8)
        lengths = torch.zeros(self.world_size, dtype=torch.int64)
        lengths[self.rank] = len(content)
        dist.all_reduce(lengths, group=self.slow_group)
        padded = torch.zeros(int(lengths.max()), dtype=torch.uint8)
        padded[: len(content)] = content
        found = [torch.empty_like(padded) for _ in range(self.world_size)]
        dist.all_gather(found, padded, group=self.slow_group)
        texts = [bytes(part[:length].tolist()) for part, length in zip(found, lengths.tolist(), strict=True)]
        return [json.loads(text) for text in texts[:: self.tensor]]

    def run_main_first(self, make: Callable[[], Result]) -> Result:
        """Call `make` on rank 0, which writes its result to disk, then on the others, which find it there."""
        if not self.is_distributed:
            return make()
        made, error = None, None
        if self.is_main:
            try:
                made = make()
            except SaccadeError as failure:  # the others must not wait for the data of a user's mistake
                error = failure
        if self.broadcast(error is not None):
            raise error or SaccadeError("rank 0 could not prepare the data, and wrote why")
        try:
            result = make() if made is None else made
        except SaccadeError as failure:  # what rank 0 has written cannot be read here
            raise LocalError(f"rank {self.rank}: {failure}") from None
        self.barrier()
        return result

    def barrier(self) -> None:
        """Wait until all processes are here, also while rank 0 takes long.

        The finished operation is kept: if a thread of Gloo dropped the last reference to it, that thread would wait for
        the GIL, which the main thread holds while it waits for the thread at the end of the process group.
        """
        if self.is_distributed:
            work = dist.barrier(group=self.slow_group, async_op=True)
            work.wait()
            _finished_barrier[:] = [work]

    def wrap_ddp(self, module: nn.Module, device: torch.device) -> nn.Module:
        """Wrap a module in DistributedDataParallel, which averages gradients over processes and broadcasts weights.

        A sharded module is left as it is: it averages its gradients itself.
        """
        if not self.is_distributed or self.mesh is not None:
            return module
        return DistributedDataParallel(module, device_ids=[device.index] if device.type == "cuda" else None)

    def skip_sync_unless_last(self, module: nn.Module, *, last: bool) -> AbstractContextManager[None]:
        """Skip the synchronization of gradients for all but the last micro-batch of a step."""
        if isinstance(module, DistributedDataParallel) and not last:
            return module.no_sync()
        return contextlib.nullcontext()

    def broadcast_module(self, module: nn.Module) -> None:
        """Give parameters and buffers of a module the values of rank 0, as DistributedDataParallel does."""
        if self.is_distributed:
            for tensor in (*module.parameters(), *module.buffers()):
                value = tensor.detach().contiguous()  # as NCCL demands
                dist.broadcast(value, src=0)
                tensor.detach().copy_(value)

    def close(self) -> None:
        if self.is_distributed and dist.is_initialized():
            dist.destroy_process_group()


def init_distributed(device: torch.device, *, timeout: float = 600.0) -> tuple[Ranks, torch.device]:
    """Join the process group that torchrun describes; return this process's ranks and device.

    A collective operation fails after `timeout` seconds without one of the processes.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        return Ranks(), device
    ranks = Ranks(int(os.environ["RANK"]), world, int(os.environ.get("LOCAL_RANK", os.environ["RANK"])))
    if device.type == "cuda":
        if ranks.local_rank >= torch.cuda.device_count():
            raise LocalError(
                f"process {ranks.local_rank} of this machine has no GPU: there are {torch.cuda.device_count()}; "
                "start as many processes as GPUs (torchrun --nproc-per-node), or set train.device=cpu"
            )
        device = torch.device("cuda", ranks.local_rank)
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
    slow_group = dist.new_group(backend="gloo", timeout=SLOW_TIMEOUT)
    checkpoint_group = dist.new_group(backend="gloo", timeout=CHECKPOINT_TIMEOUT)
    return dataclasses.replace(ranks, slow_group=slow_group, checkpoint_group=checkpoint_group), device
