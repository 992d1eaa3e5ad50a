"""Readers of pictures, of sound, and of pictures with questions, from their part of a recipe."""

from collections.abc import Callable
from typing import Any

from torch import nn

from saccade.config import schema
from saccade.config.protocols import Stack
from saccade.errors import SaccadeError
from saccade.layers.attention import positions
from saccade.layers.audio.downsampling import PyramidStack, Stem
from saccade.layers.blocks.recurrent import RecurrentStack
from saccade.layers.vision.joining import Concat, Glimpses, Hops, QuestionAlone
from saccade.layers.vision.patches import Colours, Convolutions, ConvolvedPatches, Patches
from saccade.model.build.options import Options
from saccade.model.build.recurrent import build_recurrent_reader
from saccade.model.build.stacks import get_input_dim
from saccade.model.build.timm import build_backbone
from saccade.model.build.transformer import build_transformer
from saccade.model.readers.media import FrameReader, JoinedReader, PictureReader
from saccade.model.readers.tokens import TokenReader

# ---- sound


def build_frame_reader(reader: schema.FrameReader, size: int, options: Options) -> FrameReader:
    """Stem, positions and stack together; a user's own stack is called with its settings alone."""
    settings = reader.stack
    if settings.kind in FRAME_STACKS:
        stack = FRAME_STACKS[settings.kind](settings, options._replace(copies_states=False))
    else:
        stack = options.build_own(settings)
    stem = Stem(reader.sound.bands, stack.dim, strides=reader.strides, kernel=reader.kernel)
    where = None
    if reader.positions == "sinusoidal":  # those of Whisper
        where = positions.Sinusoidal(stack.dim, layout="concatenated", frequencies="tensor2tensor")
    return FrameReader(stem, stack, positions=where, dropout=reader.dropout)


def build_pyramid(s: Any, options: Options) -> PyramidStack:
    return PyramidStack(s.dim, cell=s.cell, layers=s.layers, dropout=s.dropout)


def build_plain_transformer(s: schema.TransformerStack, options: Options) -> Any:
    """A bidirectional stack whose inputs have their positions already."""
    return build_transformer(s, schema.NoPositions(), memory_dim=None, causal=False, train=options.train)


FRAME_STACKS: dict[str, Callable[[Any, Options], Any]] = {
    "transformer": build_plain_transformer,
    "recurrent": build_recurrent_reader,
    "pyramid": build_pyramid,
}


# ---- pictures


def build_picture_reader(reader: schema.CellReader, size: int, options: Options) -> PictureReader:
    stack = build_cell_stack(reader.stack, options)
    cells, dim = CELLS[reader.kind](reader, stack)
    return PictureReader(
        cells, stack, dim=dim, grid=reader.grid, dropout=reader.dropout,
        positions=build_positions(reader.positions, dim, length=reader.states),
        first=reader.class_token,
        columns=build_columns(reader.column_layers, dim),
    )  # fmt: skip


def build_timm_cells(reader: schema.TimmReader, stack: Stack | None) -> tuple[nn.Module, int]:
    return build_backbone(reader), reader.dim


def build_grid_cells(reader: schema.GridReader, stack: Stack | None) -> tuple[nn.Module, int]:
    made = Convolutions(reader.channels, depth=reader.depth, flat=reader.flat, attention=reader.attention)
    return made, reader.channels[-1]


def build_patch_cells(reader: schema.PatchReader, stack: Stack) -> tuple[nn.Module, int]:
    dim, patch, colours = int(stack.dim), reader.patch, Colours(reader.mean, reader.std)
    normalized = None if set(colours.mean + colours.std) == {0.5} else colours  # None: values from -1 to 1
    if reader.stem:
        return ConvolvedPatches(dim, patch=patch, channels=reader.stem, colours=normalized), dim
    return Patches(dim, patch=patch, colours=normalized), dim


# What makes cells of a picture, and how wide they are
CELLS: dict[str, Callable[[Any, Any], tuple[nn.Module, int]]] = {
    "timm": build_timm_cells,
    "grid": build_grid_cells,
    "patches": build_patch_cells,
}


def build_cell_stack(settings: Any, options: Options) -> Any:
    """The stack over the cells, where there is one."""
    if settings is None:
        return None
    if settings.kind != "transformer":
        return options.build_own(settings)
    return build_plain_transformer(settings, options)


def build_columns(layers: int, dim: int) -> RecurrentStack | None:
    """The LSTM over the columns of a grid, where there is one."""
    return RecurrentStack(dim, cell="lstm", layers=layers).without_cells() if layers else None


def build_positions(kind: str, dim: int, *, length: int) -> nn.Module | None:
    if kind == "none":
        return None
    return positions.Sinusoidal(dim) if kind == "sinusoidal" else positions.Learned(dim, length=length)


# ---- pictures with questions


def build_joined_reader(
    reader: schema.JoinedReader, build_ask: Callable[[schema.TokenReader], TokenReader], options: Options
) -> JoinedReader:
    """Both readers and their join; `build_ask` makes the reader of questions.

    A user's own join is called with the widths of cells and of words.
    """
    ask = build_ask(reader.ask)
    if reader.join.kind == "question":
        return JoinedReader(None, ask, QuestionAlone(ask.dim), grid=reader.look.grid)
    look = build_picture_reader(reader.look, 0, options)
    if reader.join.kind in JOINS:
        join = JOINS[reader.join.kind](reader.join, look.dim, ask, options)
    else:
        join = options.build_own(reader.join, look.dim, ask.dim)
    return JoinedReader(look, ask, join, grid=look.grid, blind=reader.blind)


def build_glimpses(join: schema.GlimpsesJoin, cells: int, ask: TokenReader, options: Options) -> Glimpses:
    return Glimpses(cells, ask.dim, hidden=join.hidden, glimpses=join.glimpses, dropout=join.dropout)


def build_hops(join: schema.HopsJoin, cells: int, ask: TokenReader, options: Options) -> Hops:
    words = get_input_dim(ask.stack)
    return Hops(cells, words, ask.dim, dim=join.dim, hops=join.hops, dropout=join.dropout)


def build_concat(join: schema.ConcatJoin, cells: int, ask: TokenReader, options: Options) -> Concat:
    stack = build_cell_stack(join.stack, options)
    if stack is not None and stack.dim != join.dim:
        raise SaccadeError(
            f"reader.join.stack.dim must be that of the join, {join.dim}, got {stack.dim}; set one to the other"
        )
    return Concat(cells, ask.dim, dim=join.dim, stack=stack)


JOINS: dict[str, Callable[[Any, int, TokenReader, Options], nn.Module]] = {
    "glimpses": build_glimpses,
    "hops": build_hops,
    "concat": build_concat,
}
