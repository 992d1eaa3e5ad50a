"""Batches on the host as packed rows: all texts of a field one behind the other, filled up to one of few shapes."""

from __future__ import annotations

from collections.abc import Hashable

import torch
import torch.nn.functional as F
from torch import Tensor

from saccade.data.batching.batch import PAD_ID, Batch, Ground, Tokens
from saccade.layers.packing import Packing, bound, packing

STEPS = 16  # shapes between no tokens and the budget of a batch
WORTH_PACKING = 0.05  # of padding: on a CPU the way to a row and back takes as long as computing that much for nothing


def pack(batch: Batch, *, budget: int | None = None) -> Batch:
    """The batch with each field as one row of real tokens.

    With a budget, rows are filled up to a sixteenth of it and their texts to a power of two, so that a graph can be
    kept for every shape that occurs.
    """
    lengths = {name: tokens.mask.sum(1) for name, tokens in batch.fields.items()}
    texts = None if budget is None else most_texts(list(lengths.values()), step=step_of(budget))
    fields = {}
    for name, tokens in batch.fields.items():
        flat = tokens.ids[tokens.mask]
        size = None if budget is None else rounded(len(flat), step_of(budget))
        row = packing(lengths[name], tokens=size, texts=texts)
        fields[name] = Tokens(F.pad(flat, (0, row.texts.shape[1] - len(flat)), value=PAD_ID)[None], row)
    return Batch(fields, batch.counts)


def pack_padded(batch: Batch) -> Batch:
    """On a CPU: packed where enough of it is padding."""
    places = sum(tokens.ids.numel() for tokens in batch.fields.values())
    return pack(batch) if sum(batch.counts.values()) < (1 - WORTH_PACKING) * places else batch


def most_texts(lengths: list[torch.Tensor], *, step: int) -> int:
    """Room for the texts of a batch and for those that fill up its rows, as a power of two."""
    filling = max(-(-step // bound(int(one.max()))) for one in lengths)
    return 1 << (len(lengths[0]) + filling - 1).bit_length()


def step_of(budget: int) -> int:
    return rounded(-(-budget // STEPS), 64)


def rounded(count: int, step: int) -> int:
    return -(-count // step) * step


def tensors_of(batch: Batch) -> list[Tensor]:
    found: list[Tensor] = []
    for tokens in batch.fields.values():
        if isinstance(tokens, Ground):
            found += tokens.tensors
            continue
        found += [tokens.content, *(tokens.mask.tensors() if isinstance(tokens.mask, Packing) else [tokens.mask])]
    return found


def shape_of(batch: Batch) -> Hashable:
    longest = [tokens.mask.longest for tokens in batch.fields.values() if isinstance(tokens.mask, Packing)]
    return (*(tuple(tensor.shape) for tensor in tensors_of(batch)), *longest)


def cloned(batch: Batch) -> Batch:
    fields = {}
    for name, field in batch.fields.items():
        mask = field.mask.each(Tensor.clone) if isinstance(field.mask, Packing) else field.mask.clone()
        fields[name] = type(field)(field.content.clone(), mask)
    return Batch(fields, batch.counts)
