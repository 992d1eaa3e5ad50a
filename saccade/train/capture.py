"""Training steps as CUDA graphs, one for each batch shape: one launch instead of some thousand.

A graph holds either a whole step (one process, one micro-batch), or the forward and backward pass of a micro-batch;
then gradients are exchanged between graphs, and the update is a graph of its own. NCCL demands that all processes
capture the same collective operations or none: those of a sharded model are captured where all processes have batches
of one shape, and other collective operations stay outside.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from saccade.data.batching.batch import Batch
from saccade.train.batches.pack import clone_batch, get_shape_key, get_tensors
from saccade.train.loss import LossSums, Step

Result = TypeVar("Result")


class Recording(NamedTuple, Generic[Result]):
    """A function that was captured: `replay` runs it again and writes to the tensors of `result`."""

    replay: Callable[[], None]
    result: Result


class GraphRecorder:
    """Captures functions as CUDA graphs on one stream; the graphs share their memory.

    The functions must not synchronize with the device.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator
        self.stream = torch.cuda.Stream()
        self.pool = torch.cuda.graph_pool_handle()

    def run(self, function: Callable[[], Result]) -> Result:
        """Run a function on the capture stream, so that autograd and cuBLAS initialize their state for it."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            result = function()
        torch.cuda.current_stream().wait_stream(self.stream)
        return result

    def record(self, function: Callable[[], Result]) -> Recording[Result]:
        """Capture a function, which is not run before it is replayed."""
        graph: Any = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.generator)
        # The prefetching thread copies batches to the device meanwhile, which the mode "global" would forbid.
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
            result = function()
        return Recording(graph.replay, result)


@dataclass(frozen=True)
class CapturedStep:
    """A captured step with its static input batch."""

    batch: Batch
    recording: Recording[LossSums]


class CudaGraphs:
    """Runs a step eagerly the first time a batch shape occurs, captures it the second time, and replays it afterwards.

    Its tensors must have the same sizes for the same shape. The sums that it returns are overwritten by later calls.
    """

    def __init__(self, step: Step, recorder: GraphRecorder, *, agree: Callable[[Hashable], bool] | None = None) -> None:
        """`agree` says whether a shape is the same in all processes; other steps run eagerly. None: it need not be."""
        self.step, self.recorder, self.agree = step, recorder, agree
        self.seen_shapes: set[Hashable] = set()
        self.captured: dict[Hashable, CapturedStep] = {}

    def __call__(self, batch: Batch) -> LossSums:
        shape = get_shape_key(batch)
        agreed = self.agree is None or self.agree(shape)
        if not agreed or shape not in self.seen_shapes:
            if agreed:
                self.seen_shapes.add(shape)
            return self.recorder.run(lambda: self.step(batch))
        if shape not in self.captured:
            static = clone_batch(batch)
            self.captured[shape] = CapturedStep(static, self.recorder.record(lambda: self.step(static)))
        captured = self.captured[shape]
        for static_tensor, new in zip(get_tensors(captured.batch), get_tensors(batch), strict=True):
            static_tensor.copy_(new)
        captured.recording.replay()
        return captured.recording.result

    def release(self) -> None:
        """Drop all graphs. NCCL waits for those that hold its operations when a process group ends."""
        self.captured.clear()


class UpdateGraph:
    """Runs the update of the weights eagerly the first time, captures it the second time, and replays it afterwards.

    The gradients must stay at their place in memory.
    """

    def __init__(self, update: Callable[[Tensor], None], recorder: GraphRecorder) -> None:
        """`update` takes the factor by which gradients are scaled."""
        self.update, self.recorder = update, recorder
        self.scale: Tensor | None = None  # the static input
        self.recording: Recording[None] | None = None

    def __call__(self, scale: Tensor) -> None:
        if self.scale is None:
            self.scale = scale.clone()
            self.recorder.run(lambda: self.update(scale))
            return
        static = self.scale.copy_(scale)
        if self.recording is None:
            self.recording = self.recorder.record(lambda: self.update(static))
        self.recording.replay()

    def release(self) -> None:
        """Drop the graph, as CudaGraphs does."""
        self.recording = None
