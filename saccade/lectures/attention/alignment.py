"""Check on alignment: what the decoder attends to when the word order of source and target differs."""

from __future__ import annotations

import torch
from torch import Tensor

from saccade.layers.attention.scores import Additive, attend
from saccade.lectures.claims import CheckResult, build_result, check, expect_at_least, expect_at_most, expect_equal
from saccade.lectures.drawing import Matrix
from saccade.lectures.systems.reader_writer import ReaderWriter, measure_accuracy, train_model

SYMBOLS = 10
ORDER = [0, 1, 5, 4, 3, 2, 6, 7]  # a block in the middle is reversed, like "European Economic Area" in French
STEPS = 800


def sample_reordered(rows: int, length: int) -> tuple[Tensor, Tensor]:
    """Sample sequences of eight symbols and their reordered targets; `length` is ignored."""
    source = torch.randint(SYMBOLS, (rows, len(ORDER)))
    return source, source[:, ORDER]


@check(
    21,
    "S3:176-225",
    "Learned attention shows word order: diagonal where it is the same, antidiagonal where a block is reversed.",
    formula=r"\argmax_i a_{t,i} = \mathrm{source~position~of~} y_t",
    code=(attend, Additive, ReaderWriter),
    trains=True,
)
def reordering() -> CheckResult:
    model = ReaderWriter(SYMBOLS, width=64, attention=True)
    train_model(model, sample_reordered, max_length=1, steps=STEPS)
    source, target = sample_reordered(200, 8)
    with torch.no_grad():
        weights = model(source, target)[2]
    mean, right = weights.mean(0), weights.argmax(-1) == torch.tensor(ORDER)
    caption = (
        "Mean attention weights over 200 sequences, target (rows) by source positions; the middle block is reversed."
    )
    names = [str(i) for i in range(1, 9)]
    return build_result(
        expect_at_least("accuracy", measure_accuracy(model, sample_reordered, 8), 0.97),
        expect_equal(
            "source position with the largest mean weight, for each target position",
            str(mean.argmax(-1).tolist()),
            str(ORDER),
        ),
        expect_at_least(
            "share of words whose largest weight is on their own source word", float(right.float().mean()), 0.85
        ),
        expect_at_most("largest distance of a row's sum from 1", float((weights.sum(-1) - 1).abs().max()), 1e-5),
        drawing=Matrix("target", "source", mean.tolist(), caption, names, names),
        note="The slide's example needs a French model: `saccade view RUN SOURCE --target TEXT` draws its map.",
    )
