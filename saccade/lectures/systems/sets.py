"""Check on other sequences and sets: sets of numbers, pictures, shopping sessions, molecules."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from saccade.config.load import load
from saccade.data.batching.batch import Batch, pad
from saccade.data.synthetic.molecules import find_smiles_error, generate_molecules
from saccade.lectures.claims import (
    CheckResult,
    Comparison,
    build_result,
    check,
    expect_at_least,
    expect_equal,
    expect_near,
)
from saccade.lectures.references.basics import apply_linear, build_causal_mask, embed_tokens, gelu, relu
from saccade.lectures.references.transformer import Style, run_stack
from saccade.lectures.small import VOCABULARY_SIZE, max_difference, randomize_parameters
from saccade.lectures.systems import vision
from saccade.model.build.model import build
from saccade.model.model import Model
from saccade.model.writers.labels import LabelWriter
from saccade.model.writers.tokens import TokenWriter

SETS = [[5, 6, 7, 8, 9, 10], [11, 12, 13]]
ORDER = [4, 0, 5, 2, 1, 3]
SESSIONS = [[5, 6, 7, 8, 9], [5, 6, 7, 11, 12]]  # the first three items are the same
SMALL = ["layers=2", "dim=12", "heads=3", "ff=17"]
# open branch, open ring, unmatched bracket, too many bonds, missing atom
INVALID_MOLECULES = (
    "CC(C",
    "C1CCCC",
    "C)C",
    "F=F",
    "CC=",
)


@check(
    104,
    "S4:241,243",
    "The Transformer is a general-purpose encoder of sequences and sets: vision, recommender systems, drug discovery.",
    formula=r"f(P X) = f(X) \quad \text{for~every~order~} P",
    code=(LabelWriter, TokenWriter, find_smiles_error),
    recipes=("sasrec", "set-encoder", "smiles"),
    breaks=(
        "uniform-attention",
        "unmasked-attention",
        "set-of-one-element",
        "items-without-positions",
        "molecules-always-valid",
        "cells-without-positions",
    ),
)
@torch.no_grad()
def other_sequences_and_sets() -> CheckResult:
    made = list(generate_molecules(200, seed=1))
    vit, pictures = vision.build_small_vit(), vision.sample_pictures(2)
    states = vision.encode_by_hand(vit.reader, pictures.values)
    return build_result(
        *compare_sets(),
        *compare_sessions("sasrec", Style(pre_norm=True)),
        *compare_sessions("smiles", Style(activation=gelu, pre_norm=True)),
        expect_near(
            "vit: logits of two pictures, difference from the same formulas",
            max_difference(vision.run_vit(vit, pictures)[1], apply_linear(vit.writer.output, states[:, 0])),
            0,
            within=1e-10,
        ),
        expect_equal("generated molecules with valid branches, rings and bonds, of 200", count_valid(made), 200),
        expect_equal("invalid molecules that pass as valid, of 5", count_valid(INVALID_MOLECULES), 0),
        note="`saccade train set-encoder --tiny`, `sasrec` and `smiles` train on generated data.",
    )


def build_small(recipe: str, *changes: str, part: str = "reader") -> Model:
    """Build a small model of a recipe with random parameters, in float64."""
    sizes = [f"{part}.stack.{size}" for size in SMALL]
    model = build(load(recipe, overrides=[*sizes, *changes]), source_size=VOCABULARY_SIZE, target_size=VOCABULARY_SIZE)
    return randomize_parameters(model.double().eval(), scale=0.5)


def classify_sets(model: Model, sets: list[list[int]]) -> Tensor:
    logits: Tensor = model.writer(model.read(Batch({"source": pad(sets)})))
    return logits


def classify_by_hand(model: Model, elements: list[int]) -> Tensor:
    """The mean of the encoder's states, and a linear layer."""
    x = embed_tokens(model.reader.embedding, torch.tensor([elements]))
    states = run_stack(model.reader.stack, x, Style(activation=gelu, pre_norm=True))
    return apply_linear(model.writer.output, states[0].mean(0))


def compare_sets() -> list[Comparison]:
    """The recipe set-encoder: the order of the elements has no effect, every element has one."""
    model = build_small("set-encoder")
    logits, permuted = (classify_sets(model, [one, SETS[1]]) for one in (SETS[0], [SETS[0][i] for i in ORDER]))
    others = [[*SETS[0][:i], 14, *SETS[0][i + 1 :]] for i in range(len(SETS[0]))]
    changes = [max_difference(classify_sets(model, [one])[0], logits[0]) for one in others]
    placed = build_small("set-encoder", "reader.positions={kind='sinusoidal'}")
    moved = [classify_sets(placed, [one]) for one in (SETS[0], [SETS[0][i] for i in ORDER])]
    return [
        expect_near(
            "set-encoder: logits of two sets of different size, difference from the formulas",
            max_difference(logits, torch.stack([classify_by_hand(model, one) for one in SETS])),
            0,
            within=1e-10,
        ),
        expect_near("set-encoder: change by another order", max_difference(logits, permuted), 0, within=1e-11),
        expect_at_least("set-encoder: smallest change by another element", min(changes), 1e-4),
        expect_at_least("set-encoder with positions: change by another order", max_difference(*moved), 1e-3),
    ]


def compute_logits(model: Model, rows: list[list[int]]) -> Tensor:
    """The logits of the next item at each position."""
    tokens = pad(rows)
    logits: Tensor = model.writer.head(model.write(tokens.ids, tokens.mask, model.read(Batch({})))[0])
    return logits


def continue_by_hand(model: Model, ids: Tensor, style: Style) -> Tensor:
    """Embedded items plus learned positions, a causal Transformer, and the output layer.

    Item embeddings are scaled in SASRec, which has ReLU, and not in the form of GPT-2, which has GELU.
    """
    embedding, stack = model.writer.embedding, model.writer.stack
    x = embed_tokens(embedding, ids) if style.activation is relu else embedding.tokens.weight[ids]
    x = x + embedding.positions.table.weight[: ids.shape[1]]
    hidden = run_stack(stack, x, style, allowed=[build_causal_mask(ids.shape[1])])
    return apply_linear(model.writer.output, hidden)


def compare_sessions(name: str, style: Style) -> list[Comparison]:
    """A recipe that continues sequences, of items or of the letters of molecules: only earlier ones have an effect."""
    model = build_small(name, part="writer")
    logits, reordered = compute_logits(model, SESSIONS), compute_logits(model, [[6, 5, 7, 8, 9]])
    later = [max_difference(logits[0, part], logits[1, part]) for part in (slice(3), slice(3, None))]
    return [
        expect_near(
            f"{name}: logits, difference from the formulas",
            max_difference(logits, continue_by_hand(model, torch.tensor(SESSIONS), style)),
            0,
            within=1e-10,
        ),
        expect_near(f"{name}: change of predictions by later items", later[0], 0, within=1e-11),
        expect_at_least(f"{name}: change of later predictions by these items", later[1], 1e-3),
        expect_at_least(
            f"{name}: change of the last prediction by another order",
            max_difference(logits[0, -1], reordered[0, -1]),
            1e-4,
        ),
    ]


def count_valid(texts: Iterable[str]) -> int:
    return sum(not find_smiles_error(text) for text in texts)
