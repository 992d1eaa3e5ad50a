"""Batches on the host as packed rows: all texts of a field one behind the other, filled up to one of few shapes."""

from __future__ import annotations

from collections.abc import Hashable

import torch
import torch.nn.functional as F
from torch import Tensor

from saccade.data.batching.batch import PAD_ID, Batch, Tokens
from saccade.layers.packing import bound, layout_of, packing

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
    fields = batch.fields.values()
    return [part for field in fields for part in (field.content, *layout_of(field.mask).tensors(), *field.shared)]


def shape_of(batch: Batch) -> Hashable:
    """What a CUDA graph is made for: the shapes of all tensors, and the bounds on the lengths of sequences."""
    longest = [layout_of(field.mask).longest for field in batch.fields.values()]
    return (*(tuple(tensor.shape) for tensor in tensors_of(batch)), *longest)


def cloned(batch: Batch) -> Batch:
    fields = {
        name: type(field)(field.content.clone(), layout_of(field.mask).clone(), *field.shared)
        for name, field in batch.fields.items()
    }
    return Batch(fields, batch.counts)


def double(batch: Batch) -> Batch:
    """Every sequence twice, first all of them, then all of them again."""
    fields = {}
    for name, field in batch.fields.items():
        layout = layout_of(field.mask)
        fields[name] = type(field)(layout.double(field.content), layout.doubled(), *field.shared)
    return Batch(fields, {name: 2 * count for name, count in batch.counts.items()})
