"""Batches as rectangles of few shapes: so the steps of stacks that take no packed rows can be CUDA graphs too."""

from __future__ import annotations

import torch.nn.functional as F

from saccade.data.batching.batch import PAD_ID, Batch, Pictures, Tokens
from saccade.train.batches.pack import rounded

WIDTH = 8  # tokens: widths are multiples of it
PARTS = 4  # numbers of rows of one width differ by such a part of what the budget has room for


def fill_up(batch: Batch, *, budget: int) -> Batch:
    """All texts with the same width, and all fields with the same rows.

    A row that is added has one token to look at, since nobody can look at nothing, or a black picture, and none to
    write.
    """
    rows = len(batch["target"].ids)
    widths = {name: field.mask.shape[1] for name, field in batch.fields.items()}
    width = rounded(max(widths[name] for name, field in batch.fields.items() if isinstance(field, Tokens)), WIDTH)
    step = max(budget // max(width, *widths.values()) // PARTS, 1)
    more = rounded(rows, step) - rows
    return Batch({name: _filled(batch[name], width, more, looked=name != "target") for name in widths}, batch.counts)


def _filled(field: Tokens | Pictures, width: int, more: int, *, looked: bool) -> Tokens | Pictures:
    if isinstance(field, Pictures):
        black = (0, 0) * (field.values.dim() - 1) + (0, more)
        return Pictures(F.pad(field.values, black), F.pad(field.mask, (0, 0, 0, more), value=True))
    room = (0, width - field.ids.shape[1], 0, more)
    mask = F.pad(field.mask, room, value=False)
    if looked:
        mask[len(field.ids) :, 0] = True
    return Tokens(F.pad(field.ids, room, value=PAD_ID), mask)
