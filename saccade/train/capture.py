"""An optimizer step as CUDA graphs, one for each shape of batch: one launch instead of some thousand."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch

from saccade.data.batching.batch import Batch
from saccade.train.batches.pack import cloned, shape_of, tensors_of
from saccade.train.loss import Sums

Step = Callable[[Batch], Sums]


@dataclass(frozen=True)
class Captured:
    """A graph, the batch that it reads, and the sums that it writes."""

    graph: Any
    batch: Batch
    sums: Sums


class Graphs:
    """Steps on batches of few shapes. A shape that comes for the first time is computed plainly, then captured.

    The step must have one size for one shape, and must not ask the device for values.
    """

    def __init__(self, step: Step, *, generator: torch.Generator) -> None:
        self.step, self.generator = step, generator
        self.stream = torch.cuda.Stream()
        self.pool = torch.cuda.graph_pool_handle()
        self.met: set[Hashable] = set()
        self.captured: dict[Hashable, Captured] = {}

    def __call__(self, batch: Batch) -> Sums:
        shape = shape_of(batch)
        if shape not in self.met:
            self.met.add(shape)
            return self._plainly(batch)
        if shape not in self.captured:
            self.captured[shape] = self._capture(batch)
        known = self.captured[shape]
        for static, new in zip(tensors_of(known.batch), tensors_of(batch), strict=True):
            static.copy_(new)
        known.graph.replay()
        return known.sums

    def _plainly(self, batch: Batch) -> Sums:
        """On the stream of the graphs, so that what autograd and cuBLAS set up for it is there for them."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            sums = self.step(batch)
        torch.cuda.current_stream().wait_stream(self.stream)
        return sums

    def _capture(self, batch: Batch) -> Captured:
        static = cloned(batch)
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.generator)
        # Another thread brings the next batches to the device meanwhile, which only "global" would forbid.
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
            sums = self.step(static)
        return Captured(graph, static, sums)
