"""Optimizer steps as CUDA graphs, one for each batch shape: one launch instead of some thousand."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch

from saccade.data.batching.batch import Batch
from saccade.train.batches.pack import clone_batch, get_shape_key, get_tensors
from saccade.train.loss import LossSums

Step = Callable[[Batch], LossSums]


@dataclass(frozen=True)
class CapturedGraph:
    """A CUDA graph with its static input batch and output sums."""

    graph: Any
    batch: Batch
    sums: LossSums


class CudaGraphs:
    """Runs a step eagerly the first time a batch shape occurs, captures it the second time, and replays it afterwards.

    The step must not synchronize with the device, and its tensors must have the same sizes for the same shape.
    """

    def __init__(self, step: Step, *, generator: torch.Generator) -> None:
        self.step, self.generator = step, generator
        self.stream = torch.cuda.Stream()
        self.pool = torch.cuda.graph_pool_handle()
        self.seen_shapes: set[Hashable] = set()
        self.captured: dict[Hashable, CapturedGraph] = {}

    def __call__(self, batch: Batch) -> LossSums:
        shape = get_shape_key(batch)
        if shape not in self.seen_shapes:
            self.seen_shapes.add(shape)
            return self._run_eagerly(batch)
        if shape not in self.captured:
            self.captured[shape] = self._capture(batch)
        captured = self.captured[shape]
        for static, new in zip(get_tensors(captured.batch), get_tensors(batch), strict=True):
            static.copy_(new)
        captured.graph.replay()
        return captured.sums

    def _run_eagerly(self, batch: Batch) -> LossSums:
        """Run the step on the capture stream, so that autograd and cuBLAS initialize their state for it."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            sums = self.step(batch)
        torch.cuda.current_stream().wait_stream(self.stream)
        return sums

    def _capture(self, batch: Batch) -> CapturedGraph:
        static = clone_batch(batch)
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.generator)
        # The prefetching thread copies batches to the device meanwhile, which the mode "global" would forbid.
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
            sums = self.step(static)
        return CapturedGraph(graph, static, sums)
