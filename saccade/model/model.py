"""A model: what reads, and what writes."""

from dataclasses import replace
from typing import Any

from torch import nn

from saccade.config.protocols import Capabilities, get_capabilities
from saccade.data.batching.batch import Batch
from saccade.layers.walking import Walking

READ = ("source", "question")  # fields that are read, in this order; a question where there is one


class Model(nn.Module):
    """X, attend, and Y: `writer(y, mask, read(x))`. Without a reader it is a language model: `read` gives None."""

    def __init__(self, reader: Any, writer: Any, *, ctc: Any = None) -> None:
        """A TokenReader (or None) and a TokenWriter, or a user's own that are called as these are.

        `ctc` is a second writer on the same reader, where there is one.
        """
        super().__init__()
        self.reader, self.writer, self.ctc = reader, writer, ctc

    @property
    def dim(self) -> int:
        """The width of what reads; where nothing is read, of what writes."""
        part = self.writer if self.reader is None else self.reader
        return int(part.dim)

    @property
    def capabilities(self) -> Capabilities:
        """What reader and writer support together; how it decodes is the writer's alone."""
        writer = get_capabilities(self.writer, "the writer")
        if self.reader is None:
            return writer
        reader = get_capabilities(self.reader, "the reader")
        both = reader & writer
        shared = {name: getattr(both, name) for name in ("packed_rows", "static_shapes")}
        reasons = {name: reason for name, reason in reader.reasons.items() if name in shared}
        return replace(writer, **shared, fixed_inputs=reader.fixed_inputs, reasons={**writer.reasons, **reasons})

    def read(self, batch: Batch) -> Any:
        """A Memory, or None where nothing is read."""
        if self.reader is None:
            return None
        given = [batch[name] for name in READ if name in batch.fields]
        memory = self.reader(*(part for field in given for part in (field.content, field.mask)))
        if (ground := batch.fields.get("ground")) is None:
            return memory
        return replace(memory, walking=Walking(ground.start[:, 0], ground.moves, ground.sights))
