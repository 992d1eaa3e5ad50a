"""CUDA building blocks for decoding without host synchronization: graph capture, and an asynchronous counter."""

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

SECONDS_IN_SILENCE = 3.0  # longer preparation is announced
PREPARING = "compiling GPU kernels for decoding; they are kept, so the next start is faster"


@contextmanager
def announce_if_slow(message: str) -> Iterator[None]:
    """Print a line to stderr if the block takes longer than some seconds."""
    timer = threading.Timer(SECONDS_IN_SILENCE, print, [message], {"file": sys.stderr, "flush": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class AsyncCounter:
    """Reads a counter on the device without waiting for it: a value is read after the next copy was started."""

    def __init__(self, count: Int[Tensor, " 1"]) -> None:
        on_gpu = count.device.type == "cuda"
        self.count = count
        self.host_values = torch.empty(2, dtype=count.dtype, pin_memory=on_gpu)
        self.events = [torch.cuda.Event() for _ in range(2)] if on_gpu else []
        self.n_started = self.n_read = 0

    def start_copy(self) -> None:
        """Start copying the current value to the host."""
        slot = self.n_started % 2
        self.host_values[slot : slot + 1].copy_(self.count, non_blocking=True)
        if self.events:
            self.events[slot].record()
        self.n_started += 1

    def read_previous(self) -> int | None:
        """Return the value of the last copy but one, None at first; the device is busy with later work meanwhile."""
        if self.n_started - self.n_read < 2:
            return None
        slot = self.n_read % 2
        if self.events:
            self.events[slot].synchronize()
        self.n_read += 1
        return int(self.host_values[slot])


def capture_graph(
    warm_up: Callable[[], None],
    steps: Callable[[], None],
    mutable_tensors: Sequence[Tensor],
    pool: Any,
    generator: torch.Generator | None,
) -> Callable[[], None]:
    """Capture `steps` as a CUDA graph and return its replay function.

    `warm_up` runs first, to compile kernels; `mutable_tensors`, which it changes, and the generator are restored.
    Graphs of one pool share their memory: they must never run at the same time.
    """
    saved = [tensor.clone() for tensor in mutable_tensors]
    generator_state = None if generator is None else generator.get_state()
    side_stream = torch.cuda.Stream()
    side_stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side_stream):
        warm_up()
    torch.cuda.current_stream().wait_stream(side_stream)
    graph = torch.cuda.CUDAGraph()
    if generator is not None:
        graph.register_generator_state(generator)
    with torch.cuda.graph(graph, pool=pool, stream=side_stream, capture_error_mode="thread_local"):
        steps()
    for tensor, value in zip(mutable_tensors, saved, strict=True):
        tensor.copy_(value)
    if generator is not None and generator_state is not None:
        generator.set_state(generator_state)
    return graph.replay
