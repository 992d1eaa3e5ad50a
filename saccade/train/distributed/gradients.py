"""Gradients in few flat tensors, which processes sum with one collective operation each after the backward pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from saccade.train.batches.pack import round_up
from saccade.train.distributed.parts import get_local, wrap_local
from saccade.train.distributed.ranks import Ranks

BUCKET_SIZE = 2**23  # gradients that are exchanged together: 32 MiB in float32
ALIGNMENT = 64  # numbers: where the gradients of a parameter may begin, so that kernels can load several at once
EPSILON = 1e-6  # added to the norm of gradients, as torch does


class Gradient(NamedTuple):
    parameter: nn.Parameter
    view: Tensor  # of a flat tensor; a DTensor if the parameter is one
    local: Tensor  # the same of this process


class GradientBuckets:
    """The gradients of a module's trained parameters as views of flat tensors that stay at their place in memory.

    Backward passes add to them, those in CUDA graphs too. DistributedDataParallel exchanges gradients during the
    backward pass instead, which then must succeed in every process and cannot be a CUDA graph. Of a sharded module they
    are the parts of this process.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.flat: list[Tensor] = []
        self.gradients: list[Gradient] = []
        for parameters in split_into_buckets(one for one in module.parameters() if one.requires_grad):
            parts = [get_local(parameter.detach()) for parameter in parameters]
            sizes = [round_up(part.numel(), ALIGNMENT) for part in parts]
            flat = torch.zeros(sum(sizes), dtype=parts[0].dtype, device=parts[0].device)
            self.flat.append(flat)
            for parameter, part, space in zip(parameters, parts, flat.split(sizes), strict=True):
                local = space[: part.numel()].view_as(part)
                self.gradients.append(Gradient(parameter, wrap_local(local, like=parameter), local))

    def zero(self) -> None:
        """Set all gradients to 0."""
        self.attach()
        for flat in self.flat:
            flat.zero_()

    def attach(self) -> None:
        for parameter, view, _ in self.gradients:
            parameter.grad = view

    @contextmanager
    def add_backward(self) -> Iterator[None]:
        """Add the gradients of a backward pass inside the block all at once; autograd would add them one by one."""
        for parameter, _, _ in self.gradients:
            parameter.grad = None
        yield
        found = [(local, get_local(one.grad)) for one, _, local in self.gradients if one.grad is not None]
        if found:
            sums, new = zip(*found, strict=True)
            torch._foreach_add_(sums, new)
        self.attach()

    def sum_over_ranks(self, ranks: Ranks) -> None:
        """Sum the gradients over all processes; the module's buffers become those of rank 0, as with DDP."""
        if ranks.is_distributed:
            for flat in self.flat:
                ranks.all_reduce(flat)
            for buffer in self.module.buffers():
                dist.broadcast(buffer, src=0)


def split_into_buckets(parameters: Iterable[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Split parameters into lists of one dtype and at least BUCKET_SIZE numbers, except the last one of each dtype."""
    lists: dict[torch.dtype, list[nn.Parameter]] = {}
    for parameter in parameters:
        bucket = lists.setdefault(parameter.dtype, [])
        bucket.append(parameter)
        if sum(one.numel() for one in bucket) >= BUCKET_SIZE:
            yield lists.pop(parameter.dtype)
    yield from lists.values()


@torch.no_grad()
def clip_gradients(parameters: Iterable[nn.Parameter], limit: float, *, ranks: Ranks) -> None:
    """Scale down the gradients if their norm over all processes is above a limit."""
    if ranks.mesh is None or ranks.tensor > 1:
        torch.nn.utils.clip_grad_norm_(parameters, limit)
        return
    # Each process has a part of every gradient; operations on DTensors would exchange one norm after the other.
    gradients = [get_local(parameter.grad) for parameter in parameters if parameter.grad is not None]
    square = torch.nn.utils.get_total_norm(gradients).square()
    dist.all_reduce(square, group=ranks.mesh["shard"].get_group())
    torch._foreach_mul_(gradients, (limit / (square.sqrt() + EPSILON)).clamp(max=1.0))
