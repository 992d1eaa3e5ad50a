"""Packs batches on the host: all sequences of a field in one row without padding, padded to one of few sizes."""

from __future__ import annotations

from collections.abc import Hashable

import torch
import torch.nn.functional as F
from torch import Tensor

from saccade.data.batching.batch import PAD_ID, Batch, Tokens
from saccade.layers.packing import build_packing, get_batch_layout, round_up_length

SIZES_PER_BUDGET = 16  # number of row sizes up to the token budget of a batch
MIN_PADDING_TO_PACK = 0.05  # share of padding from which packing pays off on a CPU


def pack_batch(batch: Batch, *, budget: int | None = None) -> Batch:
    """Pack each field of a batch into one row of real tokens.

    With a budget, rows are padded to a multiple of a sixteenth of it and the number of sequences to a power of two, so
    that few shapes occur and each can have its CUDA graph.
    """
    lengths = {name: tokens.mask.sum(1) for name, tokens in batch.fields.items()}
    sequences = None if budget is None else count_sequence_slots(list(lengths.values()), step=get_size_step(budget))
    fields = {}
    for name, tokens in batch.fields.items():
        flat = tokens.ids[tokens.mask]
        size = None if budget is None else round_up(len(flat), get_size_step(budget))
        row = build_packing(lengths[name], tokens=size, sequences=sequences)
        fields[name] = Tokens(F.pad(flat, (0, row.sequence_ids.shape[1] - len(flat)), value=PAD_ID)[None], row)
    return Batch(fields, batch.counts)


def pack_if_padded(batch: Batch) -> Batch:
    """Pack a batch if at least MIN_PADDING_TO_PACK of it is padding (for CPUs)."""
    total = sum(tokens.ids.numel() for tokens in batch.fields.values())
    return pack_batch(batch) if sum(batch.counts.values()) < (1 - MIN_PADDING_TO_PACK) * total else batch


def count_sequence_slots(lengths: list[torch.Tensor], *, step: int) -> int:
    """Number of sequence slots for a batch and the padding of its rows, as a power of two."""
    filling = max(-(-step // round_up_length(int(one.max()))) for one in lengths)
    return 1 << (len(lengths[0]) + filling - 1).bit_length()


def get_size_step(budget: int) -> int:
    return round_up(-(-budget // SIZES_PER_BUDGET), 64)


def round_up(count: int, step: int) -> int:
    return -(-count // step) * step


def get_tensors(batch: Batch) -> list[Tensor]:
    fields = batch.fields.values()
    return [
        part
        for field in fields
        for part in (field.content, *get_batch_layout(field.mask).get_tensors(), *field.shared_tensors)
    ]


def get_shape_key(batch: Batch) -> Hashable:
    """Key of the CUDA graph for a batch: the shapes of all tensors and the bounds on sequence lengths."""
    max_lengths = [get_batch_layout(field.mask).max_length for field in batch.fields.values()]
    return (*(tuple(tensor.shape) for tensor in get_tensors(batch)), *max_lengths)


def clone_batch(batch: Batch) -> Batch:
    fields = {
        name: type(field)(field.content.clone(), get_batch_layout(field.mask).clone(), *field.shared_tensors)
        for name, field in batch.fields.items()
    }
    return Batch(fields, batch.counts)


def double_batch(batch: Batch) -> Batch:
    """Repeat a batch: all sequences, then all of them a second time."""
    fields = {}
    for name, field in batch.fields.items():
        layout = get_batch_layout(field.mask)
        fields[name] = type(field)(layout.repeat_batch(field.content), layout.repeat_mask(), *field.shared_tensors)
    return Batch(fields, {name: 2 * count for name, count in batch.counts.items()})
