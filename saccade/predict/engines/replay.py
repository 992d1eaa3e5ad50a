"""What CUDA needs to decode without the host: a step as a graph, and a question that nobody waits for."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor


class Watch:
    """How many sentences are left: an answer is taken when the next question has been asked."""

    def __init__(self, count: Int[Tensor, " 1"]) -> None:
        on_gpu = count.device.type == "cuda"
        self.count = count
        self.answers = torch.empty(2, dtype=count.dtype, pin_memory=on_gpu)
        self.events = [torch.cuda.Event() for _ in range(2)] if on_gpu else []
        self.asked = self.taken = 0

    def ask(self) -> None:
        place = self.asked % 2
        self.answers[place : place + 1].copy_(self.count, non_blocking=True)
        if self.events:
            self.events[place].record()
        self.asked += 1

    def left(self) -> int | None:
        """The answer to the last question but one: the device is busy with what came after it."""
        if self.asked - self.taken < 2:
            return None
        place = self.taken % 2
        if self.events:
            self.events[place].synchronize()
        self.taken += 1
        return int(self.answers[place])


def captured(
    trial: Callable[[], None],
    steps: Callable[[], None],
    moving: Sequence[Tensor],
    pool: Any,
    generator: torch.Generator | None,
) -> Callable[[], None]:
    """`steps` as a CUDA graph; what changes in the trial, which compiles the kernels, is put back.

    Graphs of one pool share their memory: they never run at the same time.
    """
    kept = [tensor.clone() for tensor in moving]
    drawn = None if generator is None else generator.get_state()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        trial()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    if generator is not None:
        graph.register_generator_state(generator)
    with torch.cuda.graph(graph, pool=pool, stream=side, capture_error_mode="thread_local"):
        steps()
    for tensor, value in zip(moving, kept, strict=True):
        tensor.copy_(value)
    if generator is not None and drawn is not None:
        generator.set_state(drawn)
    return graph.replay
