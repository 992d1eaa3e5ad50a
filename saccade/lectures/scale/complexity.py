"""Rows about cost: Table 1 by counted operations, path lengths by graph search, memory by what is kept."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from saccade.layers.attention import backends as kernels
from saccade.layers.attention import masks
from saccade.layers.attention.masks import Band
from saccade.layers.attention.multihead import SelfAttention
from saccade.lectures.claims import Compared, Measured, check, measured, near, same
from saccade.lectures.drawing import Lines
from saccade.lectures.scale.graphs import layers_to_reach, longest_path, seen_by
from saccade.lectures.small import slope

LENGTHS = [64, 128, 256, 512]
WIDTHS = [16, 32, 64, 128]
REACHES = [32, 64, 128]
KERNELS = [3, 5, 9]


def operations(run: Callable[[], object]) -> int:
    """Floating-point operations of all products; those of fused attention on a CPU are counted as those of others."""

    def fused(
        query: Any, key: Any, value: Any, dropout: float = 0, causal: bool = False, *, attn_mask: Any = None,
        scale: float | None = None, out_shape: Any = None,
    ) -> int:  # fmt: skip
        return sdpa_flop_count(query, key, value)

    known = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: fused}
    with FlopCounterMode(display=False, custom_mapping=known) as counter, torch.no_grad():
        run()
    return counter.get_total_flops()


def attention(n: int, d: int) -> Callable[[], object]:
    """Q K^T and A V alone, without projections."""
    q = torch.randn(1, 1, n, d)
    return lambda: kernels.explicit(q, q, q, scale=1.0, allowed=None)


def restricted(n: int, d: int, r: int) -> Callable[[], object]:
    q = torch.randn(1, 1, n, d)
    return lambda: kernels.windowed(q, q, q, scale=1.0, band=Band(reach=r))


def recurrent(n: int, d: int) -> Callable[[], object]:
    layer, x = nn.RNN(d, d, batch_first=True), torch.randn(1, n, d)
    return lambda: layer(x)


def convolution(n: int, d: int, k: int) -> Callable[[], object]:
    layer, x = nn.Conv1d(d, d, k, padding=k // 2), torch.randn(1, d, n)
    return lambda: layer(x)


def grows(name: str, values: Sequence[int], make: Callable[[int], Callable[[], object]], power: float) -> Compared:
    """The exponent with which counted operations grow."""
    counts = [operations(make(value)) for value in values]
    if not all(counts):
        return same(f"{name}: operations were counted", False, True)
    return near(f"operations of {name}, to the power of", slope(values, counts), power, within=0.06)


@check(
    84,
    "S4:100-107",
    "Table 1: operations per layer, and the longest path between two positions, for four kinds of layers.",
    formula=r"\text{self-attention~} O(n^2 d), \quad \text{recurrent~} O(n d^2), \quad "
    r"\text{convolution~} O(k n d^2), \quad \text{restricted~} O(r n d)",
    code=(kernels.explicit, kernels.windowed, masks.Window),
)
def table_one() -> Measured:
    n, d = 128, 32
    operations_by = {
        "self-attention": LENGTHS, "recurrent": LENGTHS, "convolution": LENGTHS, "restricted, r = 32": LENGTHS,
    }  # fmt: skip
    makers: dict[str, Callable[[int], Callable[[], object]]] = {
        "self-attention": lambda v: attention(v, d),
        "recurrent": lambda v: recurrent(v, d),
        "convolution": lambda v: convolution(v, d, 3),
        "restricted, r = 32": lambda v: restricted(v, d, 32),
    }
    curves = {
        name: ([float(v) for v in values], [float(operations(makers[name](v))) for v in values])
        for name, values in operations_by.items()
    }
    caption = "Counted operations of one layer against the length n, at width 32: only self-attention is quadratic."
    project = SelfAttention(d, heads=1).project
    return measured(
        grows("self-attention with n", LENGTHS, lambda v: attention(v, d), 2),
        grows("self-attention with d", WIDTHS, lambda v: attention(n, v), 1),
        grows("recurrent with n", LENGTHS, lambda v: recurrent(v, d), 1),
        grows("recurrent with d", WIDTHS, lambda v: recurrent(n, v), 2),
        grows("convolution with n", LENGTHS, lambda v: convolution(v, d, 3), 1),
        grows("convolution with d", WIDTHS, lambda v: convolution(n, v, 3), 2),
        grows("convolution with k", KERNELS, lambda v: convolution(n, d, v), 1),
        grows("restricted with n", [256, 512, 1024], lambda v: restricted(v, d, 32), 1),
        grows("restricted with r", REACHES, lambda v: restricted(1024, d, v), 1),
        grows("restricted with d", WIDTHS, lambda v: restricted(256, v, 32), 1),
        grows("the projections, beside all that, with n", LENGTHS, lambda v: lambda: project(torch.randn(1, v, d)), 1),
        *path_lengths(),
        drawing=Lines("n", "operations", curves, caption, log_x=True, log_y=True),
        note="The notes write O(n²)·d, which is O(n² d). Their O(log_k n) is for dilated convolutions; contiguous ones "
        "need O(n / k) layers.",
    )


def path_lengths() -> list[Compared]:
    """The last column of the table; a window has r keys on each side."""
    layer, window = SelfAttention(4, heads=1).double(), masks.window(16)
    with torch.no_grad():
        full = seen_by(layer, 200, 4)
        near_by = seen_by(lambda x: layer(x, mask=window), 1000, 4)
    chain = torch.zeros(1000, 1000, dtype=torch.bool)
    chain[torch.arange(1, 1000), torch.arange(999)] = True
    return [
        same("longest path, self-attention, n = 200", longest_path(full), 1),
        same("longest path, recurrent, n = 1000", longest_path(chain), 999),
        same("longest path, restricted, n = 1000, r = 16: ⌈999 / 16⌉", longest_path(near_by), 63),
        same(
            "layers of dilated convolutions, k = 3, n = 729: log_3 729",
            layers_to_reach(lambda layer: taps(729, 3, 3**layer)),
            6,
        ),
        same(
            "layers of contiguous convolutions, k = 3, n = 729: ⌈728 / 2⌉",
            layers_to_reach(lambda _: taps(729, 3, 1)),
            364,
        ),
    ]


@functools.cache
def taps(n: int, k: int, dilation: int) -> Tensor:
    """edges[i, j]: a causal convolution's output i uses input j; asked of PyTorch's convolution."""
    layer = nn.Conv1d(1, 1, k, dilation=dilation, bias=False)
    nn.init.ones_(layer.weight)
    with torch.no_grad():
        one_hot = nn.functional.pad(torch.eye(n)[:, None], ((k - 1) * dilation, 0))
        return layer(one_hot)[:, 0].T > 0


@check(
    85,
    "S4:98",
    "Memory is quadratic where the weights are held; fused attention never holds them, and its time stays quadratic.",
    formula=r"\text{memory~} O(n^2) \text{~explicit}, \quad O(n) \text{~fused}; \quad \text{time~} O(n^2 d)",
    code=(kernels.explicit, kernels.fused),
)
def quadratic_memory() -> Measured:
    lengths = [512, 1024, 2048, 4096]
    held = [kept_bytes(lambda q: kernels.explicit(q, q, q, scale=1.0, allowed=None)[0], n) for n in lengths]
    fused = [kept_bytes(fused_attention, n) for n in lengths]
    seconds = [timed(fused_attention, n) for n in lengths[1:]]
    wide = [float(n) for n in lengths]
    curves = {"explicit": (wide, [float(b) for b in held]), "fused": (wide, [float(b) for b in fused])}
    caption = (
        "Bytes that one layer of attention keeps for the backward pass, against the length (one head of width 16)."
    )
    return measured(
        near("explicit: memory grows with n to the power of", slope(lengths, held), 2, within=0.1),
        near("fused: memory grows with n to the power of", slope(lengths, fused), 1, within=0.1),
        near("fused: time grows with n to the power of", slope(lengths[1:], seconds), 2, within=0.5),
        drawing=Lines("n", "bytes", curves, caption, log_x=True, log_y=True),
    )


def fused_attention(q: Tensor) -> Tensor:
    at = torch.arange(q.shape[2])[None]
    return kernels.fused(q, q, q, scale=1.0, mask=None, q_pos=at, k_pos=at)


def kept_bytes(run: Callable[[Tensor], Tensor], n: int) -> int:
    """What autograd keeps of a forward pass over n positions, every piece of memory once."""
    return kept(lambda: run(torch.randn(1, 1, n, 16, requires_grad=True)))


def kept(run: Callable[[], object]) -> int:
    pieces: dict[int, int] = {}
    alive: list[Tensor] = []

    def keep(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        pieces[storage.data_ptr()] = storage.nbytes()
        alive.append(x)  # so that no other tensor gets the same place
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        result = run()
    del result
    return sum(pieces.values())


def timed(run: Callable[[Tensor], object], n: int) -> float:
    """Seconds of one thread for n positions, the best of five; checks run in one thread."""
    q = torch.randn(1, 1, n, 16)
    best = float("inf")
    with torch.no_grad():
        for _ in range(5):
            begin = time.thread_time()
            run(q)
            best = min(best, time.thread_time() - begin)
    return best


@check(
    67,
    "S3:1448-1531",
    "Recurrent: one step after the other; convolution: many layers; self-attention: all see all, with much memory.",
    formula=r"\text{steps~} n, 1, 1; \quad \text{path~} n, \frac{n}{k}, 1; \quad \text{memory~} n, n, n^2",
    code=(SelfAttention,),
)
def comparison() -> Measured:
    n, lengths = 256, [256, 512, 1024]
    layer = SelfAttention(8, heads=1).double()
    chain = torch.zeros(n, n, dtype=torch.bool)
    chain[torch.arange(1, n), torch.arange(n - 1)] = True
    with torch.no_grad():
        all_see_all = longest_path(seen_by(layer, n, 8))
    rnn, conv = nn.RNN(8, 8, batch_first=True), nn.Conv1d(8, 8, 3, padding=1)
    held: dict[str, list[int]] = {
        "recurrent": [kept(lambda m=m: rnn(torch.randn(1, m, 8, requires_grad=True))) for m in lengths],  # type: ignore[misc]
        "convolution": [kept(lambda m=m: conv(torch.randn(1, 8, m, requires_grad=True))) for m in lengths],  # type: ignore[misc]
        "self-attention": [
            kept_bytes(lambda q: kernels.explicit(q, q, q, scale=1.0, allowed=None)[0], m) for m in lengths
        ],
    }
    curves = {name: ([float(m) for m in lengths], [float(b) for b in values]) for name, values in held.items()}
    caption = "Bytes kept for the backward pass by one layer, against the length."
    powers = {"recurrent": 1, "convolution": 1, "self-attention": 2}
    return measured(
        same("recurrent: steps one after the other, n = 256", longest_path(chain) + 1, n),
        same(
            "convolution k = 3: layers until the last word sees the first",
            layers_to_reach(lambda _: taps(n, 3, 1)),
            128,
        ),
        same("self-attention: layers until all see all", all_see_all, 1),
        *(
            near(f"{name}: memory grows with n to the power of", slope(lengths, held[name]), power, within=0.25)
            for name, power in powers.items()
        ),
        drawing=Lines("n", "bytes", curves, caption, log_x=True, log_y=True),
    )
