"""Rows about the bottleneck: one vector for a whole sentence, against one look at all states for each word."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from saccade.layers.attention.scores import Additive, attend
from saccade.lectures.claims import Measured, at_least, at_most, check, measured, same
from saccade.lectures.drawing import Lines
from saccade.lectures.systems.reader_writer import ReaderWriter, accuracy, learn

SYMBOLS, WIDTH = 10, 64
LONGEST, STEPS = 40, 400
LENGTHS = [2, 5, 10, 20, 30, 40]


def reversed_texts(rows: int, length: int) -> tuple[Tensor, Tensor]:
    """Random symbols and the same backwards."""
    source = torch.randint(SYMBOLS, (rows, length))
    return source, source.flip(1)


def trained(*, attention: bool) -> ReaderWriter:
    model = ReaderWriter(SYMBOLS, width=WIDTH, attention=attention)
    learn(model, reversed_texts, longest=LONGEST, steps=STEPS)
    return model


@check(
    5,
    "S3:83",
    "One context vector is a bottleneck: what if T = 1000? Accuracy falls with the length; with attention it does not.",
    formula=r"c = h_T \quad \text{against} \quad c_t = \sum_i a_{t,i} h_i",
    code=(attend, Additive, ReaderWriter),
    trains=True,
)
def bottleneck() -> Measured:
    curves = {}
    for name, attention in (("one vector", False), ("attention", True)):
        model = trained(attention=attention)
        curves[name] = ([float(n) for n in LENGTHS], [accuracy(model, reversed_texts, n) for n in LENGTHS])
    fixed, looking = curves["one vector"][1], curves["attention"][1]
    caption = (
        f"Reversing random symbols: accuracy against the length T, both after {STEPS} steps on lengths 1 to {LONGEST}."
    )
    return measured(
        at_least("one vector: accuracy at length 2", fixed[0], 0.95),
        at_most("one vector: accuracy at length 40", fixed[-1], 0.6),
        at_most(
            "one vector: largest rise from one length to the next",
            max(b - a for a, b in pairwise(fixed)),
            0.02,
        ),
        at_least("attention: accuracy at length 2", looking[0], 0.95),
        at_least("attention: accuracy at length 40", looking[-1], 0.95),
        drawing=Lines("T", "accuracy", curves, caption),
    )


@check(
    19,
    "S3:163-173",
    "With attention every step of the decoder has a context of its own, so nothing must pass through one vector.",
    formula=r"c_1 \neq c_2 \neq \dots",
    code=(attend, ReaderWriter),
    trains=True,
)
def own_contexts() -> Measured:
    model, length = ReaderWriter(SYMBOLS, width=WIDTH, attention=True), 12
    learn(model, reversed_texts, longest=length, steps=STEPS)
    source, target = reversed_texts(50, length)
    with torch.no_grad():
        _, contexts, weights = model(source, target)
        fixed = ReaderWriter(SYMBOLS, width=WIDTH, attention=False)(source, target)[1]
    apart = (contexts[:, 1:] - contexts[:, :-1]).norm(dim=-1) / contexts.norm(dim=-1)[:, 1:]
    places = weights.mean(0).argmax(-1).tolist()
    return measured(
        at_least("median change from one context to the next, over its norm", float(apart.median()), 0.2),
        same("the same with one vector", float((fixed[:, 1:] - fixed[:, :-1]).abs().max()), 0.0),
        same("source places that the 12 steps look at most, distinct", len(set(places)), length),
        at_least("accuracy at length 12", accuracy(model, reversed_texts, length), 0.95),
    )
