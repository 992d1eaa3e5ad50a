"""Peak memory and time of the loss, forward and backward: in pieces, and with all logits at once.

    OMP_NUM_THREADS=1 python benchmarks/loss_memory.py [--out benchmarks/results] [--tiny]

On the GPU where there is one (bfloat16 by autocast; all logits at once also compiled), else on one thread of the CPU
(float32). Memory is what the allocator gave out at most beyond hidden states and matrix, on the CPU the growth of the
resident memory of a process of its own; gradients of both are part of it. Time is between two events of the GPU, or the
process's CPU time: the median of several.
"""

import argparse
import functools
import itertools
import multiprocessing
import os
import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from results import save
from torch import Tensor

from saccade.layers.losses.cross_entropy import smoothed_cross_entropy

MIB = 2**20
SMOOTHING = 0.1


class Size(NamedTuple):
    rows: int
    width: int
    vocabulary: int

    def __str__(self) -> str:
        return f"{self.rows:,} tokens x {self.width:,} x {self.vocabulary:,}"


GPU, CPU, TINY = Size(25_600, 512, 32_000), Size(2_000, 256, 8_000), Size(200, 32, 1_000)


def in_pieces(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    keep = torch.ones_like(targets, dtype=torch.bool)
    return smoothed_cross_entropy(hidden, weight, targets, keep, SMOOTHING)[0]


def at_once(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(hidden, weight), targets, label_smoothing=SMOOTHING, reduction="sum")


@functools.cache
def compiled() -> Callable[..., Tensor]:
    return torch.compile(at_once)


WAYS: dict[str, Callable[..., Tensor]] = {
    "ours": in_pieces,
    "F.linear + F.cross_entropy": at_once,
    "F.linear + F.cross_entropy, compile": lambda *given: compiled()(*given),
}
ON_CPU = list(WAYS)[:2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--tiny", action="store_true", help="a toy size, to test the script")
    own = parser.parse_args()
    begin = time.perf_counter()
    if torch.cuda.is_available():
        size = TINY if own.tiny else GPU
        found = {name: on_gpu(name, size) for name in WAYS}
    else:
        size = TINY if own.tiny else CPU
        os.environ["PYTHONSAFEPATH"] = "1"  # the process imports nothing from the working folder
        with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
            found = {name: pool.apply(on_cpu, (name, size)) for name in ON_CPU}
    name = "loss_memory_gpu" if torch.cuda.is_available() else "loss_memory_cpu"
    path = save(name, rows(found, size), minutes=(time.perf_counter() - begin) / 60, folder=own.out)
    print(path.read_text("utf-8"))


def rows(found: dict[str, tuple[float, float]], size: Size) -> list[dict[str, Any]]:
    """Compare bytes and seconds of our loss with each alternative."""
    memory, seconds = found["ours"]
    made: list[dict[str, Any]] = []
    for peer, (their_memory, their_seconds) in found.items():
        if peer == "ours":
            continue
        for what, unit, ours, theirs in (
            ("peak memory", "MiB", memory / MIB, their_memory / MIB),
            ("time", "ms", seconds * 1e3, their_seconds * 1e3),
        ):
            row = {"what": f"{what} of the loss, forward and backward, {size}", "value": round(ours, 2), "unit": unit}
            compared = {"peer": peer, "peer_value": round(theirs, 2), "ratio": round(ours / theirs, 3)}
            made.append({**row, **compared, "detail": what == "time"})
    return made


def inputs(size: Size, device: str) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    hidden = torch.randn(size.rows, size.width, device=device, requires_grad=True)
    weight = torch.randn(size.vocabulary, size.width, device=device).mul_(size.width**-0.5).requires_grad_()
    return hidden, weight, torch.randint(size.vocabulary, (size.rows,), device=device)


def step(way: Callable[..., Tensor], hidden: Tensor, weight: Tensor, targets: Tensor) -> None:
    with torch.autocast(hidden.device.type, torch.bfloat16, enabled=hidden.is_cuda):
        loss = way(hidden, weight, targets)
    torch.autograd.grad(loss, (hidden, weight))


def on_gpu(name: str, size: Size) -> tuple[float, float]:
    """Peak bytes and seconds."""
    given = inputs(size, "cuda")
    for _ in range(3):
        step(WAYS[name], *given)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(11)]
    for mark in marks[:-1]:
        mark.record()
        step(WAYS[name], *given)
    marks[-1].record()
    torch.cuda.synchronize()
    times = [one.elapsed_time(two) / 1e3 for one, two in itertools.pairwise(marks)]
    return torch.cuda.max_memory_allocated() - before, statistics.median(times)


def on_cpu(name: str, size: Size) -> tuple[float, float]:
    """Return peak bytes and seconds, measured in a fresh process."""
    torch.set_num_threads(1)
    given = inputs(size, "cpu")
    step(at_once, *inputs(Size(8, 8, 8), "cpu"))  # what the first backward pass of a process needs
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
    before = resident("VmRSS")
    step(WAYS[name], *given)
    peak = resident("VmHWM") - before
    times = []
    for _ in range(7):
        begin = time.process_time()
        step(WAYS[name], *given)
        times.append(time.process_time() - begin)
    return peak, statistics.median(times)


def resident(field: str) -> int:
    """Return the resident bytes of this process."""
    found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found
    return 1024 * int(found[1])


if __name__ == "__main__":
    main()
