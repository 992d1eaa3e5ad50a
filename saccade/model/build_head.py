"""Heads over what was read, from their settings."""

from saccade.config import schema
from saccade.model.label_writer import LabelWriter, TagWriter


def build_head(writer: schema.Head, dim: int, *, size: int) -> LabelWriter | TagWriter:
    """What makes `size` numbers of states: for each text, or for each token."""
    settings = writer.model_dump(include={"hidden", "activation", "dropout", "bias"})
    if isinstance(writer, schema.LabelWriter | schema.NumberWriter):
        return LabelWriter(dim, size=size, pooling=writer.pooling, **settings)
    return TagWriter(dim, size=size, **settings)
