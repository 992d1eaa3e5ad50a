"""The row about other sequences and sets: numbers without an order, sessions of a shop, molecules."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from saccade.config.load import load
from saccade.data.batching.batch import Batch, pad
from saccade.data.synthetic.molecules import molecules, wrong_with
from saccade.lectures.claims import Measured, at_least, check, measured, near, same
from saccade.lectures.small import VOCABULARY, apart
from saccade.model.build.model import build
from saccade.model.model import Model
from saccade.model.writers.labels import LabelWriter
from saccade.model.writers.tokens import TokenWriter

SET = [5, 6, 7, 8, 9, 10]
TURNED = [9, 5, 10, 7, 6, 8]
SMALL = ["layers=2", "dim=12", "heads=3", "ff=17"]
WRONG = ("CC(C", "c1ccccc", "C)C", "F=F", "CC=")  # a branch, a ring, a bracket, too many bonds, a bond to nothing


@check(
    104,
    "S4:241,243",
    "A general-purpose encoder of sequences and sets: vision, recommender systems, drug discovery.",
    formula=r"f(P X) = f(X) \quad \text{for~every~order~} P",
    code=(LabelWriter, TokenWriter, wrong_with),
)
@torch.no_grad()
def other_sequences_and_sets() -> Measured:
    sets, placed = small("set-encoder"), small("set-encoder", "reader.positions={kind='sinusoidal'}")
    session, later = [5, 6, 7, 8, 9], [5, 6, 7, 11, 12]
    made = list(molecules(200, seed=1))
    return measured(
        near("set-encoder: a set in another order, difference", order_matters(sets), 0, within=1e-12),
        at_least("the same with positions", order_matters(placed), 1e-3),
        near("sasrec: what later items change before them", apart(said(session)[:3], said(later)[:3]), 0, within=1e-12),
        at_least("and what they change behind them", apart(said(session)[3:], said(later)[3:]), 1e-3),
        same("molecules of the grammar with right branches, rings and bonds, of 200", right(made), 200),
        same("right ones among 5 that are wrong", right(WRONG), 0),
        note="`saccade train set-encoder --tiny`, `sasrec` and `smiles` learn from data that is made.",
    )


def small(recipe: str, *changes: str, part: str = "reader") -> Model:
    """A fresh model of a recipe; always the same weights."""
    torch.manual_seed(1)
    sizes = [f"{part}.stack.{size}" for size in SMALL]
    settings = load(recipe, overrides=[*sizes, *changes])
    return build(settings, source_size=VOCABULARY, target_size=VOCABULARY).double().eval()


def order_matters(model: Model) -> float:
    one, other = (model.writer(model.read(Batch({"source": pad([ids])}))) for ids in (SET, TURNED))
    return apart(one, other)


def said(items: list[int]) -> torch.Tensor:
    """What is said of each place of a session, given what is before it and the item there."""
    model, ids = small("sasrec", part="writer"), torch.tensor([items])
    hidden = model.writer(ids, torch.ones_like(ids, dtype=torch.bool), model.read(Batch({})))
    logits: torch.Tensor = model.writer.head(hidden)[0]
    return logits


def right(texts: Iterable[str]) -> int:
    return sum(not wrong_with(text) for text in texts)
