"""Masked tokens (Devlin et al. 2019): some are hidden from the reader, and the writer restores them.

Each token but special ones is hidden with the same probability, so that their number is random. The head over the
vocabulary gets a fixed number of places for a shape of batch, so many that hardly ever one is left out: nothing asks
the device how many there are, and a step can be a CUDA graph.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.config import schema
from saccade.data.batching.batch import Batch, Tokens
from saccade.data.batching.segments import ALONE, PAIR, ROWS
from saccade.data.tokenization.special_tokens import mask_of, special_runs
from saccade.data.tokenization.tokenizer import UNKNOWN
from saccade.layers.memory import Memory
from saccade.layers.packing import layout_of
from saccade.model.model import Model
from saccade.train.objectives.terms import Context, Objective, Term, real_tokens, token_sums

DEVIATIONS = 6  # of the number of hidden tokens, above its mean: more of them occur once in a billion batches
DRAWN = 2**24  # float32 tells so many numbers from 0 to 1 apart


class Hiding(NamedTuple):
    """How tokens are hidden: a share `rate` of all, of these `masked` by a piece and `replaced` by any other."""

    rate: float
    masked: float
    replaced: float
    mask: int
    special: Sequence[tuple[int, int]]  # ids above UNKNOWN that are no text: the first of each run, and how many
    size: int  # of the vocabulary
    dynamic: bool = True  # drawn anew each time; else the same tokens of a text always


class Hidden(NamedTuple):
    shown: Int[Tensor, "B T"]  # what is read instead
    chosen: Bool[Tensor, "B T"]  # which tokens are to be restored


def masked(
    model: Model,
    batch: Batch,
    generator: torch.Generator,
    *,
    hiding: Hiding,
    pairs: Literal["none", "next", "order"] = "none",
    pair_weight: float = 1.0,
    smoothing: float = 0.0,
    weight: float = 1.0,
) -> dict[str, Term]:
    """Cross-entropy of the hidden tokens given all others; with pairs also whether two parts follow each other."""
    given = batch[ROWS]
    drawn = noise(given, generator) if hiding.dynamic else fixed_noise(given)
    hidden = hide(given, drawn, hiding)
    memory = model.reader(hidden.shown, given.mask)
    places, keep = gathered(hidden.chosen, rate=hiding.rate)
    states = model.writer(memory.states.flatten(0, 1).index_select(0, places))
    smoothed, nll = token_sums(model.writer, states, given.ids.flatten().index_select(0, places), keep, smoothing)
    count = keep.sum().clamp(min=1)  # a short batch may have none, and its mean is 0 then
    terms = {"masked": Term(smoothed, count, weight), "nll": Term(nll, count, 0.0)}
    return terms if pairs == "none" else {**terms, **pair_terms(model, memory, batch[PAIR], pair_weight)}


def build_masked(table: schema.Masked, context: Context) -> Objective:
    """The objective of a recipe, for the pieces of a tokenizer."""
    tokenizer = context.tokenizer
    if tokenizer is None:
        return functools.partial(masked, **table.model_dump(exclude={"kind"}))
    settings = table.model_dump(exclude={"kind", "rate", "masked", "replaced", "dynamic"})
    hiding = Hiding(
        table.rate, table.masked, table.replaced, mask=mask_of(tokenizer), special=special_runs(tokenizer),
        size=tokenizer.size, dynamic=table.dynamic,
    )  # fmt: skip
    return functools.partial(masked, hiding=hiding, **settings)


def hide(given: Tokens, drawn: Float[Tensor, "3 B T"], hiding: Hiding) -> Hidden:
    """Which tokens are hidden, and what is shown in their places."""
    text = real_tokens(given) & (given.ids > UNKNOWN)
    for first, count in hiding.special:
        text = text & ((given.ids < first) | (given.ids >= first + count))
    chosen = text & (drawn[0] < hiding.rate)
    other = any_piece(drawn[2], hiding)
    shown = torch.where(drawn[1] < hiding.masked, hiding.mask, other)
    shown = torch.where(drawn[1] < hiding.masked + hiding.replaced, shown, given.ids)
    return Hidden(torch.where(chosen, shown, given.ids), chosen)


def any_piece(drawn: Float[Tensor, "B T"], hiding: Hiding) -> Int[Tensor, "B T"]:
    """Any piece of text, each as likely as any other."""
    special = sum(count for _, count in hiding.special)
    pieces = hiding.size - UNKNOWN - 1 - special
    ids = UNKNOWN + 1 + (drawn * pieces).long().clamp(max=pieces - 1)
    for first, count in hiding.special:  # in their order, so that ids behind a run move by it
        ids = torch.where(ids >= first, ids + count, ids)
    return ids


def noise(given: Tokens, generator: torch.Generator) -> Float[Tensor, "3 B T"]:
    return torch.rand(3, *given.ids.shape, generator=generator, device=given.ids.device)


def fixed_noise(given: Tokens) -> Float[Tensor, "3 B T"]:
    """Numbers from 0 to below 1 that follow from the text of a token and its place in it, and from nothing else."""
    layout = layout_of(given.mask)
    at = torch.arange(given.ids.shape[1], device=given.ids.device).expand_as(given.ids)
    at = at if layout.places is None else layout.places
    each = mixed(given.ids * 0x10001 + at) * layout.keep
    text = layout.spread(layout.sum(each))
    ways = torch.arange(3, device=each.device)[:, None, None]
    return ((mixed(text + 0x9E3779B9 * (3 * at + ways)) >> 16) & (DRAWN - 1)).float() / DRAWN


def mixed(x: Int[Tensor, "*n"]) -> Int[Tensor, "*n"]:
    """Every bit of a number made to depend on all others; products overflow."""
    for factor in (-0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15):
        x = (x ^ (x >> 29)) * factor
    return x ^ (x >> 32)


def gathered(chosen: Bool[Tensor, "B T"], *, rate: float) -> tuple[Int[Tensor, " K"], Bool[Tensor, " K"]]:
    """The places of what was chosen, in their order, and which of the K are in use; K follows from the shape alone."""
    flat = chosen.flatten()
    room = most_hidden(len(flat), rate)
    slots = torch.where(flat, flat.cumsum(0) - 1, room).clamp(max=room)  # the last slot takes what is not wanted
    places = torch.zeros(room + 1, dtype=torch.long, device=flat.device)
    places.scatter_(0, slots, torch.arange(len(flat), device=flat.device))
    return places[:room], torch.arange(room, device=flat.device) < flat.sum()


def most_hidden(tokens: int, rate: float) -> int:
    """Room for the hidden ones among so many tokens."""
    return min(tokens, math.ceil(rate * tokens + DEVIATIONS * math.sqrt(rate * (1 - rate) * tokens)))


def pair_terms(model: Model, memory: Memory, pair: Tokens, weight: float) -> dict[str, Term]:
    """The cross-entropy of whether parts follow each other, over the texts that have two, and how often it is right."""
    logits = model.writer.pair(memory).float()
    layout = layout_of(pair.mask)
    said = pair.ids.flatten().index_select(0, layout.begins)
    counted = layout.real & (said != ALONE)
    wanted = said.clamp(max=1)
    losses = F.cross_entropy(logits, wanted, reduction="none")
    right = (logits.argmax(-1) == wanted) & counted
    count, total = counted.sum(), (losses * counted).sum()
    return {"pairs": Term(total, count, weight), "pairs_right": Term(right.sum().float(), count, 0.0)}
