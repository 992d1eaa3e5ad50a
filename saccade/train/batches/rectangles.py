"""Batches as rectangles of few shapes: so the steps of stacks that take no packed rows can be CUDA graphs too."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch.nn.functional as F

from saccade.data.batching.batch import PAD_ID, Batch, Pictures, Tokens
from saccade.layers.blocks.convolution_stack import ConvolutionStack
from saccade.layers.blocks.recurrent import RecurrentStack
from saccade.layers.blocks.recurrent_writer import RecurrentWriter
from saccade.layers.blocks.transformer import TransformerStack
from saccade.model.model import Model
from saccade.model.readers.media import PictureReader
from saccade.model.readers.tokens import TokenReader
from saccade.model.writers.labels import Head
from saccade.model.writers.patches import PatchWriter
from saccade.model.writers.tokens import TokenWriter
from saccade.train.batches.pack import rounded

WIDTH = 8  # tokens: widths are multiples of it
PARTS = 4  # numbers of rows of one width differ by such a part of what the budget has room for
SEEN = {"label", "next-token"}  # objectives about pictures


def even(model: Model) -> bool:
    """Whether what reads texts and what writes them ask the device for nothing, given rectangles."""
    reads = isinstance(model.reader, TokenReader) and (
        isinstance(model.reader.stack, ConvolutionStack | TransformerStack)
        or (isinstance(model.reader.stack, RecurrentStack) and model.reader.stack.in_rectangles)
    )
    return reads and writes_evenly(model)


def writes_evenly(model: Model) -> bool:
    return type(model.writer) is TokenWriter and isinstance(
        model.writer.stack, ConvolutionStack | RecurrentWriter | TransformerStack
    )


def of_pictures(model: Model, objectives: Iterable[Any], *, asked: bool) -> bool:
    """The same of what reads pictures: a head has batches of one shape, and the last of an epoch another.

    With other objectives than those that GPUs have been seen to learn by as graphs, only where that is asked for.
    """
    heads = isinstance(model.writer, Head | PatchWriter)
    possible = isinstance(model.reader, PictureReader) and (heads or writes_evenly(model))
    return possible and (asked or all(objective.kind in SEEN for objective in objectives))


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
