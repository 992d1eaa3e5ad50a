"""Rows about alignment: where the decoder looks when the order of words differs."""

from __future__ import annotations

import torch
from torch import Tensor

from saccade.layers.attention.scores import Additive, attend
from saccade.lectures.claims import Measured, at_least, at_most, check, measured, same
from saccade.lectures.drawing import Matrix
from saccade.lectures.systems.reader_writer import ReaderWriter, accuracy, learn

SYMBOLS = 10
ORDER = [0, 1, 5, 4, 3, 2, 6, 7]  # a block in the middle is turned round, as European Economic Area is in French
STEPS = 800


def reordered(rows: int, length: int) -> tuple[Tensor, Tensor]:
    """Texts of eight symbols, whatever length is asked for."""
    source = torch.randint(SYMBOLS, (rows, len(ORDER)))
    return source, source[:, ORDER]


@check(
    21,
    "S3:176-225",
    "Learned attention shows the order of words: diagonal where it is the same, antidiagonal where a block is turned.",
    formula=r"\argmax_i a_{t,i} = \mathrm{place~of~the~source~of~} y_t",
    code=(attend, Additive, ReaderWriter),
    trains=True,
)
def reordering() -> Measured:
    model = ReaderWriter(SYMBOLS, width=64, attention=True)
    learn(model, reordered, longest=1, steps=STEPS)
    source, target = reordered(200, 8)
    with torch.no_grad():
        weights = model(source, target)[2]
    mean, right = weights.mean(0), weights.argmax(-1) == torch.tensor(ORDER)
    caption = (
        "Mean attention weights over 200 texts: target place (rows) against source place; the middle block is turned."
    )
    names = [str(i) for i in range(1, 9)]
    return measured(
        at_least("accuracy", accuracy(model, reordered, 8), 0.97),
        same("source place that each target place looks at most", str(mean.argmax(-1).tolist()), str(ORDER)),
        at_least("share of words that look at their own source most", float(right.float().mean()), 0.85),
        at_most("largest distance of a row's sum from 1", float((weights.sum(-1) - 1).abs().max()), 1e-5),
        drawing=Matrix("target", "source", mean.tolist(), caption, names, names),
        note="The sentence of the slide needs a French model: `saccade view RUN SOURCE --target TEXT` draws it.",
    )
