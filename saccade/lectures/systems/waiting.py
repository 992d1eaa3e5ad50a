"""Rows about waiting: which layers must do one step after the other, and how far a convolution sees."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from saccade.layers.attention.multihead import SelfAttention
from saccade.lectures.claims import Measured, at_least, check, measured, same
from saccade.lectures.drawing import Lines
from saccade.lectures.scale.complexity import operations
from saccade.lectures.scale.graphs import seen_by

WIDTH = 128
LENGTHS = [64, 128, 256, 512]
PRODUCTS = ("mm", "addmm", "bmm", "convolution", "_scaled_dot_product_flash_attention_for_cpu")

Layer = Callable[[Tensor], object]


class Products(TorchDispatchMode):
    """Counts products of matrices that are started one after the other."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += function.overloadpacket.__name__ in PRODUCTS
        return function(*args, **(kwargs or {}))


def layers() -> dict[str, Layer]:
    """One of each, of the same width; a convolution wants positions last."""
    rnn, attention = nn.RNN(WIDTH, WIDTH, batch_first=True), SelfAttention(WIDTH, heads=1)
    convolution = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
    return {
        "recurrent": lambda x: rnn(x),
        "convolution": lambda x: convolution(x.mT),
        "self-attention": lambda x: attention(x),
    }


def seconds(layer: Layer, n: int) -> float:
    """Wall time of one text of n words, the best of ten."""
    x, best = torch.randn(1, n, WIDTH), float("inf")
    with torch.no_grad():
        for _ in range(10):
            begin = time.perf_counter()
            layer(x)
            best = min(best, time.perf_counter() - begin)
    return best


def products(layer: Layer, n: int) -> int:
    with Products() as counted, torch.no_grad():
        layer(torch.randn(1, n, WIDTH))
    return counted.count


@check(
    10,
    "S1:37-49",
    "A recurrent network computes one step after the other; convolution and self-attention do all positions together.",
    formula=r"\text{products~in~a~row:~} n \text{~against~} O(1)",
    code=(SelfAttention, nn.RNN),
    trains=True,
)
def sequential() -> Measured:
    every = layers()
    times = {name: [seconds(layer, n) for n in LENGTHS] for name, layer in every.items()}
    work = {name: operations(partial(layer, torch.randn(1, LENGTHS[-1], WIDTH))) for name, layer in every.items()}
    rate = {name: work[name] / times[name][-1] for name in every}
    counts = {name: [products(layer, n) for n in (64, 128)] for name, layer in every.items()}
    caption = "Milliseconds of one layer over one text, against its length (width 128)."
    curves = {name: ([float(n) for n in LENGTHS], [1000 * value for value in values]) for name, values in times.items()}
    return measured(
        same(
            "recurrent: more products in a row for 64 more words", counts["recurrent"][1] - counts["recurrent"][0], 64
        ),
        same("convolution: the same", counts["convolution"][1] - counts["convolution"][0], 0),
        same("self-attention: the same", counts["self-attention"][1] - counts["self-attention"][0], 0),
        at_least(
            "operations a second, self-attention over recurrent, n = 512",
            rate["self-attention"] / rate["recurrent"],
            1.5,
        ),
        at_least(
            "operations a second, convolution over recurrent, n = 512", rate["convolution"] / rate["recurrent"], 1.5
        ),
        drawing=Lines("n", "milliseconds", curves, caption, log_x=True, log_y=True),
    )


@check(
    13,
    "S2:52-53",
    "Recurrent networks are not parallel; convolutions see only as far as their filters reach.",
    formula=r"\mathrm{field} = 1 + L (k - 1)",
    code=(SelfAttention, nn.Conv1d),
    trains=True,
)
def limited_by_filters() -> Measured:
    compared = []
    for depth, k in ((1, 3), (4, 3), (4, 5)):
        stack = nn.Sequential(*(nn.Conv1d(4, 4, k, padding=k // 2) for _ in range(depth))).double()
        with torch.no_grad():
            seen = seen_by(lambda x, stack=stack: stack(x.mT).mT, 41, 4)  # type: ignore[misc]
        compared.append(
            same(f"words seen by the middle one, {depth} layers of k = {k}", int(seen[20].sum()), 1 + depth * (k - 1))
        )
    attention = SelfAttention(4, heads=1).double()
    with torch.no_grad():
        compared.append(
            same("words seen in one layer of self-attention, of 41", int(seen_by(attention, 41, 4)[20].sum()), 41)
        )
    rnn = layers()["recurrent"]
    compared.append(
        same("recurrent: more products in a row for 64 more words", products(rnn, 128) - products(rnn, 64), 64)
    )
    return measured(*compared)
