"""Checks on parallelism: sequential operations of layers, and the receptive field of convolutions."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from saccade.layers.attention.multihead import SelfAttention
from saccade.lectures.claims import CheckResult, build_result, check, expect_at_least, expect_equal
from saccade.lectures.drawing import Lines
from saccade.lectures.scale.complexity import count_operations
from saccade.lectures.scale.graphs import find_dependencies

WIDTH = 128
LENGTHS = [64, 128, 256, 512]
PRODUCT_OPERATIONS = ("mm", "addmm", "bmm", "convolution", "_scaled_dot_product_flash_attention_for_cpu")

Layer = Callable[[Tensor], object]


class ProductCounter(TorchDispatchMode):
    """Counts sequential calls of matrix multiplications and convolutions."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += function.overloadpacket.__name__ in PRODUCT_OPERATIONS
        return function(*args, **(kwargs or {}))


def build_layers() -> dict[str, Layer]:
    """Build one layer of each kind with the same width; Conv1d expects positions in the last dimension."""
    rnn, attention = nn.RNN(WIDTH, WIDTH, batch_first=True), SelfAttention(WIDTH, heads=1)
    convolution = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
    return {
        "recurrent": lambda x: rnn(x),
        "convolution": lambda x: convolution(x.mT),
        "self-attention": lambda x: attention(x),
    }


def measure_seconds(layer: Layer, n: int) -> float:
    """Return the wall time for one sequence of n words, best of ten."""
    x, best = torch.randn(1, n, WIDTH), float("inf")
    with torch.no_grad():
        for _ in range(10):
            begin = time.perf_counter()
            layer(x)
            best = min(best, time.perf_counter() - begin)
    return best


def count_products(layer: Layer, n: int) -> int:
    with ProductCounter() as counted, torch.no_grad():
        layer(torch.randn(1, n, WIDTH))
    return counted.count


@check(
    10,
    "S1:37-49",
    "A recurrent network computes one step after the other; convolution and self-attention process all in parallel.",
    formula=r"\text{sequential~operations:~} n \text{~against~} O(1)",
    code=(SelfAttention, nn.RNN),
    trains=True,
)
def sequential_steps() -> CheckResult:
    every = build_layers()
    times = {name: [measure_seconds(layer, n) for n in LENGTHS] for name, layer in every.items()}
    work = {name: count_operations(partial(layer, torch.randn(1, LENGTHS[-1], WIDTH))) for name, layer in every.items()}
    rate = {name: work[name] / times[name][-1] for name in every}
    counts = {name: [count_products(layer, n) for n in (64, 128)] for name, layer in every.items()}
    caption = "Time of one layer for one sequence against its length (width 128)."
    curves = {name: ([float(n) for n in LENGTHS], [1000 * value for value in values]) for name, values in times.items()}
    return build_result(
        expect_equal(
            "recurrent: more sequential products for 64 more words", counts["recurrent"][1] - counts["recurrent"][0], 64
        ),
        expect_equal(
            "convolution: more sequential products for 64 more words",
            counts["convolution"][1] - counts["convolution"][0],
            0,
        ),
        expect_equal(
            "self-attention: more sequential products for 64 more words",
            counts["self-attention"][1] - counts["self-attention"][0],
            0,
        ),
        expect_at_least(
            "FLOP/s of self-attention over those of the recurrent network, n = 512",
            rate["self-attention"] / rate["recurrent"],
            1.5,
        ),
        expect_at_least(
            "FLOP/s of convolution over those of the recurrent network, n = 512",
            rate["convolution"] / rate["recurrent"],
            1.5,
        ),
        drawing=Lines("n", "milliseconds", curves, caption, log_x=True, log_y=True),
    )


@check(
    13,
    "S2:52-53",
    "Recurrent networks are not parallel; the receptive field of convolutions is limited by their filters.",
    formula=r"\mathrm{field} = 1 + L (k - 1)",
    code=(SelfAttention, nn.Conv1d),
    trains=True,
)
def limited_by_filters() -> CheckResult:
    compared = []
    for depth, k in ((1, 3), (4, 3), (4, 5)):
        stack = nn.Sequential(*(nn.Conv1d(4, 4, k, padding=k // 2) for _ in range(depth))).double()
        with torch.no_grad():
            seen = find_dependencies(lambda x, stack=stack: stack(x.mT).mT, 41, 4)  # type: ignore[misc]
        compared.append(
            expect_equal(
                f"receptive field of the middle word, {depth} layers of k = {k}",
                int(seen[20].sum()),
                1 + depth * (k - 1),
            )
        )
    attention = SelfAttention(4, heads=1).double()
    with torch.no_grad():
        compared.append(
            expect_equal(
                "receptive field of one layer of self-attention, of 41 words",
                int(find_dependencies(attention, 41, 4)[20].sum()),
                41,
            )
        )
    rnn = build_layers()["recurrent"]
    compared.append(
        expect_equal(
            "recurrent: more sequential products for 64 more words",
            count_products(rnn, 128) - count_products(rnn, 64),
            64,
        )
    )
    return build_result(*compared)
