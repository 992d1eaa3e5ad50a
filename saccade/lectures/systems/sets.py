"""Check on other sequences and sets: sets of numbers, shopping sessions, molecules."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from saccade.config.load import load
from saccade.data.batching.batch import Batch, pad
from saccade.data.synthetic.molecules import find_smiles_error, generate_molecules
from saccade.lectures.claims import CheckResult, build_result, check, expect_at_least, expect_equal, expect_near
from saccade.lectures.small import VOCABULARY_SIZE, max_difference
from saccade.model.build.model import build
from saccade.model.model import Model
from saccade.model.writers.labels import LabelWriter
from saccade.model.writers.tokens import TokenWriter

SET = [5, 6, 7, 8, 9, 10]
PERMUTED_SET = [9, 5, 10, 7, 6, 8]
SMALL = ["layers=2", "dim=12", "heads=3", "ff=17"]
# open branch, open ring, unmatched bracket, too many bonds, missing atom
INVALID_MOLECULES = (
    "CC(C",
    "c1ccccc",
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
)
@torch.no_grad()
def other_sequences_and_sets() -> CheckResult:
    sets, placed = build_small("set-encoder"), build_small("set-encoder", "reader.positions={kind='sinusoidal'}")
    session, later = [5, 6, 7, 8, 9], [5, 6, 7, 11, 12]
    made = list(generate_molecules(200, seed=1))
    return build_result(
        expect_near(
            "set-encoder: change of the output when the set is permuted", measure_order_effect(sets), 0, within=1e-12
        ),
        expect_at_least(
            "set-encoder with positions: change when the set is permuted", measure_order_effect(placed), 1e-3
        ),
        expect_near(
            "sasrec: change of earlier predictions by later items",
            max_difference(compute_logits(session)[:3], compute_logits(later)[:3]),
            0,
            within=1e-12,
        ),
        expect_at_least(
            "sasrec: change of later predictions by these items",
            max_difference(compute_logits(session)[3:], compute_logits(later)[3:]),
            1e-3,
        ),
        expect_equal("generated molecules with valid branches, rings and bonds, of 200", count_valid(made), 200),
        expect_equal("invalid molecules that pass as valid, of 5", count_valid(INVALID_MOLECULES), 0),
        note="`saccade train set-encoder --tiny`, `sasrec` and `smiles` train on generated data.",
    )


def build_small(recipe: str, *changes: str, part: str = "reader") -> Model:
    """Build a small model of a recipe, always with the same random weights."""
    torch.manual_seed(1)
    sizes = [f"{part}.stack.{size}" for size in SMALL]
    settings = load(recipe, overrides=[*sizes, *changes])
    return build(settings, source_size=VOCABULARY_SIZE, target_size=VOCABULARY_SIZE).double().eval()


def measure_order_effect(model: Model) -> float:
    one, other = (model.writer(model.read(Batch({"source": pad([ids])}))) for ids in (SET, PERMUTED_SET))
    return max_difference(one, other)


def compute_logits(items: list[int]) -> torch.Tensor:
    """Return the next-item logits at each position of a session."""
    model, ids = build_small("sasrec", part="writer"), torch.tensor([items])
    hidden = model.writer(ids, torch.ones_like(ids, dtype=torch.bool), model.read(Batch({})))
    logits: torch.Tensor = model.writer.head(hidden)[0]
    return logits


def count_valid(texts: Iterable[str]) -> int:
    return sum(not find_smiles_error(text) for text in texts)
