"""Check on alignment: what the decoder attends to when the word order of source and target differs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

from saccade.layers.attention.alignment import SoftAttention
from saccade.layers.blocks.recurrence import BahdanauRecurrence
from saccade.lectures.claims import CheckResult, build_result, check, expect_at_least, expect_at_most, expect_equal
from saccade.lectures.drawing import Matrix
from saccade.lectures.systems.symbols import measure_accuracy, sample_pairs, train_on_pairs
from saccade.predict.predictors.predictor import Predictor

ORDER = [0, 1, 5, 4, 3, 2, 6, 7]  # a block in the middle is reversed, like "European Economic Area" in French
STEPS, ROWS, TESTS = 400, 5000, 50
CHANGES = ["reader.stack.dropout=0.2", "writer.stack.dropout=0.2", "train.schedule.lr=0.006"]


def reorder(row: str) -> str:
    return "".join(row[i] for i in ORDER)


def format_moves(positions: Sequence[float]) -> str:
    return " ".join("+" if b > a else "-" for a, b in pairwise(positions))


@check(
    21,
    "S3:176-225",
    "Learned attention shows word order: diagonal where it is the same, antidiagonal where a block is reversed.",
    formula=r"\argmax_i a_{t,i} = \mathrm{source~position~of~} y_t",
    code=(BahdanauRecurrence, SoftAttention, Predictor.attention),
    trains=True,
    breaks=("uniform-attention", "attention-without-gradient", "score-ignores-the-query", "recorded-steps-shifted"),
)
def reordering() -> CheckResult:
    length = len(ORDER)
    pairs = sample_pairs(ROWS + TESTS, (length, length), reorder, letters=26)
    run, tests = train_on_pairs("bahdanau", pairs[TESTS:], steps=STEPS, dim=64, changes=CHANGES), pairs[:TESTS]
    found = [run.attention(source, target) for source, target in tests]
    maps = torch.stack([weights[0] for one in found for weights in one.maps.values()])
    mean, right = maps.mean(0), maps[:, :length].argmax(-1) == torch.tensor(ORDER)
    caption = (
        f"Mean attention weights of the recipe bahdanau over {TESTS} sequences, target (rows) by source positions, "
        "with the end token; the middle block is reversed."
    )
    names = [*(str(i) for i in range(1, length + 1)), "<end>"]
    return build_result(
        expect_at_least("accuracy", measure_accuracy(run, tests), 0.97),
        expect_equal(
            "labels of the target positions", " ".join(found[0].target_labels), " ".join([*tests[0][1], "<end>"])
        ),
        expect_equal(
            "mean attended position from one letter to the next: forward (+) or backward (-)",
            format_moves((mean[:length] @ torch.arange(length + 1.0)).tolist()),
            format_moves(ORDER),
        ),
        expect_at_least(
            "share of letters whose largest weight is on their own source letter", float(right.float().mean()), 0.8
        ),
        expect_at_most("largest distance of a row's sum from 1", float((maps.sum(-1) - 1).abs().max()), 1e-5),
        drawing=Matrix("target", "source", mean.tolist(), caption, names, names),
        note="The slide's example needs a French model: saccade view RUN SOURCE --target TEXT draws its map.",
    )
