"""Pads batches to few shapes, so that steps of stacks without support for packed rows can be CUDA graphs too."""

from __future__ import annotations

import torch.nn.functional as F

from saccade.data.batching.batch import PAD_ID, Batch, Pictures, Tokens
from saccade.train.batches.pack import round_up

WIDTH_MULTIPLE = 8  # widths in tokens are multiples of it
ROW_STEPS = 4  # numbers of rows that are used for one width, up to the budget


def pad_to_static_shape(batch: Batch, *, budget: int) -> Batch:
    """Pad all token fields to one width, and all fields to one number of rows.

    An added row has one real source token (attention needs at least one key) or a black picture, and no target token.
    """
    rows = len(batch["target"].ids)
    widths = {name: field.mask.shape[1] for name, field in batch.fields.items()}
    width = round_up(
        max(widths[name] for name, field in batch.fields.items() if isinstance(field, Tokens)), WIDTH_MULTIPLE
    )
    step = max(budget // max(width, *widths.values()) // ROW_STEPS, 1)
    added_rows = round_up(rows, step) - rows
    return Batch(
        {name: _pad_field(batch[name], width, added_rows, attended=name != "target") for name in widths}, batch.counts
    )


def _pad_field(field: Tokens | Pictures, width: int, rows: int, *, attended: bool) -> Tokens | Pictures:
    """Pad a field to `width` and by `rows` rows, which have one real token if they are `attended`."""
    if isinstance(field, Pictures):
        padding = (0, 0) * (field.values.dim() - 1) + (0, rows)
        return Pictures(F.pad(field.values, padding), F.pad(field.mask, (0, 0, 0, rows), value=True))
    padding = (0, width - field.ids.shape[1], 0, rows)
    mask = F.pad(field.mask, padding, value=False)
    if attended:
        mask[len(field.ids) :, 0] = True
    return Tokens(F.pad(field.ids, padding, value=PAD_ID), mask)
