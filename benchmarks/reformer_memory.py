"""How memory of a training step grows with the length of a text: the stack of the recipe `reformer` and plain layers.

    OMP_NUM_THREADS=1 python benchmarks/reformer_memory.py [--out benchmarks/results] [--tiny]

Ours: local attention and attention by hashing in turn, reversible layers, feed-forward in chunks (Kitaev et al. 2020),
as the recipe builds them. The peer: the same layers with exact attention, for which autograd keeps everything. Memory
is the peak beyond parameters and input, forward and backward: on a GPU what the allocator gave out; on a CPU the bytes
of all tensors alive at one time, counted as operations make them, without what an operation needs inside. The slope is
the exponent s of memory ~ length^s.
"""

import argparse
import math
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from results import save
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from saccade.config.load import load
from saccade.layers.blocks.reversible import ReversibleStack
from saccade.model.build.model import build

MIB = 2**20
OURS, PEER = "recipe reformer", "exact attention, everything kept"


class Size(NamedTuple):
    dim: int
    heads: int
    layers: int
    chunk: int  # also of the feed-forward network
    lengths: tuple[int, ...]
    longer: tuple[int, ...] = ()  # for ours alone

    def __str__(self) -> str:
        return f"{self.layers} layers of {self.dim}, {self.heads} heads, chunks of {self.chunk}"


GPU = Size(512, 8, 6, 64, (1024, 2048, 4096, 8192), (16384, 32768, 65536))
CPU = Size(64, 2, 4, 32, (256, 512, 1024, 2048), (4096, 8192, 16384))
TINY = Size(16, 2, 2, 8, (64, 128, 256, 512))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--tiny", action="store_true", help="a toy size, to test the script")
    own = parser.parse_args()
    begin, cuda = time.perf_counter(), torch.cuda.is_available()
    size = TINY if own.tiny else GPU if cuda else CPU
    measure = on_gpu if cuda else on_cpu
    found = {
        OURS: {length: measure(OURS, size, length) for length in size.lengths + size.longer},
        PEER: {length: measure(PEER, size, length) for length in size.lengths},
    }
    name = "reformer_memory_gpu" if cuda else "reformer_memory_cpu"
    path = save(name, rows(found, size), minutes=(time.perf_counter() - begin) / 60, folder=own.out)
    print(path.read_text("utf-8"))


def rows(found: dict[str, dict[int, int]], size: Size) -> list[dict[str, Any]]:
    """Return the slope over all lengths for each variant, and the peak memory at each length."""
    slopes = {name: slope(list(peaks), list(peaks.values())) for name, peaks in found.items()}
    what = f"slope of memory against length, {size}, up to {max(found[OURS]):,} positions"
    made: list[dict[str, Any]] = [compare_memory(what, "exponent", slopes[OURS], slopes[PEER])]
    for length, peak in found[OURS].items():
        what = f"peak memory of a training step, {length:,} positions"
        theirs = found[PEER].get(length)
        row = compare_memory(what, "MiB", peak / MIB, None if theirs is None else theirs / MIB)
        made.append({**row, "detail": length != size.lengths[-1]})
    return made


def compare_memory(what: str, unit: str, ours: float, theirs: float | None) -> dict[str, Any]:
    row = {"what": what, "value": round(ours, 3), "unit": unit}
    if theirs is None:
        return row
    return {**row, "peer": PEER, "peer_value": round(theirs, 3), "ratio": round(ours / theirs, 3)}


def slope(lengths: Sequence[int], peaks: Sequence[int]) -> float:
    """Least squares through the logarithms."""
    x, y = (torch.tensor([math.log(number) for number in numbers]) for numbers in (lengths, peaks))
    x = x - x.mean()
    return float(x @ y / (x @ x))


def build_stack(way: str, size: Size, length: int) -> ReversibleStack:
    """Build the stack of the recipe in this size; the peer's chunk is the whole sequence, so its attention is exact."""
    stack = {
        "layers": size.layers, "dim": size.dim, "heads": size.heads, "head_dim": size.dim // size.heads,
        "ff": 4 * size.dim, "dropout": 0.0, "chunks.hashes": 2,
        "chunks.length": size.chunk if way == OURS else length,
        "chunks.feedforward": size.chunk if way == OURS else length,
    }  # fmt: skip
    recipe = load("reformer", overrides=[f"writer.stack.{name}={value}" for name, value in stack.items()])
    writer: Any = build(recipe, source_size=4, target_size=4).writer
    return writer.stack


def step(way: str, stack: ReversibleStack, x: Tensor) -> None:
    """Run forward and backward pass, with gradients of all parameters."""
    if way == OURS:
        y = stack(x, None)[0]
    else:
        x1 = x2 = x
        for block in stack.blocks:
            x1, x2 = block(x1, x2)
        y = stack.norm(torch.cat((x1, x2), -1))
    torch.autograd.grad(y.sum(), list(stack.parameters()))


def on_gpu(way: str, size: Size, length: int) -> int:
    stack, x = build_stack(way, size, length).cuda(), torch.randn(1, length, size.dim, device="cuda")
    step(way, stack, x[:, : 2 * size.chunk])  # libraries take their room at the first call
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step(way, stack, x)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def on_cpu(way: str, size: Size, length: int) -> int:
    torch.manual_seed(0)
    stack, x = build_stack(way, size, length), torch.randn(1, length, size.dim)
    with Living([x, *stack.parameters()]) as living:
        step(way, stack, x)
    return living.peak


class Living(TorchDispatchMode):
    """Counts the bytes of live tensors that were created inside the block."""

    def __init__(self, given: Sequence[Tensor]) -> None:
        super().__init__()
        self.known = {x.untyped_storage()._cdata for x in given}
        self.now = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for x in tree_leaves(made):
            if isinstance(x, Tensor):
                self.count(x.untyped_storage())
        return made

    def count(self, storage: torch.UntypedStorage) -> None:
        address, size = storage._cdata, storage.nbytes()
        if address in self.known:
            return
        self.known.add(address)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self.forget, address, size)

    def forget(self, address: int, size: int) -> None:
        self.known.discard(address)
        self.now -= size


if __name__ == "__main__":
    main()
