"""Checks on masks: causal masking, masking before and after the softmax, and recorded attention weights."""

from __future__ import annotations

import torch
from torch import Tensor

from saccade.layers.attention import masks
from saccade.layers.attention.masks import Causal
from saccade.layers.attention.multihead import SelfAttention
from saccade.layers.attention.scores import masked_softmax
from saccade.lectures.claims import (
    CheckResult,
    build_result,
    check,
    expect_at_least,
    expect_at_most,
    expect_equal,
    expect_near,
)
from saccade.lectures.drawing import Matrix
from saccade.lectures.small import build_stack, max_difference, sample_normal


@check(
    61,
    "S3:1142-1176",
    "Masked self-attention does not look ahead: changing x_j leaves every earlier output unchanged, bit for bit.",
    formula=r"E_{i,j} = -\infty \quad (j > i)",
    code=(Causal, SelfAttention, masked_softmax),
)
def no_look_ahead() -> CheckResult:
    deep, x = build_stack(6, layers=2, causal=True), sample_normal(1, 7, 6)
    before = deep(x, None)[0]
    changed = 0
    for j in range(7):
        moved = x.clone()
        moved[0, j] += 1
        changed += int((deep(moved, None)[0] != before)[0, :j].any(-1).sum())
    at = masks.make_positions(7, x.device)
    weights = masked_softmax(sample_normal(7, 7), masks.causal().to_dense(at, at)[0])
    caption = "Attention weights under the causal mask: query i (row) attends to keys 1 to i (columns)."
    names = [str(i) for i in range(1, 8)]
    return build_result(
        expect_equal("earlier outputs that changed, of 21", changed, 0),
        expect_equal("largest weight above the diagonal", float(weights.triu(1).max()), 0.0),
        expect_equal("attention weights of the first position", str(weights[0].tolist()), str([1.0] + [0.0] * 6)),
        drawing=Matrix("query", "key", weights.tolist(), caption, names, names),
    )


@check(
    62,
    "S4:190-214",
    "Setting scores to -∞ before the softmax equals masking after it and renormalising; only the first is always safe.",
    formula=r"\softmax(E + M)_{i,j} = \frac{m_{i,j} \, \softmax(E)_{i,j}}{\sum_k m_{i,k} \, \softmax(E)_{i,k}}",
    code=(masked_softmax,),
)
def mask_and_renormalise() -> CheckResult:
    e = (torch.rand(5, 7, dtype=torch.float64) * 2 - 1) * 20
    mask = torch.ones(5, 7, dtype=torch.bool).tril(2)
    compared = [
        expect_near(
            "largest difference, |scores| ≤ 20, double precision",
            max_difference(masked_softmax(e, mask), mask_and_normalize(e, mask)),
            0,
            within=1e-12,
        )
    ]
    for kind, lead in ((torch.float32, 110.0), (torch.float64, 750.0)):
        scores = torch.zeros(1, 3, dtype=kind)
        scores[0, 2] = lead  # the masked position
        allowed = torch.tensor([[True, True, False]])
        name = f"{str(kind).removeprefix('torch.')}, a masked score leads by {lead:.0f}: "
        broken = mask_and_normalize(scores, allowed)
        compared.append(expect_equal(f"{name}renormalised gives 0/0", bool(broken.isnan().any()), True))
        compared.append(
            expect_near(
                f"{name}-∞ gives the right weight", float(masked_softmax(scores, allowed)[0, 0]), 0.5, within=1e-6
            )
        )
    return build_result(*compared)


def mask_and_normalize(scores: Tensor, mask: Tensor) -> Tensor:
    """Compute masked weights as the slide does: softmax over all positions, then mask and normalize."""
    weights = scores.softmax(-1) * mask
    return weights / weights.sum(-1, keepdim=True)


@check(
    69,
    "S4:164-166",
    "The attention weights of every layer and head of the encoder can be recorded; each row is a distribution.",
    formula=r"A^{(\ell,h)} \in \R^{N \times N}, \quad \sum_j A^{(\ell,h)}_{i,j} = 1",
    code=(SelfAttention,),
)
def every_head_can_be_seen() -> CheckResult:
    from saccade.layers.record import record

    deep, x = build_stack(6, layers=3), sample_normal(1, 5, 6)
    plain = deep(x, None)[0]
    with torch.no_grad(), record(deep) as maps:
        recorded = deep(x, None)[0]
    worst = max((max_difference(a.sum(-1), torch.ones(a.shape[:-1]).double()) for a in maps.values()), default=9.0)
    caption = "Self-attention of an untrained encoder, layer 1, head 1; `saccade view` shows that of a run."
    first = next(iter(maps.values()))[0, 0].tolist() if maps else [[0.0]]
    return build_result(
        expect_equal("attention maps recorded from 3 layers x 2 heads", sum(a.shape[1] for a in maps.values()), 6),
        expect_at_most("largest distance of a row's sum from 1", worst, 1e-12),
        expect_near("outputs with and without recording: difference", max_difference(plain, recorded), 0, within=1e-12),
        expect_at_least(
            "smallest weight (above 0: every position attends to all)",
            min((float(a.min()) for a in maps.values()), default=0.0),
            1e-6,
        ),
        drawing=Matrix("query", "key", first, caption),
    )
