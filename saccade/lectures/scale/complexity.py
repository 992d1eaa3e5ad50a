"""Checks on complexity: counted FLOPs (Table 1), path lengths, sequential steps, memory for the backward pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from saccade.layers.attention import backends as kernels
from saccade.layers.attention import masks
from saccade.layers.attention.multihead import SelfAttention
from saccade.layers.attention.positions import Alibi
from saccade.layers.blocks.convolution import GatedBlock
from saccade.layers.blocks.convolution_stack import ConvolutionStack
from saccade.layers.blocks.recurrent import RecurrentStack
from saccade.lectures.claims import (
    CheckResult,
    Comparison,
    build_result,
    check,
    expect_at_least,
    expect_equal,
    expect_near,
)
from saccade.lectures.drawing import Lines
from saccade.lectures.references.basics import embed
from saccade.lectures.references.comparing import MODEL_TOLERANCE, build_random_model, measure_layer
from saccade.lectures.references.transformer import compute_attention, run_stack
from saccade.lectures.scale.graphs import count_hops, find_dependencies, find_longest_path, measure_depth
from saccade.lectures.small import VOCABULARY_SIZE, fit_exponent, max_difference, randomize_parameters, sample_normal

LENGTHS = [32, 64, 128]
LONG = [128, 256, 512]  # for windows
WIDTHS = [16, 32, 64]
WINDOWS = [32, 64, 128]
KERNELS = [3, 5, 9]
Layer = Callable[[Tensor], Tensor]


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


# ---- one layer of each kind


def build_attention(d: int) -> SelfAttention:
    """Build self-attention with one head of width d, in float64, with random parameters."""
    layer = SelfAttention(d, heads=1).double()
    randomize_parameters(layer)
    return layer


def build_recurrent(d: int) -> RecurrentStack:
    return RecurrentStack(d, cell="rnn", layers=1).double()


def build_convolution(d: int, k: int, *dilations: int) -> ConvolutionStack:
    """Build a causal convolution of width k for each dilation, one layer on top of the other."""
    blocks = [GatedBlock(d, kernel=k, dilation=dilation) for dilation in dilations or (1,)]
    return ConvolutionStack(blocks, dim=d, causal=True).double()


def get_layer(kind: str, d: int, *, k: int = 3, r: int = 32) -> Layer:
    """Return one layer as a function of x (B, n, d)."""
    if kind == "recurrent":
        recurrent = build_recurrent(d)
        return lambda x: recurrent(x, None)[0]
    if kind == "convolution":
        convolution = build_convolution(d, k)
        return lambda x: convolution(x, None)[0]
    attention, near = build_attention(d), masks.window(r)
    return lambda x: attention(x, mask=near if kind == "restricted" else None)


def count_layer(kind: str, n: int, d: int, *, k: int = 3, r: int = 32) -> int:
    """Count the FLOPs of a layer on n positions; for attention those of Q K^T and A V, without its projections."""
    layer, x = get_layer(kind, d, k=k, r=r), sample_normal(1, n, d)
    total = count_operations(lambda: layer(x))
    return total - (4 * 2 * n * d * d if kind in ("self-attention", "restricted") else 0)


def expect_growth(name: str, values: Sequence[int], count: Callable[[int], int], power: float) -> Comparison:
    """Expect counted FLOPs to grow with this power of a size."""
    counts = [count(value) for value in values]
    if min(counts) <= 0:
        return expect_equal(f"{name}: operations were counted", False, True)
    return expect_near(f"operations of {name}, exponent", fit_exponent(values, counts), power, within=0.06)


@check(
    84,
    "S4:100-107",
    "Table 1 of the paper: operations per layer and the longest path between two positions, for four kinds of layers.",
    formula=r"\text{self-attention~} O(n^2 d), \quad \text{recurrent~} O(n d^2), \quad "
    r"\text{convolution~} O(k n d^2), \quad \text{restricted~} O(r n d)",
    code=(SelfAttention, kernels.window_attention, RecurrentStack, ConvolutionStack),
    recipes=("bytenet", "convs2s", "mask-predict", "nat"),
    breaks=(
        "uniform-attention",
        "window-computed-in-full",
        "window-twice-as-wide",
        "recurrence-dropped",
        "dilation-ignored",
        "convolution-of-one-position",
    ),
)
def table_one() -> CheckResult:
    n, d = 64, 32
    shown = {"self-attention": {}, "recurrent": {}, "convolution": {"k": 5}, "restricted": {"r": 32}}
    curves = {
        ", ".join([kind, *(f"{name} = {size}" for name, size in sizes.items())]): (
            [float(v) for v in LONG],
            [float(count_layer(kind, v, d, **sizes)) for v in LONG],
        )
        for kind, sizes in shown.items()
    }
    caption = "Counted operations of one layer against the length n, at width 32: only self-attention is quadratic."
    projections = build_attention(d).project
    return build_result(
        expect_growth("self-attention with n", LENGTHS, lambda v: count_layer("self-attention", v, d), 2),
        expect_growth("self-attention with d", WIDTHS, lambda v: count_layer("self-attention", n, v), 1),
        expect_growth("recurrent with n", LENGTHS, lambda v: count_layer("recurrent", v, d), 1),
        expect_growth("recurrent with d", WIDTHS, lambda v: count_layer("recurrent", n, v), 2),
        expect_growth("convolution with n", LENGTHS, lambda v: count_layer("convolution", v, d), 1),
        expect_growth("convolution with d", WIDTHS, lambda v: count_layer("convolution", n, v), 2),
        expect_growth("convolution with k", KERNELS, lambda v: count_layer("convolution", n, d, k=v), 1),
        expect_growth("restricted with n", LONG, lambda v: count_layer("restricted", v, d), 1),
        expect_growth("restricted with r", WINDOWS, lambda v: count_layer("restricted", 512, d, r=v), 1),
        expect_growth("restricted with d", WIDTHS, lambda v: count_layer("restricted", 128, v), 1),
        expect_growth(
            "the projections of attention, which the table omits, with n",
            LENGTHS,
            lambda v: count_operations(lambda: projections(sample_normal(1, v, d))),
            1,
        ),
        *compare_sequential_steps(),
        *compare_path_lengths(),
        *compare_layers(),
        drawing=Lines("n", "operations", curves, caption, log_x=True, log_y=True),
        note="The notes write O(n²)·d, which is O(n² d). Their O(log_k n) is for dilated convolutions; contiguous ones "
        "need O(n / k) layers.",
    )


def compare_sequential_steps() -> list[Comparison]:
    """Compare the growth of the longest chain of operations with n: what cannot run in parallel."""
    expected = {"self-attention": 0, "recurrent": 1, "convolution": 0, "restricted": 0}
    compared = []
    for kind, power in expected.items():
        layer = get_layer(kind, 4)
        depths = [measure_depth(layer(sample_normal(1, n, 4).requires_grad_())) for n in LONG]
        exponent = fit_exponent(LONG, [max(1, depth) for depth in depths])
        compared.append(expect_near(f"sequential operations, {kind}: exponent of n", exponent, power, within=0.1))
    return compared


@torch.no_grad()
def compare_path_lengths() -> list[Comparison]:
    """Compare the path lengths of the table's last column; a window has r keys on each side."""
    attention, near = build_attention(4), get_layer("restricted", 4, r=16)
    dilated = [build_convolution(4, 3, 3**number) for number in range(6)]
    contiguous = build_convolution(4, 3)
    return [
        expect_equal(
            "longest path, self-attention, n = 200", find_longest_path(find_dependencies(attention, 200, 4)), 1
        ),
        expect_equal("longest path, recurrent, n = 1000", measure_recurrent_path(1000), 999),
        expect_equal(
            "longest path, restricted, n = 1000, r = 16: ⌈999 / 16⌉", count_hops(lambda _, x: near(x), 1000, 4), 63
        ),
        expect_equal(
            "layers of dilated convolutions, k = 3, n = 729: log_3 729",
            count_hops(lambda number, x: dilated[min(number, 5)](x, None)[0], 729, 4),
            6,
        ),
        expect_equal(
            "layers of contiguous convolutions, k = 3, n = 729: ⌈728 / 2⌉",
            count_hops(lambda _, x: contiguous(x, None)[0], 729, 4),
            364,
        ),
    ]


@torch.enable_grad()
def measure_recurrent_path(n: int) -> int:
    """Return how often the first word passes the recurrent matrix on its way to the last state.

    With U = I/2 and states 0, where tanh has slope 1, every pass halves the gradient. -1 if none arrives.
    """
    layer = build_recurrent(4)
    with torch.no_grad():
        layer.layers[0].weight_hh_l0.copy_(torch.eye(4) / 2)
        layer.layers[0].weight_ih_l0.copy_(torch.eye(4))
    x = torch.zeros(1, n, 4, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(layer(x, None)[0][0, -1, 0], x)
    arrived = float(gradient[0, 0, 0])
    return round(-math.log2(arrived)) if arrived > 0 else -1


@torch.no_grad()
def compare_layers() -> list[Comparison]:
    """Compare both kinds of self-attention with the formula: they are what the paper's table is about."""
    layer, x = build_attention(8), sample_normal(2, 70, 8)
    near = (torch.arange(70) - torch.arange(70)[:, None]).abs() <= 3
    real = torch.arange(70) < torch.tensor([[70], [41]])
    allowed = near & real[:, None]
    restricted = layer(x, mask=masks.window(3) & masks.padding(real))
    ids = torch.randint(5, VOCABULARY_SIZE, (2, 70))
    model = build_random_model(["reader.stack.window=[3]"])
    states, expected = model.reader(ids, real).states, embed(model.reader.embedding, ids)
    expected = run_stack(model.reader.stack, expected, allowed=[allowed])
    differences = {
        "self-attention": measure_layer(layer, x),
        "restricted, r = 3, with padding": max_difference(
            restricted[real], compute_attention(layer, x, allowed=allowed)[real]
        ),
        "encoder of a recipe with window = 3": max_difference(states[real], expected[real]),
    }
    return [
        expect_near(f"{name}: difference from the formula", d, 0, within=MODEL_TOLERANCE if "recipe" in name else 1e-12)
        for name, d in differences.items()
    ]


@check(
    85,
    "S4:98",
    "Storing attention weights needs quadratic memory; fused attention needs linear memory but still quadratic time.",
    formula=r"\text{memory~} O(n^2) \text{~explicit}, \quad O(n) \text{~fused}; \quad \text{time~} O(n^2 d)",
    code=(SelfAttention, kernels.explicit_attention, kernels.sdpa_attention),
    recipes=("mask-predict", "nat"),
    breaks=(
        "uniform-attention",
        "fused-attention-stores-weights",
        "explicit-attention-recomputed",
        "unscaled-scores",
    ),
)
def quadratic_memory() -> CheckResult:
    lengths = [256, 512, 1024]
    fused, explicit = build_attention(16), build_attention(16)
    explicit.load_state_dict(fused.state_dict())
    explicit.heads.term = Alibi(1).double()  # a term of the scores, which only the explicit implementation adds
    explicit.heads.term.slopes.zero_()
    held, saved = ([count_saved_bytes(layer, n, 16) for n in lengths] for layer in (explicit, fused))
    operations = [count_layer("self-attention", n, 16) for n in lengths]
    x = sample_normal(2, 9, 16)
    wide = [float(n) for n in lengths]
    curves = {"explicit": (wide, [float(b) for b in held]), "fused": (wide, [float(b) for b in saved])}
    caption = "Bytes that one layer of attention saves for the backward pass against the length (one head of width 16)."
    return build_result(
        expect_near("explicit attention: memory grows with n, exponent", fit_exponent(lengths, held), 2, within=0.25),
        expect_near("fused attention: memory grows with n, exponent", fit_exponent(lengths, saved), 1, within=0.1),
        expect_near(
            "fused attention: operations grow with n, exponent", fit_exponent(lengths, operations), 2, within=0.1
        ),
        expect_at_least("bytes at n = 1,024, explicit over fused", held[-1] / saved[-1], 10),
        *(
            expect_near(
                f"{name}: difference from the formula",
                measure_layer(layer, x),
                0,
                within=1e-12,
            )
            for name, layer in (("explicit", explicit), ("fused", fused))
        ),
        drawing=Lines("n", "bytes", curves, caption, log_x=True, log_y=True),
    )


def count_saved_bytes(run: Layer, n: int, d: int) -> int:
    """Return the bytes of all distinct storages that autograd saves in a forward pass over n positions."""
    storages: dict[int, int] = {}
    alive: list[Tensor] = []

    def keep(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        alive.append(x)  # so that its address is not reused
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        result = run(sample_normal(1, n, d).requires_grad_())
    del result
    return sum(storages.values())


@check(
    67,
    "S3:1448-1531",
    "Recurrent layers are sequential, convolutions need many layers, self-attention sees all but needs much memory.",
    formula=r"\text{steps~} n, 1, 1; \quad \text{path~} n, \frac{n}{k}, 1; \quad \text{memory~} n, n, n^2",
    code=(SelfAttention, RecurrentStack, ConvolutionStack),
    breaks=(
        "uniform-attention",
        "recurrence-dropped",
        "recurrence-skips-a-step",
        "convolution-of-one-position",
        "self-attention-of-neighbours",
        "self-attention-always-causal",
    ),
)
def layer_comparison() -> CheckResult:
    n, lengths, kinds = 256, [128, 256, 512], ("recurrent", "convolution", "self-attention")
    layers = {kind: get_layer(kind, 8) for kind in kinds}
    attention = build_attention(8)
    attention.heads.term = Alibi(1).double()  # holds its weights
    held = {
        kind: [count_saved_bytes(attention if kind == "self-attention" else layer, m, 8) for m in lengths]
        for kind, layer in layers.items()
    }
    curves = {kind: ([float(m) for m in lengths], [float(b) for b in values]) for kind, values in held.items()}
    caption = "Bytes that one layer saves for the backward pass against the length; attention holds its weights."
    powers = {"recurrent": 1, "convolution": 1, "self-attention": 2}
    depths = {
        kind: [measure_depth(run(sample_normal(1, m, 8).requires_grad_())) for m in (n, 2 * n)]
        for kind, run in layers.items()
    }
    return build_result(
        expect_equal(
            "recurrent: steps from the first word to the last state, n = 256", measure_recurrent_path(n), n - 1
        ),
        expect_equal(
            "recurrent: words that the last state depends on, after one layer", _count_seen(layers["recurrent"], n), n
        ),
        *(
            expect_near(
                f"{kind}: sequential operations for twice the words", after / max(1, before), factor, within=0.05
            )
            for (kind, (before, after)), factor in zip(depths.items(), (2, 1, 1), strict=True)
        ),
        expect_equal(
            "convolution k = 3: layers until the last word depends on the first",
            count_hops(lambda _, x: layers["convolution"](x), n, 8),
            128,
        ),
        expect_equal(
            "self-attention: layers until all words depend on all",
            find_longest_path(find_dependencies(layers["self-attention"], n, 8)),
            1,
        ),
        *(
            expect_near(f"{kind}: memory grows with n, exponent", fit_exponent(lengths, held[kind]), power, within=0.25)
            for kind, power in powers.items()
        ),
        *_compare_orders(layers),
        drawing=Lines("n", "bytes", curves, caption, log_x=True, log_y=True),
    )


def _count_seen(layer: Layer, n: int) -> int:
    """Return how many inputs the last output depends on, by its gradient."""
    x = sample_normal(1, n, 8).requires_grad_()
    (gradient,) = torch.autograd.grad(layer(x)[0, -1].sum(), x)
    return int((gradient[0].abs().amax(-1) > 0).sum())


@torch.no_grad()
def _compare_orders(layers: dict[str, Layer]) -> list[Comparison]:
    """Compare what the layers work on: a set has no order, a sequence has one."""
    x, order = sample_normal(1, 7, 8), torch.randperm(7)
    order = torch.arange(7).flip(0) if bool((order == torch.arange(7)).all()) else order
    apart = {kind: max_difference(layer(x[:, order]), layer(x)[:, order]) for kind, layer in layers.items()}
    attention = build_attention(8)
    return [
        expect_at_least("recurrent, ordered sequence: change when words are permuted", apart["recurrent"], 1e-3),
        expect_at_least("convolution, grid: change when words are permuted", apart["convolution"], 1e-3),
        expect_near("self-attention, set: change when words are permuted", apart["self-attention"], 0, within=1e-12),
        expect_near(
            "self-attention: difference from the formula",
            measure_layer(attention, x),
            0,
            within=1e-12,
        ),
    ]
