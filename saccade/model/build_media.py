"""Readers of pictures and sound from their settings."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from saccade.config import schema
from saccade.config.kinds import Custom
from saccade.layers import positions
from saccade.layers.grid import Colours, Convolutions, Patches
from saccade.layers.patch_stem import ConvolvedPatches
from saccade.layers.recurrent import RecurrentStack
from saccade.model.build_frames import build_frames
from saccade.model.build_timm import build_backbone
from saccade.model.build_transformer import build_transformer
from saccade.model.picture_reader import PictureReader


def build_media_reader(reader: schema.MediaReader, *, train: schema.Train, kinds: Mapping[str, Any]) -> Any:
    if isinstance(reader, schema.FrameReader):
        return build_frames(reader, train=train, kinds=kinds)
    assert isinstance(reader, schema.CellReader), "nothing else reads media"
    stack = build_cell_stack(reader.stack, train=train, kinds=kinds)
    cells, dim = build_cells(reader, stack)
    return PictureReader(
        cells, stack, dim=dim, grid=reader.grid, dropout=reader.dropout,
        positions=build_positions(reader.positions, dim, length=reader.states),
        first=isinstance(reader, schema.PatchReader) and reader.first,
        columns=build_columns(reader, dim),
    )  # fmt: skip


def build_cells(reader: schema.CellReader, stack: Any) -> tuple[nn.Module, int]:
    """What makes cells of a picture, and how wide they are."""
    match reader:
        case schema.TimmReader():
            return build_backbone(reader), reader.dim
        case schema.GridReader():
            made = Convolutions(reader.channels, depth=reader.depth, flat=reader.flat, attention=reader.attention)
            return made, reader.channels[-1]
    dim, patch, colours = int(stack.dim), reader.patch, colours_of(reader)
    if reader.stem:
        return ConvolvedPatches(dim, patch=patch, channels=reader.stem, colours=colours), dim
    return Patches(dim, patch=patch, colours=colours), dim


def build_cell_stack(
    settings: schema.TransformerStack | Custom | None, *, train: schema.Train, kinds: Mapping[str, Any]
) -> Any:
    """What goes over the cells, none of which has another before it."""
    if settings is None:
        return None
    if isinstance(settings, Custom):
        return kinds[settings.kind](**settings.settings())
    return build_transformer(settings, schema.NoPositions(), memory_dim=None, causal=False, train=train)


def build_columns(reader: schema.PictureReader, dim: int) -> RecurrentStack | None:
    """What goes over the columns of a grid, where that is wanted."""
    layers = reader.columns if isinstance(reader, schema.GridReader) else 0
    return RecurrentStack(dim, cell="lstm", layers=layers).without_cells() if layers else None


def build_positions(kind: str, dim: int, *, length: int) -> nn.Module | None:
    if kind == "none":
        return None
    return positions.Sinusoidal(dim) if kind == "sinusoidal" else positions.Learned(dim, length=length)


def colours_of(reader: schema.PatchReader) -> Colours | None:
    """None where numbers from -1 to 1 are what is wanted."""
    colours = Colours(reader.mean, reader.std)
    return None if set(colours.mean + colours.std) == {0.5} else colours
