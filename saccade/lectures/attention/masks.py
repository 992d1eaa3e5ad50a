"""Rows about masks: what has not been written yet cannot be seen."""

from __future__ import annotations

import torch
from torch import Tensor

from saccade.layers.attention import masks
from saccade.layers.attention.masks import Causal
from saccade.layers.attention.multihead import SelfAttention
from saccade.layers.attention.scores import masked_softmax
from saccade.lectures.claims import Measured, at_least, at_most, check, measured, near, same
from saccade.lectures.drawing import Matrix
from saccade.lectures.small import apart, numbers, stack


@check(
    61,
    "S3:1142-1176",
    "Masked self-attention does not look ahead: changing x_j leaves every earlier output as it was, bit for bit.",
    formula=r"E_{i,j} = -\infty \quad (j > i)",
    code=(Causal, SelfAttention, masked_softmax),
)
def no_look_ahead() -> Measured:
    deep, x = stack(6, layers=2, causal=True), numbers(1, 7, 6)
    before = deep(x, None)[0]
    changed = 0
    for j in range(7):
        moved = x.clone()
        moved[0, j] += 1
        changed += int((deep(moved, None)[0] != before)[0, :j].any(-1).sum())
    at = masks.positions(7, x.device)
    weights = masked_softmax(numbers(7, 7), masks.causal().dense(at, at)[0])
    caption = "Attention weights under the causal mask: row i sees columns 1 to i."
    names = [str(i) for i in range(1, 8)]
    return measured(
        same("earlier outputs that changed, of 21", changed, 0),
        same("largest weight above the diagonal", float(weights.triu(1).max()), 0.0),
        same("what the first position sees", str(weights[0].tolist()), str([1.0] + [0.0] * 6)),
        drawing=Matrix("query", "key", weights.tolist(), caption, names, names),
    )


@check(
    62,
    "S4:190-214",
    "Setting scores to -∞ before the softmax equals masking after it and renormalising; only the first is always safe.",
    formula=r"\softmax(E + M)_{i,j} = \frac{m_{i,j} \, \softmax(E)_{i,j}}{\sum_k m_{i,k} \, \softmax(E)_{i,k}}",
    code=(masked_softmax,),
)
def mask_and_renormalise() -> Measured:
    e = (torch.rand(5, 7, dtype=torch.float64) * 2 - 1) * 20
    mask = torch.ones(5, 7, dtype=torch.bool).tril(2)
    compared = [
        near(
            "largest difference, |scores| ≤ 20, double precision",
            apart(masked_softmax(e, mask), renormalised(e, mask)),
            0,
            within=1e-12,
        )
    ]
    for kind, lead in ((torch.float32, 110.0), (torch.float64, 750.0)):
        scores = torch.zeros(1, 3, dtype=kind)
        scores[0, 2] = lead  # the masked one
        allowed = torch.tensor([[True, True, False]])
        name = f"{str(kind).removeprefix('torch.')}, a masked score leads by {lead:.0f}: "
        broken = renormalised(scores, allowed)
        compared.append(same(f"{name}renormalised gives 0/0", bool(broken.isnan().any()), True))
        compared.append(
            near(f"{name}-∞ gives the right weight", float(masked_softmax(scores, allowed)[0, 0]), 0.5, within=1e-6)
        )
    return measured(*compared)


def renormalised(scores: Tensor, mask: Tensor) -> Tensor:
    """The form of the slide: softmax over all, then the rest taken away and the sum made 1 again."""
    left = scores.softmax(-1) * mask
    return left / left.sum(-1, keepdim=True)


@check(
    69,
    "S4:164-166",
    "The weights of every layer and head of the encoder can be looked at; each row is a distribution.",
    formula=r"A^{(\ell,h)} \in \R^{N \times N}, \quad \sum_j A^{(\ell,h)}_{i,j} = 1",
    code=(SelfAttention,),
)
def every_head_can_be_seen() -> Measured:
    from saccade.layers.record import record

    deep, x = stack(6, layers=3), numbers(1, 5, 6)
    plain = deep(x, None)[0]
    with torch.no_grad(), record(deep) as maps:
        looked = deep(x, None)[0]
    worst = max((apart(a.sum(-1), torch.ones(a.shape[:-1]).double()) for a in maps.values()), default=9.0)
    caption = "Self-attention of an untrained encoder, layer 1, head 1; `saccade view` shows that of a run."
    first = next(iter(maps.values()))[0, 0].tolist() if maps else [[0.0]]
    return measured(
        same("maps seen, layers x heads of 3 x 2", sum(a.shape[1] for a in maps.values()), 6),
        at_most("largest distance of a row's sum from 1", worst, 1e-12),
        near("outputs with somebody looking against without", apart(plain, looked), 0, within=1e-12),
        at_least(
            "smallest weight: all items are mixed", min((float(a.min()) for a in maps.values()), default=0.0), 1e-6
        ),
        drawing=Matrix("query", "key", first, caption),
    )
