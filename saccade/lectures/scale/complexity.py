"""Checks on complexity: counted FLOPs (Table 1), path lengths by graph search, memory for the backward pass."""

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
from saccade.lectures.claims import CheckResult, Comparison, build_result, check, expect_equal, expect_near
from saccade.lectures.drawing import Lines
from saccade.lectures.scale.graphs import count_layers_to_reach, find_dependencies, find_longest_path
from saccade.lectures.small import fit_exponent

LENGTHS = [64, 128, 256, 512]
WIDTHS = [16, 32, 64, 128]
WINDOWS = [32, 64, 128]
KERNELS = [3, 5, 9]


def count_operations(run: Callable[[], object]) -> int:
    """Count the FLOPs of a function with PyTorch's counter, which is extended to fused attention on a CPU."""

    def count_fused(
        query: Any, key: Any, value: Any, dropout: float = 0, causal: bool = False, *, attn_mask: Any = None,
        scale: float | None = None, out_shape: Any = None,
    ) -> int:  # fmt: skip
        return sdpa_flop_count(query, key, value)

    known = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: count_fused}
    with FlopCounterMode(display=False, custom_mapping=known) as counter, torch.no_grad():
        run()
    return counter.get_total_flops()


def build_attention(n: int, d: int) -> Callable[[], object]:
    """Build attention without projections: Q K^T and A V only."""
    q = torch.randn(1, 1, n, d)
    return lambda: kernels.explicit_attention(q, q, q, scale=1.0, allowed=None)


def build_restricted(n: int, d: int, r: int) -> Callable[[], object]:
    q = torch.randn(1, 1, n, d)
    return lambda: kernels.window_attention(q, q, q, scale=1.0, band=Band(radius=r))


def build_recurrent(n: int, d: int) -> Callable[[], object]:
    layer, x = nn.RNN(d, d, batch_first=True), torch.randn(1, n, d)
    return lambda: layer(x)


def build_convolution(n: int, d: int, k: int) -> Callable[[], object]:
    layer, x = nn.Conv1d(d, d, k, padding=k // 2), torch.randn(1, d, n)
    return lambda: layer(x)


def expect_growth(
    name: str, values: Sequence[int], make: Callable[[int], Callable[[], object]], power: float
) -> Comparison:
    """Expect counted FLOPs to grow with this power of a size."""
    counts = [count_operations(make(value)) for value in values]
    if not all(counts):
        return expect_equal(f"{name}: operations were counted", False, True)
    return expect_near(f"operations of {name}, exponent", fit_exponent(values, counts), power, within=0.06)


@check(
    84,
    "S4:100-107",
    "Table 1 of the paper: operations per layer and the longest path between two positions, for four kinds of layers.",
    formula=r"\text{self-attention~} O(n^2 d), \quad \text{recurrent~} O(n d^2), \quad "
    r"\text{convolution~} O(k n d^2), \quad \text{restricted~} O(r n d)",
    code=(kernels.explicit_attention, kernels.window_attention, masks.Window),
)
def table_one() -> CheckResult:
    n, d = 128, 32
    operations_by = {
        "self-attention": LENGTHS, "recurrent": LENGTHS, "convolution": LENGTHS, "restricted, r = 32": LENGTHS,
    }  # fmt: skip
    makers: dict[str, Callable[[int], Callable[[], object]]] = {
        "self-attention": lambda v: build_attention(v, d),
        "recurrent": lambda v: build_recurrent(v, d),
        "convolution": lambda v: build_convolution(v, d, 3),
        "restricted, r = 32": lambda v: build_restricted(v, d, 32),
    }
    curves = {
        name: ([float(v) for v in values], [float(count_operations(makers[name](v))) for v in values])
        for name, values in operations_by.items()
    }
    caption = "Counted operations of one layer against the length n, at width 32: only self-attention is quadratic."
    project = SelfAttention(d, heads=1).project
    return build_result(
        expect_growth("self-attention with n", LENGTHS, lambda v: build_attention(v, d), 2),
        expect_growth("self-attention with d", WIDTHS, lambda v: build_attention(n, v), 1),
        expect_growth("recurrent with n", LENGTHS, lambda v: build_recurrent(v, d), 1),
        expect_growth("recurrent with d", WIDTHS, lambda v: build_recurrent(n, v), 2),
        expect_growth("convolution with n", LENGTHS, lambda v: build_convolution(v, d, 3), 1),
        expect_growth("convolution with d", WIDTHS, lambda v: build_convolution(n, v, 3), 2),
        expect_growth("convolution with k", KERNELS, lambda v: build_convolution(n, d, v), 1),
        expect_growth("restricted with n", [256, 512, 1024], lambda v: build_restricted(v, d, 32), 1),
        expect_growth("restricted with r", WINDOWS, lambda v: build_restricted(1024, d, v), 1),
        expect_growth("restricted with d", WIDTHS, lambda v: build_restricted(256, v, 32), 1),
        expect_growth(
            "the projections of attention, which the table omits, with n",
            LENGTHS,
            lambda v: lambda: project(torch.randn(1, v, d)),
            1,
        ),
        *compare_path_lengths(),
        drawing=Lines("n", "operations", curves, caption, log_x=True, log_y=True),
        note="The notes write O(n²)·d, which is O(n² d). Their O(log_k n) is for dilated convolutions; contiguous ones "
        "need O(n / k) layers.",
    )


def compare_path_lengths() -> list[Comparison]:
    """Compare the path lengths of the table's last column; a window has r keys on each side."""
    layer, window = SelfAttention(4, heads=1).double(), masks.window(16)
    with torch.no_grad():
        full = find_dependencies(layer, 200, 4)
        near_by = find_dependencies(lambda x: layer(x, mask=window), 1000, 4)
    chain = torch.zeros(1000, 1000, dtype=torch.bool)
    chain[torch.arange(1, 1000), torch.arange(999)] = True
    return [
        expect_equal("longest path, self-attention, n = 200", find_longest_path(full), 1),
        expect_equal("longest path, recurrent, n = 1000", find_longest_path(chain), 999),
        expect_equal("longest path, restricted, n = 1000, r = 16: ⌈999 / 16⌉", find_longest_path(near_by), 63),
        expect_equal(
            "layers of dilated convolutions, k = 3, n = 729: log_3 729",
            count_layers_to_reach(lambda layer: find_convolution_edges(729, 3, 3**layer)),
            6,
        ),
        expect_equal(
            "layers of contiguous convolutions, k = 3, n = 729: ⌈728 / 2⌉",
            count_layers_to_reach(lambda _: find_convolution_edges(729, 3, 1)),
            364,
        ),
    ]


@functools.cache
def find_convolution_edges(n: int, k: int, dilation: int) -> Tensor:
    """Return edges[i, j]: whether output i of PyTorch's causal convolution depends on input j."""
    layer = nn.Conv1d(1, 1, k, dilation=dilation, bias=False)
    nn.init.ones_(layer.weight)
    with torch.no_grad():
        one_hot = nn.functional.pad(torch.eye(n)[:, None], ((k - 1) * dilation, 0))
        return layer(one_hot)[:, 0].T > 0


@check(
    85,
    "S4:98",
    "Storing attention weights needs quadratic memory; fused attention needs linear memory but still quadratic time.",
    formula=r"\text{memory~} O(n^2) \text{~explicit}, \quad O(n) \text{~fused}; \quad \text{time~} O(n^2 d)",
    code=(kernels.explicit_attention, kernels.sdpa_attention),
)
def quadratic_memory() -> CheckResult:
    lengths = [512, 1024, 2048, 4096]
    held = [
        count_attention_bytes(lambda q: kernels.explicit_attention(q, q, q, scale=1.0, allowed=None)[0], n)
        for n in lengths
    ]
    fused = [count_attention_bytes(run_fused, n) for n in lengths]
    seconds = [measure_seconds(run_fused, n) for n in lengths[1:]]
    wide = [float(n) for n in lengths]
    curves = {"explicit": (wide, [float(b) for b in held]), "fused": (wide, [float(b) for b in fused])}
    caption = "Bytes that one layer of attention saves for the backward pass against the length (one head of width 16)."
    return build_result(
        expect_near("explicit attention: memory grows with n, exponent", fit_exponent(lengths, held), 2, within=0.1),
        expect_near("fused attention: memory grows with n, exponent", fit_exponent(lengths, fused), 1, within=0.1),
        expect_near("fused attention: time grows with n, exponent", fit_exponent(lengths[1:], seconds), 2, within=0.5),
        drawing=Lines("n", "bytes", curves, caption, log_x=True, log_y=True),
    )


def run_fused(q: Tensor) -> Tensor:
    at = torch.arange(q.shape[2])[None]
    return kernels.sdpa_attention(q, q, q, scale=1.0, mask=None, q_pos=at, k_pos=at)


def count_attention_bytes(run: Callable[[Tensor], Tensor], n: int) -> int:
    """Return the bytes that autograd saves in a forward pass of attention over n positions."""
    return count_saved_bytes(lambda: run(torch.randn(1, 1, n, 16, requires_grad=True)))


def count_saved_bytes(run: Callable[[], object]) -> int:
    """Return the bytes of all distinct storages that autograd saves."""
    storages: dict[int, int] = {}
    alive: list[Tensor] = []

    def keep(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        alive.append(x)  # so that its address is not reused
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        result = run()
    del result
    return sum(storages.values())


def measure_seconds(run: Callable[[Tensor], object], n: int) -> float:
    """Return the CPU seconds for n positions, best of five; checks run in one thread."""
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
    "Recurrent layers are sequential, convolutions need many layers, self-attention sees all but needs much memory.",
    formula=r"\text{steps~} n, 1, 1; \quad \text{path~} n, \frac{n}{k}, 1; \quad \text{memory~} n, n, n^2",
    code=(SelfAttention,),
)
def layer_comparison() -> CheckResult:
    n, lengths = 256, [256, 512, 1024]
    layer = SelfAttention(8, heads=1).double()
    chain = torch.zeros(n, n, dtype=torch.bool)
    chain[torch.arange(1, n), torch.arange(n - 1)] = True
    with torch.no_grad():
        all_see_all = find_longest_path(find_dependencies(layer, n, 8))
    rnn, conv = nn.RNN(8, 8, batch_first=True), nn.Conv1d(8, 8, 3, padding=1)
    held: dict[str, list[int]] = {
        "recurrent": [count_saved_bytes(lambda m=m: rnn(torch.randn(1, m, 8, requires_grad=True))) for m in lengths],  # type: ignore[misc]
        "convolution": [count_saved_bytes(lambda m=m: conv(torch.randn(1, 8, m, requires_grad=True))) for m in lengths],  # type: ignore[misc]
        "self-attention": [
            count_attention_bytes(lambda q: kernels.explicit_attention(q, q, q, scale=1.0, allowed=None)[0], m)
            for m in lengths
        ],
    }
    curves = {name: ([float(m) for m in lengths], [float(b) for b in values]) for name, values in held.items()}
    caption = "Bytes that one layer saves for the backward pass against the length."
    powers = {"recurrent": 1, "convolution": 1, "self-attention": 2}
    return build_result(
        expect_equal("recurrent: sequential steps, n = 256", find_longest_path(chain) + 1, n),
        expect_equal(
            "convolution k = 3: layers until the last word depends on the first",
            count_layers_to_reach(lambda _: find_convolution_edges(n, 3, 1)),
            128,
        ),
        expect_equal("self-attention: layers until all words depend on all", all_see_all, 1),
        *(
            expect_near(f"{name}: memory grows with n, exponent", fit_exponent(lengths, held[name]), power, within=0.25)
            for name, power in powers.items()
        ),
        drawing=Lines("n", "bytes", curves, caption, log_x=True, log_y=True),
    )
