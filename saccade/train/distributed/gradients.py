"""Gradients in few flat tensors, which processes sum with one collective operation each after the backward pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn

from saccade.train.batches.pack import round_up
from saccade.train.distributed.ranks import Ranks

BUCKET_SIZE = 2**23  # gradients that are exchanged together: 32 MiB in float32
ALIGNMENT = 64  # numbers: where the gradients of a parameter may begin, so that kernels can load several at once


class GradientBuckets:
    """The gradients of a module's trained parameters as views of flat tensors that stay at their place in memory.

    Backward passes add to them, those in CUDA graphs too. DistributedDataParallel exchanges gradients during the
    backward pass instead, which then must succeed in every process and cannot be a CUDA graph.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.flat: list[Tensor] = []
        self.views: list[tuple[nn.Parameter, Tensor]] = []
        for parameters in split_into_buckets(one for one in module.parameters() if one.requires_grad):
            sizes = [round_up(parameter.numel(), ALIGNMENT) for parameter in parameters]
            flat = torch.zeros(sum(sizes), dtype=parameters[0].dtype, device=parameters[0].device)
            self.flat.append(flat)
            for parameter, part in zip(parameters, flat.split(sizes), strict=True):
                self.views.append((parameter, part[: parameter.numel()].view_as(parameter)))

    def zero(self) -> None:
        """Set all gradients to 0."""
        for parameter, view in self.views:
            parameter.grad = view
        for flat in self.flat:
            flat.zero_()

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
