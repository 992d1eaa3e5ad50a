"""Checks on attention itself: scores, weights, weighted sum."""

from __future__ import annotations

import torch
from torch import Tensor

from saccade.layers.attention.scores import Additive, attend, masked_softmax
from saccade.lectures.claims import (
    CheckResult,
    build_result,
    check,
    expect_at_least,
    expect_at_most,
    expect_equal,
    expect_near,
)
from saccade.lectures.small import max_difference, sample_normal


@check(
    14,
    "S3:121",
    "The alignment score of Bahdanau is a small network of the decoder's state and an encoder's state.",
    formula=r"e_{t,i} = v^\top \tanh(W s_{t-1} + U h_i)",
    code=(Additive,),
)
def additive_score() -> CheckResult:
    score = Additive(5, key_dim=7, hidden_dim=11).double()
    s, h = sample_normal(3, 5), sample_normal(13, 7)
    w, u, v = score.query.weight, score.key.weight, score.energy.weight[0]
    by_hand = torch.stack([torch.stack([v @ torch.tanh(w @ q + u @ k) for k in h]) for q in s])
    return build_result(
        expect_near("largest difference from the formula", max_difference(score(s, h), by_hand), 0, within=1e-12)
    )


@check(
    15,
    "S3:129",
    "Attention weights lie between 0 and 1 and sum to 1; padding gets exactly 0.",
    formula=r"0 < a_{t,i} < 1, \quad \sum_i a_{t,i} = 1",
    code=(masked_softmax,),
)
def weights_are_a_distribution() -> CheckResult:
    mask = torch.ones(4, 7, dtype=torch.bool)
    mask[:, 5:] = False  # two positions of padding
    _, a = attend(sample_normal(4, 8), sample_normal(7, 8), sample_normal(7, 3), mask=mask)
    return build_result(
        expect_near(
            "largest distance of a row's sum from 1", max_difference(a.sum(-1), torch.ones(4).double()), 0, within=1e-12
        ),
        expect_at_least("smallest weight of a real position", float(a[:, :5].min()), 1e-12),
        expect_at_most("largest weight", float(a.max()), 1 - 1e-12),
        expect_equal("largest weight of padding", float(a[:, 5:].max()), 0.0),
    )


@check(
    16,
    "S3:138",
    "The context vector is the sum of the encoder's states, weighted by attention.",
    formula=r"c_t = \sum_i a_{t,i} h_i",
    code=(attend,),
)
def context_vector() -> CheckResult:
    s, h = sample_normal(3, 5), sample_normal(7, 5)
    c, a = attend(s, h, h)
    by_hand = torch.stack([sum((a[t, i] * h[i] for i in range(7)), torch.zeros(5).double()) for t in range(3)])
    return build_result(expect_near("largest difference from the sum", max_difference(c, by_hand), 0, within=1e-12))


@check(
    18,
    "S3:144",
    "Everything is differentiable: attention weights are learned without supervision.",
    formula=r"\frac{\partial L}{\partial e} = \frac{\partial L}{\partial c} "
    r"\frac{\partial c}{\partial a} \frac{\partial a}{\partial e}",
    code=(attend, Additive),
)
def differentiable() -> CheckResult:
    score = Additive(2, key_dim=3, hidden_dim=5).double()
    s, h = sample_normal(2, 2).requires_grad_(), sample_normal(4, 3).requires_grad_()

    def context(query: Tensor, states: Tensor) -> Tensor:
        return attend(query, states, states, score=score)[0]

    agrees = torch.autograd.gradcheck(context, (s, h), raise_exception=False)
    context(s, h).square().sum().backward()
    moved = sum(1 for p in score.parameters() if p.grad is not None and bool(p.grad.abs().max() > 0))
    return build_result(
        expect_equal("backpropagation agrees with finite differences", agrees, True),
        expect_equal("matrices of the score that get a gradient from the output alone", moved, 3),
    )


@check(
    24,
    "S3:232-284",
    "On the feature grid of a picture, the softmax runs over all H x W positions, and c_t sums over the whole grid.",
    formula=r"\sum_{i,j} a_{t,i,j} = 1, \quad c_t = \sum_{i,j} a_{t,i,j} h_{i,j}",
    code=(attend, Additive),
)
def attention_over_a_grid() -> CheckResult:
    grid, s = sample_normal(3, 5, 7), sample_normal(1, 4)
    score = Additive(4, key_dim=7, hidden_dim=11).double()
    c, a = attend(s, grid.flatten(0, 1), grid.flatten(0, 1), score=score)
    a = a.detach().reshape(3, 5)
    return build_result(
        expect_near("sum of the weights over the grid", float(a.sum()), 1, within=1e-12),
        expect_at_most("largest sum of the weights in one row of the grid", float(a.sum(1).max()), 0.999),
        expect_near(
            "c: difference from the double sum",
            max_difference(c[0], (a[..., None] * grid).sum((0, 1))),
            0,
            within=1e-12,
        ),
    )
