"""A model: what reads, and what writes."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.config.protocols import Capabilities, Reader, Writer, get_capabilities
from saccade.data.batching.batch import Batch
from saccade.layers.auxiliary import Aux
from saccade.layers.memory import Memory
from saccade.layers.packing import Packing
from saccade.layers.walking import Walking

READ = ("source", "question")  # fields that are read, in this order; a question where there is one


class Model(nn.Module):
    """X, attend, and Y: `writer(y, mask, read(x))`. Without a reader it is a language model: `read` gives None."""

    def __init__(self, reader: Reader | None, writer: Writer, *, ctc: nn.Module | None = None) -> None:
        """A TokenReader (or None) and a TokenWriter, or a user's own that are called as these are.

        `ctc` is a second writer on the same reader, where there is one.
        """
        super().__init__()
        self.reader: Any = reader  # any further methods are a matter between recipe, objective and predictor
        self.writer: Any = writer
        self.ctc: Any = ctc
        self._collected: tuple[bool, list[Aux]] | None = None  # see `collect_aux`

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
        self._report(memory.aux)
        if (ground := batch.fields.get("ground")) is None:
            return memory
        return replace(memory, walking=Walking(ground.start[:, 0], ground.moves, ground.sights))

    def write(
        self, ids: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"] | Packing | None, memory: Memory | None
    ) -> tuple[Float[Tensor, "B T D"], Aux]:
        """The writer's hidden states with teacher forcing, and the `aux` of its layers where it returns one."""
        if not get_capabilities(self.writer).aux:
            return self.writer(ids, mask, memory), {}
        hidden, aux = self.writer.write(ids, mask, memory)
        self._report(aux)
        return hidden, aux

    @contextmanager
    def collect_aux(self) -> Iterator[list[Aux]]:
        """Yields what all calls of `read` and `write` inside the block report.

        Without those in another gradient mode: what trains has no use for passes in which an objective only looks.
        """
        outer, self._collected = self._collected, (torch.is_grad_enabled(), [])
        try:
            yield self._collected[1]
        finally:
            self._collected = outer

    def _report(self, aux: Aux) -> None:
        if self._collected is not None and self._collected[0] == torch.is_grad_enabled():
            self._collected[1].append(aux)
