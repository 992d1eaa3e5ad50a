"""Readers of pictures and sound from their settings."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from saccade.config import schema
from saccade.config.kinds import Custom
from saccade.layers import positions
from saccade.layers.grid import Convolutions, Patches
from saccade.model.build_frames import build_frames
from saccade.model.build_transformer import build_transformer
from saccade.model.picture_reader import PictureReader


def build_media_reader(reader: schema.MediaReader, *, train: schema.Train, kinds: Mapping[str, Any]) -> Any:
    if isinstance(reader, schema.FrameReader):
        return build_frames(reader, train=train, kinds=kinds)
    assert isinstance(reader, schema.PatchReader | schema.GridReader), "nothing else reads media"
    stack = build_cell_stack(reader.stack, train=train, kinds=kinds)
    if isinstance(reader, schema.PatchReader):
        dim = int(stack.dim)
        cells: nn.Module = Patches(dim, patch=reader.patch)
    else:
        dim = reader.channels[-1]
        cells = Convolutions(reader.channels, depth=reader.depth)
    return PictureReader(
        cells, stack, dim=dim, grid=(reader.grid, reader.grid), dropout=reader.dropout,
        positions=build_positions(reader.positions, dim, length=reader.states),
        first=isinstance(reader, schema.PatchReader) and reader.first,
    )  # fmt: skip


def build_cell_stack(
    settings: schema.TransformerStack | Custom | None, *, train: schema.Train, kinds: Mapping[str, Any]
) -> Any:
    """What goes over the cells, none of which has another before it."""
    if settings is None:
        return None
    if isinstance(settings, Custom):
        return kinds[settings.kind](**settings.settings())
    return build_transformer(settings, schema.NoPositions(), memory_dim=None, causal=False, train=train)


def build_positions(kind: str, dim: int, *, length: int) -> nn.Module | None:
    if kind == "none":
        return None
    return positions.Sinusoidal(dim) if kind == "sinusoidal" else positions.Learned(dim, length=length)
