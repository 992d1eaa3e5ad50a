"""Checks on the notes of CSE 5523, whose items are columns: their layer, compared with ours, whose items are rows."""

from __future__ import annotations

import torch
from torch import Tensor

from saccade.layers.attention.columns import ColumnLayer, argmax, head_backward, head_forward, softmax
from saccade.layers.attention.multihead import HeadProjection, SelfAttention
from saccade.layers.attention.scores import attend, dot, scaled_dot
from saccade.layers.blocks.feedforward import FeedForward
from saccade.lectures.claims import CheckResult, build_result, check, expect_at_least, expect_equal, expect_near
from saccade.lectures.references.comparing import attend_in_layer, measure_layer
from saccade.lectures.references.transformer import compute_heads
from saccade.lectures.small import format_shape, max_difference, randomize_parameters, sample_normal


def compute_head(h: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """V H SoftMax((K H)^T Q H) and the weights, in the notation of the notes; items are columns."""
    powers = ((k @ h).T @ (q @ h)).exp()
    weights = powers / (torch.ones(1, len(powers), dtype=powers.dtype) @ powers)
    return v @ h @ weights, weights


def compute_layer(h: Tensor, stacked: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """FF(concat_h H_h) with a sigmoid layer FF."""
    outputs = [compute_head(h, *matrices.chunk(3))[0] for matrices in stacked]
    inner = weight @ torch.cat(outputs) + bias
    return 1 / (1 + (-inner).exp())


def build_layer(dim: int, *, heads: int, hard: bool = False) -> ColumnLayer:
    """Build the layer with random parameters, its bias included."""
    layer = ColumnLayer(dim, heads=heads, hard=hard).double()
    randomize_parameters(layer)
    return layer


@check(
    49,
    "S0:16-20",
    "Items are columns: H is D x K with one column for each of K items, and Q, K and V are D x D for each head.",
    formula=r"Q, K, V \in \R^{D \times D}, \quad H_\ell \in \R^{D \times K}",
    code=(ColumnLayer,),
    breaks=(
        "uniform-attention",
        "column-softmax-over-rows",
        "columns-stacked-in-another-order",
        "column-heads-in-reverse",
        "column-layer-without-sigmoid",
    ),
)
def items_are_columns() -> CheckResult:
    layer, h = build_layer(7, heads=3), sample_normal(7, 5)
    order = torch.tensor([4, 2, 0, 1, 3])
    matrices = [format_shape(part) for part in layer.stacked[0].chunk(3)]
    moved = h.clone()
    moved[:, 2] += 1
    changed = (layer(moved) - layer(h)).detach().abs().amax(0)
    return build_result(
        expect_equal("Q, K and V of a head, D x D", ", ".join(matrices), "7 x 7, 7 x 7, 7 x 7"),
        expect_equal("H before and after, D x K", f"{format_shape(h)}, {format_shape(layer(h))}", "7 x 5, 7 x 5"),
        expect_near(
            "permuting columns before or after the layer: difference",
            max_difference(layer(h[:, order]), layer(h)[:, order]),
            0,
            within=1e-12,
        ),
        expect_at_least("changing one column: smallest change of another", float(changed.min()), 1e-6),
        expect_near(
            "the layer: difference from the formulas of the notes",
            max_difference(layer(h), compute_layer(h, layer.stacked, layer.weight, layer.bias)),
            0,
            within=1e-12,
        ),
    )


@check(
    50,
    "S0:28",
    "With items as columns and without 1/√d, attention is the transpose of row-wise attention with plain dot products.",
    formula=r"H_{\ell,h} = V H \, \mathrm{SoftMax}((K H)^\top Q H)",
    code=(head_forward, attend, dot),
    breaks=(
        "uniform-attention",
        "column-scores-scaled",
        "dot-products-scaled",
        "columns-stacked-in-another-order",
        "doubled-values",
    ),
)
def columns_are_rows() -> CheckResult:
    h, q, k, v = sample_normal(7, 5), sample_normal(7, 7), sample_normal(7, 7), sample_normal(7, 7)
    notes = head_forward(h, torch.cat((q, k, v)), False).output
    parts = (q @ h).T, (k @ h).T, (v @ h).T
    ours, layer = attend(*parts, score=dot)[0].T, attend_in_layer(*parts, scaled=False).y.T
    scaled = attend(*parts, score=scaled_dot)[0].T
    by_hand, _ = compute_head(h, q, k, v)
    return build_result(
        expect_near("head: difference from the formula of the notes", max_difference(notes, by_hand), 0, within=1e-12),
        expect_near("largest difference from our transpose", max_difference(notes, ours), 0, within=1e-12),
        expect_near(
            "multi-head attention: difference from the transpose", max_difference(notes, layer), 0, within=1e-12
        ),
        expect_at_least("largest difference once scores are divided by √d", max_difference(notes, scaled), 1e-3),
    )


@check(
    51,
    "S0:32",
    "SoftMax of a J x N matrix normalises columns: each of the N instances sums to 1.",
    formula=r"\mathrm{SoftMax}(M) = \frac{\exp(M)}{1^\top \exp(M)}, \quad M \in \R^{J \times N}",
    code=(softmax, ColumnLayer),
    breaks=("uniform-attention", "column-softmax-over-rows", "weights-not-normalized"),
)
def columns_sum_to_one() -> CheckResult:
    m = sample_normal(5, 3)
    weights, notes = softmax(m), m.exp() / (torch.ones(1, 5).double() @ m.exp())
    layer, h = build_layer(7, heads=2), sample_normal(7, 5)
    used = layer.compute_weights(h)
    by_hand = torch.stack([compute_head(h, *matrices.chunk(3))[1] for matrices in layer.stacked])
    return build_result(
        expect_near("largest difference from the formula", max_difference(weights, notes), 0, within=1e-12),
        expect_near(
            "columns: distance of their sums from 1",
            max_difference(weights.sum(0), torch.ones(3).double()),
            0,
            within=1e-12,
        ),
        expect_at_least(
            "rows: distance of their sums from 1", max_difference(weights.sum(1), torch.ones(5).double()), 0.1
        ),
        expect_near(
            "scores of some thousands: distance of their sums from 1",
            max_difference(softmax(m * 1000).sum(0), torch.ones(3).double()),
            0,
            within=1e-12,
        ),
        expect_near(
            "weights of the layer: difference from the formula", max_difference(used, by_hand), 0, within=1e-12
        ),
        expect_near(
            "the layer uses them: difference from the formula",
            max_difference(layer(h), compute_layer(h, layer.stacked, layer.weight, layer.bias)),
            0,
            within=1e-12,
        ),
    )


@check(
    52,
    "S0:34",
    "Queries, keys and values are one product with the stacked matrices.",
    formula=r"(Q; K; V) H = (Q H; K H; V H)",
    code=(head_forward, HeadProjection),
    breaks=(
        "uniform-attention",
        "columns-stacked-in-another-order",
        "queries-from-the-key-matrix",
        "values-are-keys",
        "keys-and-values-swapped",
    ),
)
def stacked_product() -> CheckResult:
    h, parts = sample_normal(7, 5), [sample_normal(7, 7) for _ in range(3)]
    head = head_forward(h, torch.cat(parts), False)
    together = (head.query, head.key, head.value)
    differences = [max_difference(one, matrix @ h) for one, matrix in zip(together, parts, strict=True)]
    layer, x = SelfAttention(12, heads=3).double(), sample_normal(2, 5, 12)
    randomize_parameters(layer)
    heads = compute_heads(layer, x)
    expected = [torch.stack(made, 2) for made in ([a.q for a in heads], [a.k for a in heads], [a.v for a in heads])]
    rows = [max_difference(one, made) for one, made in zip(layer.project(x), expected, strict=True)]
    return build_result(
        expect_near("largest difference from three products", max(differences), 0, within=1e-12),
        expect_near(
            "head of these three: difference from the formula",
            max_difference(head.output, compute_head(h, *parts)[0]),
            0,
            within=1e-12,
        ),
        expect_near("multi-head attention: difference from nine products", max(rows), 0, within=1e-12),
        expect_near(
            "multi-head attention: difference from the formula",
            measure_layer(layer, x),
            0,
            within=1e-12,
        ),
    )


@check(
    53,
    "S0:38-40",
    "Heads keep the full width and are stacked: the sum of Kronecker products with one-hot vectors is a concatenation.",
    formula=r"H_\ell = \mathrm{FF}(\sum_h \delta_h \otimes H_{\ell,h})",
    code=(ColumnLayer, SelfAttention, FeedForward),
    breaks=(
        "uniform-attention",
        "column-heads-in-reverse",
        "column-layer-without-sigmoid",
        "column-scores-scaled",
        "feedforward-without-activation",
        "values-of-another-head",
    ),
)
def kronecker_is_concatenation() -> CheckResult:
    layer, h = build_layer(6, heads=3), sample_normal(6, 5)
    total = torch.zeros(18, 5).double()
    for index, matrices in enumerate(layer.stacked):
        one_hot = torch.zeros(3, 1).double()
        one_hot[index] = 1
        total = total + torch.kron(one_hot, compute_head(h, *matrices.chunk(3))[0].contiguous())
    by_hand = 1 / (1 + (-(layer.weight @ total + layer.bias)).exp())
    network, x = FeedForward(6, hidden_dim=11, activation="sigmoid").double(), sample_normal(2, 6)
    randomize_parameters(network)
    inner = x @ network.up.weight.T + network.up.bias
    rows = 1 / (1 + (-inner).exp()) @ network.down.weight.T + network.down.bias
    full, words = SelfAttention(6, heads=3, form="full").double(), sample_normal(1, 5, 6)
    randomize_parameters(full)
    joined = torch.cat([head.y for head in compute_heads(full, words)], -1)
    return build_result(
        expect_near(
            "the layer: difference from the Kronecker form", max_difference(layer(h), by_hand), 0, within=1e-12
        ),
        expect_equal(
            "features of an item after concatenation, h D, in both conventions",
            f"{len(total)}, {full.heads.out.get_parameter('weight').shape[1]}",
            f"18, {joined.shape[-1]}",
        ),
        expect_near(
            "full-width heads with items as rows: difference from the formula",
            measure_layer(full, words),
            0,
            within=1e-12,
        ),
        expect_near(
            "sigmoid network with items as rows: difference from the formula",
            max_difference(network(x), rows),
            0,
            within=1e-12,
        ),
    )


@check(
    54,
    "S0:22",
    "Each item may attend to one other item per head: hard attention; soft attention, the usual one, mixes all.",
    formula=r"a_{i,j} = 1 \quad \text{for} \quad i = \argmax_k M_{k,j}",
    code=(argmax, ColumnLayer),
    breaks=(
        "uniform-attention",
        "hard-attention-is-soft",
        "hard-attention-to-the-least",
        "columns-stacked-in-another-order",
    ),
)
def one_item_per_head() -> CheckResult:
    hard, soft = build_layer(7, heads=3, hard=True), build_layer(7, heads=3)
    soft.load_state_dict(hard.state_dict())
    h = sample_normal(7, 5)
    chosen, mixed = hard.compute_weights(h).detach(), soft.compute_weights(h).detach()
    queries, keys, values = (part @ h for part in hard.stacked.unflatten(1, (3, 7)).unbind(1))
    best = (keys.mT @ queries).argmax(1)  # of each head and item
    picked = torch.cat([value[:, item] for value, item in zip(values, best, strict=True)])
    by_hand = 1 / (1 + (-(hard.weight @ picked + hard.bias)).exp())
    return build_result(
        expect_equal(
            "hard: least and most items that an item attends to", str(_get_range((chosen > 0).sum(1))), "(1, 1)"
        ),
        expect_equal(
            "hard: the attended item has the largest score", str(chosen.argmax(1).tolist()), str(best.tolist())
        ),
        expect_near(
            "hard: layer, difference from the values of the attended items",
            max_difference(hard(h), by_hand),
            0,
            within=1e-12,
        ),
        expect_equal("soft: items that an item attends to, of 5", str(_get_range((mixed > 0).sum(1))), "(5, 5)"),
        expect_near(
            "soft: layer, difference from the formulas of the notes",
            max_difference(soft(h), compute_layer(h, soft.stacked, soft.weight, soft.bias)),
            0,
            within=1e-12,
        ),
    )


def _get_range(values: Tensor) -> tuple[int, int]:
    return int(values.min()), int(values.max())


@check(
    55,
    "S0:42",
    "Backpropagation through these matrix operations is straightforward: gradients by hand equal those of autograd.",
    formula=r"\frac{\partial L}{\partial M} = "
    r"A \odot (\frac{\partial L}{\partial A} - 1 \, 1^\top (A \odot \frac{\partial L}{\partial A}))",
    code=(head_backward, ColumnLayer),
    breaks=(
        "uniform-attention",
        "column-backward-without-softmax",
        "columns-stacked-in-another-order",
        "column-scores-scaled",
    ),
)
def backward_by_hand() -> CheckResult:
    layer, h = build_layer(5, heads=2), sample_normal(5, 4).requires_grad_()
    inputs = (h, layer.stacked, layer.weight, layer.bias)
    direction = sample_normal(5, 4)
    ours = torch.autograd.grad((layer(h) * direction).sum(), inputs)
    theirs = torch.autograd.grad((compute_layer(*inputs) * direction).sum(), inputs)
    names = ("H", "Q, K and V", "F", "b")
    differences = [max_difference(a, b) for a, b in zip(ours, theirs, strict=True)]
    return build_result(
        *(
            expect_near(f"gradient of {n}: difference of by hand and autograd", d, 0, within=1e-12)
            for n, d in zip(names, differences, strict=True)
        )
    )
