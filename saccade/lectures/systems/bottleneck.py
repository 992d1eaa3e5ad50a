"""Checks on the bottleneck: one context vector for a whole sentence, compared with attention at each step."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from saccade.layers.attention.scores import Additive, attend
from saccade.lectures.claims import CheckResult, build_result, check, expect_at_least, expect_at_most, expect_equal
from saccade.lectures.drawing import Lines
from saccade.lectures.systems.reader_writer import ReaderWriter, measure_accuracy, train_model

SYMBOLS, WIDTH = 10, 64
MAX_LENGTH, STEPS = 40, 400
LENGTHS = [2, 5, 10, 20, 30, 40]


def sample_reversed(rows: int, length: int) -> tuple[Tensor, Tensor]:
    """Sample random symbol sequences and their reversals."""
    source = torch.randint(SYMBOLS, (rows, length))
    return source, source.flip(1)


def train_system(*, attention: bool) -> ReaderWriter:
    model = ReaderWriter(SYMBOLS, width=WIDTH, attention=attention)
    train_model(model, sample_reversed, max_length=MAX_LENGTH, steps=STEPS)
    return model


@check(
    5,
    "S3:83",
    "One context vector is a bottleneck: accuracy falls with the sequence length T; with attention it does not.",
    formula=r"c = h_T \quad \text{against} \quad c_t = \sum_i a_{t,i} h_i",
    code=(attend, Additive, ReaderWriter),
    trains=True,
)
def bottleneck() -> CheckResult:
    curves = {}
    for name, attention in (("one vector", False), ("attention", True)):
        model = train_system(attention=attention)
        curves[name] = ([float(n) for n in LENGTHS], [measure_accuracy(model, sample_reversed, n) for n in LENGTHS])
    fixed, attending = curves["one vector"][1], curves["attention"][1]
    caption = (
        f"Reversing random symbols: accuracy against the length T after {STEPS} steps on lengths 1 to {MAX_LENGTH}."
    )
    return build_result(
        expect_at_least("one vector: accuracy at length 2", fixed[0], 0.95),
        expect_at_most("one vector: accuracy at length 40", fixed[-1], 0.6),
        expect_at_most(
            "one vector: largest rise from one length to the next",
            max(b - a for a, b in pairwise(fixed)),
            0.02,
        ),
        expect_at_least("attention: accuracy at length 2", attending[0], 0.95),
        expect_at_least("attention: accuracy at length 40", attending[-1], 0.95),
        drawing=Lines("T", "accuracy", curves, caption),
    )


@check(
    19,
    "S3:163-173",
    "With attention every decoder step has its own context, so the source need not pass through one vector.",
    formula=r"c_1 \neq c_2 \neq \dots",
    code=(attend, ReaderWriter),
    trains=True,
)
def own_contexts() -> CheckResult:
    model, length = ReaderWriter(SYMBOLS, width=WIDTH, attention=True), 12
    train_model(model, sample_reversed, max_length=length, steps=STEPS)
    source, target = sample_reversed(50, length)
    with torch.no_grad():
        _, contexts, weights = model(source, target)
        fixed = ReaderWriter(SYMBOLS, width=WIDTH, attention=False)(source, target)[1]
    apart = (contexts[:, 1:] - contexts[:, :-1]).norm(dim=-1) / contexts.norm(dim=-1)[:, 1:]
    places = weights.mean(0).argmax(-1).tolist()
    return build_result(
        expect_at_least(
            "attention: median change from one context to the next, relative to its norm", float(apart.median()), 0.2
        ),
        expect_equal(
            "one vector: largest change from one context to the next",
            float((fixed[:, 1:] - fixed[:, :-1]).abs().max()),
            0.0,
        ),
        expect_equal("distinct source positions with the largest weight over 12 steps", len(set(places)), length),
        expect_at_least("accuracy at length 12", measure_accuracy(model, sample_reversed, length), 0.95),
    )
