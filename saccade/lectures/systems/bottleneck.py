"""Checks on the bottleneck: one context vector for a whole sentence, compared with attention at each step."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch

from saccade.data.tokenization.tokenizers import START
from saccade.layers.blocks.recurrence import BahdanauRecurrence, FixedContextRecurrence
from saccade.lectures.claims import CheckResult, build_result, check, expect_at_least, expect_at_most, expect_equal
from saccade.lectures.drawing import Lines
from saccade.lectures.systems.symbols import (
    Pairs,
    encode_pairs,
    measure_accuracy,
    reverse,
    sample_pairs,
    train_on_pairs,
)
from saccade.model.writers.tokens import shift_right
from saccade.predict.predictors.predictor import Predictor
from saccade.train.api import train

WIDTH, ROWS = 64, 5000
MAX_LENGTH, STEPS = 20, 450
LENGTHS = [2, 5, 10, 15, 20]


@check(
    5,
    "S3:83",
    "One context vector is a bottleneck: accuracy falls with the sequence length T; with attention it does not.",
    formula=r"c = h_T \quad \text{against} \quad c_t = \sum_i a_{t,i} h_i",
    code=(FixedContextRecurrence, BahdanauRecurrence, train),
    trains=True,
    recipes=("sutskever",),
    breaks=("uniform-attention", "attention-to-the-last-state", "initial-state-is-zero"),
)
def bottleneck() -> CheckResult:
    pairs = sample_pairs(ROWS, (1, MAX_LENGTH), reverse)
    tests = [sample_pairs(100, (length, length), reverse) for length in LENGTHS]
    fixed, attending = (
        [measure_accuracy(run, test) for test in tests]
        for run in (train_on_pairs(name, pairs, steps=STEPS, dim=WIDTH) for name in ("sutskever", "bahdanau"))
    )
    lengths = [float(n) for n in LENGTHS]
    caption = (
        f"Reversing random letters with the recipes sutskever and bahdanau at width {WIDTH}: accuracy against the "
        f"length T after {STEPS} steps on lengths 1 to {MAX_LENGTH}."
    )
    return build_result(
        expect_at_least("one vector: accuracy at length 2", fixed[0], 0.95),
        expect_at_most("one vector: accuracy at length 20", fixed[-1], 0.75),
        expect_at_most(
            "one vector: largest rise from one length to the next", max(b - a for a, b in pairwise(fixed)), 0.03
        ),
        expect_at_least("attention: smallest accuracy at any of these lengths", min(attending), 0.93),
        expect_at_least("attention: accuracy at length 20 above that of one vector", attending[-1] - fixed[-1], 0.25),
        drawing=Lines("T", "accuracy", {"one vector": (lengths, fixed), "attention": (lengths, attending)}, caption),
    )


LENGTH, SHORT_STEPS = 10, 400


@check(
    19,
    "S3:163-173",
    "With attention every decoder step has its own context, so the source need not pass through one vector.",
    formula=r"c_1 \neq c_2 \neq \dots",
    code=(BahdanauRecurrence, FixedContextRecurrence, train),
    trains=True,
    breaks=("uniform-attention", "attention-to-the-last-state", "score-ignores-the-query"),
)
def own_contexts() -> CheckResult:
    pairs = sample_pairs(ROWS, (1, LENGTH), reverse)
    fixed, attending = (train_on_pairs(name, pairs, steps=SHORT_STEPS, dim=WIDTH) for name in ("sutskever", "bahdanau"))
    test = sample_pairs(100, (LENGTH, LENGTH), reverse)
    contexts, weights = compute_contexts(attending, test)
    apart = (contexts[:, 1:] - contexts[:, :-1]).norm(dim=-1) / contexts.norm(dim=-1)[:, 1:]
    places = weights.mean(0)[:LENGTH] @ torch.arange(weights.shape[-1], dtype=weights.dtype)
    return build_result(
        expect_at_least("accuracy at length 10", measure_accuracy(attending, test), 0.9),
        expect_at_least("median change from one context to the next, relative to its norm", float(apart.median()), 0.2),
        expect_equal(
            "steps at which the mean attended position moves back, of 9",
            int((places.diff() < 0).sum()),
            LENGTH - 1,
        ),
        expect_at_least(
            "positions from the first to the last attended one, of 9", float(places[0] - places[-1]), 0.7 * (LENGTH - 1)
        ),
        expect_at_least(
            "accuracy when the one vector h_T is that of another source", swap_vectors(attending, test), 0.8
        ),
        expect_at_most("the same without attention", swap_vectors(fixed, test), 0.4),
    )


@torch.no_grad()
def compute_contexts(run: Predictor, pairs: Pairs) -> tuple[Any, Any]:
    """The contexts c_t = Σ a_{t,i} h_i of target letters, and the attention weights a."""
    model: Any = run.model.eval()
    batch = encode_pairs(run, pairs)
    memory, target = model.read(batch), batch["target"]
    weights = model.write(shift_right(target.ids, START), target.mask, memory)[1]["attention"].weights
    return weights @ memory.states, weights


@torch.no_grad()
def swap_vectors(run: Predictor, pairs: Pairs) -> float:
    """The accuracy with teacher forcing if each source comes with the last encoder state of the one before it."""
    model: Any = run.model.eval()
    batch = encode_pairs(run, pairs)
    memory, target = model.read(batch), batch["target"]
    final = tuple(tuple(part.roll(1, 0) for part in layer) for layer in memory.final)
    hidden, _ = model.write(shift_right(target.ids, START), target.mask, replace(memory, final=final))
    return float((model.writer.head(hidden).argmax(-1) == target.ids)[:, :-1].float().mean())
