"""The reader of sound from its part of a recipe."""

from typing import Any

from saccade.config.kinds import Custom
from saccade.config.schema import NoPositions, RecurrentReading, Train
from saccade.config.sound import FrameReader as Settings
from saccade.config.sound import PyramidStack as Pyramid
from saccade.layers import positions
from saccade.layers.pyramid import PyramidStack
from saccade.layers.stem import Stem
from saccade.model.build_recurrent import build_recurrent
from saccade.model.build_transformer import build_transformer
from saccade.model.frame_reader import FrameReader


def build_frames(reader: Settings, *, train: Train, kinds: Any) -> FrameReader:
    """Stem, positions and stack together; a user's own stack is called with its settings alone."""
    stack = frame_stack(reader, train=train, kinds=kinds)
    stem = Stem(reader.sound.bands, stack.dim, strides=reader.strides, kernel=reader.kernel)
    where = None
    if reader.positions == "sinusoidal":  # those of Whisper
        where = positions.Sinusoidal(stack.dim, layout="concatenated", frequencies="tensor2tensor")
    return FrameReader(stem, stack, positions=where, dropout=reader.dropout)


def frame_stack(reader: Settings, *, train: Train, kinds: Any) -> Any:
    settings = reader.stack
    if isinstance(settings, Custom):
        return kinds[settings.kind](**settings.settings())
    if isinstance(settings, Pyramid):
        return PyramidStack(settings.dim, cell=settings.cell, layers=settings.layers, dropout=settings.dropout)
    if isinstance(settings, RecurrentReading):
        return build_recurrent(settings, memory_dim=None, recompute=train.recompute, cells=False)
    return build_transformer(settings, NoPositions(), memory_dim=None, causal=False, train=train)
