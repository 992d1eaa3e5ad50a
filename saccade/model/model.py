"""A model: what reads, and what writes."""

from typing import Any

from torch import nn

from saccade.data.batch import Batch
from saccade.layers.memory import Memory


class Model(nn.Module):
    """X, attend, and Y: `writer(y, mask, read(x))`."""

    def __init__(self, reader: Any, writer: Any) -> None:
        """A TokenReader and a TokenWriter, or a user's own that are called as these are."""
        super().__init__()
        self.reader, self.writer = reader, writer

    def read(self, batch: Batch) -> Memory:
        source = batch["source"]
        return self.reader(source.ids, source.mask)
