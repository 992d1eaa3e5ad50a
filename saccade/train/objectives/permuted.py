"""The objective of XLNet: tokens given those before them in an order that is drawn for each text (Yang et al. 2019)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from saccade.data.batching.batch import Batch, Tokens
from saccade.data.tokenization.tokenizer import END
from saccade.layers.packing import layout_of
from saccade.model.model import Model
from saccade.model.readers.tokens import parts
from saccade.train.objectives.terms import Term, token_sums

BITS = 24  # of a random number in float32


class Order(NamedTuple):
    """Which tokens of each text are asked for, and when; N texts."""

    when: Int[Tensor, "N T"]  # below 0: never, everybody sees them
    at: Int[Tensor, "N M"]  # where those stand that are asked for
    real: Bool[Tensor, "N M"]  # a shorter text has fewer of them


def permuted(
    model: Model,
    batch: Batch,
    generator: torch.Generator,
    *,
    one_in: int = 6,
    span: int = 1,
    piece: int | None = None,
    memory: int = 0,
    weight: float = 1.0,
) -> dict[str, Term]:
    """Cross-entropy of the last tokens of an order, given all before them in it (Yang et al. 2019, equations 3 and 5).

    A text goes through the model piece by piece, each with an order of its own; the last `memory` states before a piece
    are seen by it, and no gradient goes into them.
    """
    ids, keep = rectangle(batch["source"])
    text = keep & (ids > END)  # segments tell where an END is, so that nobody is asked for it
    segments = parts(ids, None) if model.reader.relates else None
    states, wanted, asked, past = [], [], [], ()
    for begin, end in pieces(ids.shape[1], piece):
        order = drawn(text[:, begin:end], generator, one_in=one_in, span=span)
        seen = begin - (past[0].shape[1] if past else 0)
        found = model.writer(
            model.reader, ids[:, begin:end], order.when, at=order.at, keep=keep[:, begin:end], memory=past,
            segments=None if segments is None else segments[:, seen:end], remember=memory,
        )  # fmt: skip
        past = found.memory
        states.append(found.query)
        wanted.append(ids[:, begin:end].gather(1, order.at))
        asked.append(order.real)
    real = torch.cat(asked, 1)
    total, nll = token_sums(model.writer, torch.cat(states, 1), torch.cat(wanted, 1), real, 0.0)
    count = real.sum().clamp(min=1)  # a short batch may have none, and its mean is 0 then
    return {"permuted": Term(total, count, weight), "nll": Term(nll, count, 0.0)}


def drawn(text: Bool[Tensor, "N T"], generator: torch.Generator, *, one_in: int, span: int) -> Order:
    """An order of the tokens of each text, of which the last are asked for: one in so many, at least one.

    With a span, tokens that stand together, so many at a time from a place that is drawn too, follow each other in it.
    """
    width, device = text.shape[1], text.device
    noise = torch.rand(3, *text.shape, generator=generator, device=device)
    block = (torch.arange(width, device=device) + (noise[2, :, :1] * span).long()) // span
    first, second = (noise[0].gather(1, block), noise[1]) if span > 1 else (noise[0], torch.zeros_like(noise[1]))
    key = ((first * 2**BITS).long() << BITS) + (second * 2**BITS).long()  # by span, then inside of it
    by_time = key.masked_fill(~text, -1).argsort(1)  # what is no text stands before all else
    count = (text.sum(1, keepdim=True) + one_in - 1) // one_in
    most = -(-width // one_in)
    when = by_time.argsort(1) - (width - count)
    real = torch.arange(most, device=device) >= most - count
    return Order(when.clamp(min=-1), by_time[:, width - most :], real)


def pieces(width: int, piece: int | None) -> Iterator[tuple[int, int]]:
    """Where each piece of a text begins and ends."""
    step = width if piece is None else piece
    return ((begin, min(begin + step, width)) for begin in range(0, width, step))


def rectangle(texts: Tokens) -> tuple[Int[Tensor, "N T"], Bool[Tensor, "N T"]]:
    """Ids text by text and which of them are real, also where texts are packed."""
    layout = layout_of(texts.mask)
    return layout.rectangle(texts.ids), layout.rectangle(layout.keep) & layout.inside()
