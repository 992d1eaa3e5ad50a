"""Permutation language modelling (XLNet, Yang et al. 2019): tokens are predicted in a random factorization order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from saccade.data.batching.batch import Batch, Tokens
from saccade.data.tokenization.tokenizer import END
from saccade.layers.packing import get_batch_layout
from saccade.model.model import Model
from saccade.model.readers.tokens import get_segment_ids
from saccade.train.objectives.terms import Term, compute_token_losses

FLOAT32_BITS = 24  # random bits of a float32 from 0 to 1


class FactorizationOrder(NamedTuple):
    """Which tokens of N sequences are predicted, and in which order."""

    step: Int[Tensor, "N T"]  # at which a token is predicted; -1 for tokens that all others may attend to
    target_positions: Int[Tensor, "N M"]  # positions of the predicted tokens
    real: Bool[Tensor, "N M"]  # which of these are real: a shorter sequence has fewer


def permutation_loss(
    model: Model,
    batch: Batch,
    generator: torch.Generator,
    *,
    tokens_per_prediction: int = 6,
    span_length: int = 1,
    segment_length: int | None = None,
    memory_length: int = 0,
    weight: float = 1.0,
) -> dict[str, Term]:
    """Cross-entropy of the last tokens of a factorization order given all before (Yang et al. 2019, eq. 3 and 5).

    A sequence is processed in chunks of `segment_length` tokens, each with its own order. A chunk attends to the last
    `memory_length` states before it, without gradients (Transformer-XL).
    """
    ids, keep = unpack_tokens(batch["source"])
    predictable = keep & (ids > END)  # END is not predicted: segment ids reveal it
    segments = get_segment_ids(ids, None) if model.reader.uses_segments else None
    states, targets, is_real, past = [], [], [], ()
    for begin, end in split_chunks(ids.shape[1], segment_length):
        order = sample_order(
            predictable[:, begin:end],
            generator,
            tokens_per_prediction=tokens_per_prediction,
            span_length=span_length,
        )
        memory_begin = begin - (past[0].shape[1] if past else 0)
        streams = model.writer(
            model.reader,
            ids[:, begin:end],
            order.step,
            at=order.target_positions,
            keep=keep[:, begin:end],
            memory=past,
            segments=None if segments is None else segments[:, memory_begin:end],
            remember=memory_length,
        )
        past = streams.memory
        states.append(streams.query)
        targets.append(ids[:, begin:end].gather(1, order.target_positions))
        is_real.append(order.real)
    real = torch.cat(is_real, 1)
    total, nll = compute_token_losses(model.writer, torch.cat(states, 1), torch.cat(targets, 1), real, 0.0)
    count = real.sum().clamp(min=1)  # a short batch may have none; its mean is then 0
    return {"permuted": Term(total, count, weight), "nll": Term(nll, count, 0.0)}


def sample_order(
    predictable: Bool[Tensor, "N T"], generator: torch.Generator, *, tokens_per_prediction: int, span_length: int
) -> FactorizationOrder:
    """Sample a factorization order of each sequence, whose last tokens are predicted: one in `tokens_per_prediction`.

    At least one is. With `span_length` > 1, the tokens of each span are consecutive in the order; spans start at a
    random offset.
    """
    width, device = predictable.shape[1], predictable.device
    noise = torch.rand(3, *predictable.shape, generator=generator, device=device)
    block = (torch.arange(width, device=device) + (noise[2, :, :1] * span_length).long()) // span_length
    first, second = (noise[0].gather(1, block), noise[1]) if span_length > 1 else (noise[0], torch.zeros_like(noise[1]))
    high, low = ((noise * 2**FLOAT32_BITS).long() for noise in (first, second))
    key = (high << FLOAT32_BITS) + low  # sorts by span, then inside of it
    by_step = key.masked_fill(~predictable, -1).argsort(1)  # tokens that are not predictable come first
    count = (predictable.sum(1, keepdim=True) + tokens_per_prediction - 1) // tokens_per_prediction
    max_count = -(-width // tokens_per_prediction)
    step = by_step.argsort(1) - (width - count)
    real = torch.arange(max_count, device=device) >= max_count - count
    return FactorizationOrder(step.clamp(min=-1), by_step[:, width - max_count :], real)


def split_chunks(width: int, chunk: int | None) -> Iterator[tuple[int, int]]:
    """Return begin and end of each chunk of a sequence; None is one chunk."""
    step = width if chunk is None else chunk
    return ((begin, min(begin + step, width)) for begin in range(0, width, step))


def unpack_tokens(tokens: Tokens) -> tuple[Int[Tensor, "N T"], Bool[Tensor, "N T"]]:
    """Return the ids of a padded or packed batch as a padded batch, and which of them are real."""
    layout = get_batch_layout(tokens.mask)
    return layout.to_padded(tokens.ids), layout.to_padded(layout.keep) & layout.get_padded_mask()
