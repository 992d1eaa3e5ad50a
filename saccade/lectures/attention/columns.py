"""Checks on lecture S0, whose items are columns: its layer, compared with ours, whose items are rows."""

from __future__ import annotations

import torch
from torch import Tensor

from saccade.layers.attention.columns import ColumnLayer, argmax, head_backward, head_forward, softmax
from saccade.layers.attention.multihead import SelfAttention
from saccade.layers.attention.scores import attend, dot, scaled_dot
from saccade.layers.blocks.feedforward import FeedForward
from saccade.lectures.claims import CheckResult, build_result, check, expect_at_least, expect_equal, expect_near
from saccade.lectures.small import format_shape, max_difference, sample_normal


@check(
    49,
    "S0:16-20",
    "Items are columns: H is D x K with one column for each of K items, and Q, K and V are D x D for each head.",
    formula=r"Q, K, V \in \R^{D \times D}, \quad H_\ell \in \R^{D \times K}",
    code=(ColumnLayer,),
)
def items_are_columns() -> CheckResult:
    layer, h = ColumnLayer(7, heads=3).double(), sample_normal(7, 5)
    order = torch.tensor([4, 2, 0, 1, 3])
    matrices = [format_shape(part) for part in layer.stacked[0].chunk(3)]
    return build_result(
        expect_equal("Q, K and V of a head, D x D", ", ".join(matrices), "7 x 7, 7 x 7, 7 x 7"),
        expect_equal("H before and after, D x K", f"{format_shape(h)}, {format_shape(layer(h))}", "7 x 5, 7 x 5"),
        expect_near(
            "permuting columns before or after the layer: difference",
            max_difference(layer(h[:, order]), layer(h)[:, order]),
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
)
def columns_are_rows() -> CheckResult:
    h, q, k, v = sample_normal(7, 5), sample_normal(7, 7), sample_normal(7, 7), sample_normal(7, 7)
    notes = head_forward(h, torch.cat((q, k, v)), False).output
    ours = attend((q @ h).T, (k @ h).T, (v @ h).T, score=dot)[0].T
    scaled = attend((q @ h).T, (k @ h).T, (v @ h).T, score=scaled_dot)[0].T
    return build_result(
        expect_near("largest difference from our transpose", max_difference(notes, ours), 0, within=1e-12),
        expect_at_least("largest difference once scores are divided by √d", max_difference(notes, scaled), 1e-3),
    )


@check(
    51,
    "S0:32",
    "SoftMax of a J x N matrix normalises columns: each of the N instances sums to 1.",
    formula=r"\mathrm{SoftMax}(M) = \frac{\exp(M)}{1^\top \exp(M)}, \quad M \in \R^{J \times N}",
    code=(softmax,),
)
def columns_sum_to_one() -> CheckResult:
    m = sample_normal(5, 3)
    weights, notes = softmax(m), m.exp() / (torch.ones(1, 5).double() @ m.exp())
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
    )


@check(
    52,
    "S0:34",
    "Queries, keys and values are one product with the stacked matrices.",
    formula=r"(Q; K; V) H = (Q H; K H; V H)",
    code=(head_forward,),
)
def stacked_product() -> CheckResult:
    h, parts = sample_normal(7, 5), [sample_normal(7, 7) for _ in range(3)]
    head = head_forward(h, torch.cat(parts), False)
    together = (head.query, head.key, head.value)
    differences = [max_difference(one, matrix @ h) for one, matrix in zip(together, parts, strict=True)]
    return build_result(expect_near("largest difference from three products", max(differences), 0, within=1e-12))


@check(
    53,
    "S0:38-40",
    "Heads keep the full width and are stacked: the sum of Kronecker products with one-hot vectors is a concatenation.",
    formula=r"H_\ell = \mathrm{FF}(\sum_h \delta_h \otimes H_{\ell,h})",
    code=(ColumnLayer, SelfAttention, FeedForward),
)
def kronecker_is_concatenation() -> CheckResult:
    layer, h = ColumnLayer(6, heads=3).double(), sample_normal(6, 5)
    total = torch.zeros(18, 5).double()
    for index, matrices in enumerate(layer.stacked):
        one_hot = torch.zeros(3, 1).double()
        one_hot[index] = 1
        total = total + torch.kron(one_hot, head_forward(h, matrices, False).output.contiguous())
    by_hand = torch.sigmoid(layer.weight @ total + layer.bias)
    network, x = FeedForward(6, hidden_dim=11, activation="sigmoid").double(), sample_normal(2, 6)
    rows = torch.sigmoid(x @ network.up.weight.T + network.up.bias) @ network.down.weight.T + network.down.bias
    joined = SelfAttention(6, heads=3, form="full", bias=False).heads.out.get_parameter("weight").shape[1]
    return build_result(
        expect_near(
            "the layer: difference from the Kronecker form", max_difference(layer(h), by_hand), 0, within=1e-12
        ),
        expect_equal(
            "features of an item after concatenation, h D, in both conventions", f"{len(total)}, {joined}", "18, 18"
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
)
def one_item_per_head() -> CheckResult:
    hard, soft = ColumnLayer(7, heads=3, hard=True).double(), ColumnLayer(7, heads=3).double()
    soft.load_state_dict(hard.state_dict())
    h = sample_normal(7, 5)
    chosen, mixed = hard.compute_weights(h).detach(), soft.compute_weights(h).detach()
    return build_result(
        expect_equal(
            "hard: least and most items that an item attends to", str(_get_range((chosen > 0).sum(1))), "(1, 1)"
        ),
        expect_equal(
            "hard: the attended item has the largest score", bool((chosen.argmax(1) == mixed.argmax(1)).all()), True
        ),
        expect_equal("soft: items that an item attends to, of 5", str(_get_range((mixed > 0).sum(1))), "(5, 5)"),
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
)
def backward_by_hand() -> CheckResult:
    layer, h = ColumnLayer(5, heads=2).double(), sample_normal(5, 4).requires_grad_()
    inputs = (h, layer.stacked, layer.weight, layer.bias)
    direction = sample_normal(5, 4)
    ours = torch.autograd.grad((layer(h) * direction).sum(), inputs)
    theirs = torch.autograd.grad((_compute_with_autograd(*inputs) * direction).sum(), inputs)
    names = ("H", "Q, K and V", "F", "b")
    differences = [max_difference(a, b) for a, b in zip(ours, theirs, strict=True)]
    return build_result(
        *(
            expect_near(f"gradient of {n}: difference of by hand and autograd", d, 0, within=1e-12)
            for n, d in zip(names, differences, strict=True)
        )
    )


def _compute_with_autograd(h: Tensor, stacked: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute the formulas of the notes with operations that autograd differentiates."""
    outputs = []
    for q, k, v in (matrices.chunk(3) for matrices in stacked):
        outputs.append(v @ h @ torch.softmax((k @ h).T @ (q @ h), dim=0))
    return torch.sigmoid(weight @ torch.cat(outputs) + bias)
