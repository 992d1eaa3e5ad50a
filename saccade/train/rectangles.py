"""Batches as rectangles of few shapes: so the steps of stacks that take no packed rows can be CUDA graphs too."""

from __future__ import annotations

import torch.nn.functional as F

from saccade.data.batch import PAD_ID, Batch, Tokens
from saccade.layers.convolution_stack import ConvolutionStack
from saccade.layers.recurrent import RecurrentStack
from saccade.layers.recurrent_writer import RecurrentWriter
from saccade.layers.transformer import TransformerStack
from saccade.model.label_writer import Head
from saccade.model.model import Model
from saccade.model.patch_writer import PatchWriter
from saccade.model.picture_reader import PictureReader
from saccade.model.readers import TokenReader
from saccade.model.writers import TokenWriter
from saccade.train.pack import rounded

WIDTH = 8  # tokens: widths are multiples of it
PARTS = 4  # numbers of rows of one width differ by such a part of what the budget has room for


def even(model: Model) -> bool:
    """Whether what reads and what writes ask the device for nothing, given rectangles."""
    reads = isinstance(model.reader, TokenReader) and (
        isinstance(model.reader.stack, ConvolutionStack | TransformerStack)
        or (isinstance(model.reader.stack, RecurrentStack) and model.reader.stack.in_rectangles)
    )
    writes = type(model.writer) is TokenWriter and isinstance(
        model.writer.stack, ConvolutionStack | RecurrentWriter | TransformerStack
    )
    return reads and writes


def of_one_size(model: Model) -> bool:
    """Whether batches have one shape, and the last of an epoch another: pictures, with heads over what was read."""
    return isinstance(model.reader, PictureReader) and isinstance(model.writer, Head | PatchWriter)


def fill_up(batch: Batch, *, budget: int) -> Batch:
    """All fields with the same width and rows.

    A row that is added has one token to look at, since nobody can look at nothing, and none to write.
    """
    rows, widest = len(batch["target"].ids), max(tokens.ids.shape[1] for tokens in batch.fields.values())
    width = rounded(widest, WIDTH)
    step = max(budget // width // PARTS, 1)
    more = rounded(rows, step) - rows
    fields = {}
    for name, tokens in batch.fields.items():
        room = (0, width - tokens.ids.shape[1], 0, more)
        mask = F.pad(tokens.mask, room, value=False)
        if name != "target":
            mask[rows:, 0] = True
        fields[name] = Tokens(F.pad(tokens.ids, room, value=PAD_ID), mask)
    return Batch(fields, batch.counts)
