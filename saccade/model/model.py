"""The model: a reader (encoder) and a writer (decoder or head)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.config.protocols import Capabilities, Reader, Writer, get_capabilities
from saccade.data.batching.batch import Batch
from saccade.layers.auxiliary import Aux
from saccade.layers.memory import Memory
from saccade.layers.packing import Packing

Result = TypeVar("Result")
READ_FIELDS = ("source", "question")  # batch fields that the reader gets, in this order; absent ones are skipped


class Model(nn.Module):
    """Reader and writer: `writer(y, mask, read(x))`. Without a reader it is a language model; `read` returns None."""

    def __init__(self, reader: Reader | None, writer: Writer, *, ctc: nn.Module | None = None) -> None:
        """`ctc` is an optional second head on the memory, trained with the CTC loss."""
        super().__init__()
        self.reader: Any = reader  # objectives and predictors use methods beyond the protocol
        self.writer: Any = writer
        self.ctc: Any = ctc
        self._aux_collector: tuple[bool, list[Aux]] | None = None  # see `collect_aux`
        self.runs_hooks = False  # whether it is sharded, so that losses are computed through `forward`

    def forward(self, compute: Callable[[], Result]) -> Result:
        """Return what `compute` returns; the hooks of a sharded model gather its parameters for it."""
        return compute()

    @property
    def dim(self) -> int:
        """Width of the reader's memory; of the writer where there is no reader."""
        part = self.writer if self.reader is None else self.reader
        return int(part.dim)

    @property
    def capabilities(self) -> Capabilities:
        """What reader and writer support together; capabilities of decoding are those of the writer alone."""
        writer = get_capabilities(self.writer, "the writer")
        if self.reader is None:
            return writer
        reader = get_capabilities(self.reader, "the reader")
        both = reader & writer
        shared = {name: getattr(both, name) for name in ("packed_rows", "static_shapes", "tensor_parallel")}
        reasons = {name: reason for name, reason in reader.reasons.items() if name in shared}
        return replace(writer, **shared, fixed_inputs=reader.fixed_inputs, reasons={**writer.reasons, **reasons})

    def read(self, batch: Batch) -> Any:
        """Encode the source, and the question if there is one, into a Memory; None without a reader."""
        if self.reader is None:
            return None
        inputs = [batch[name] for name in READ_FIELDS if name in batch.fields]
        memory = self.reader(*(tensor for field in inputs for tensor in (field.content, field.mask)))
        self._collect(memory.aux)
        return self.writer.attach(memory, batch) if get_capabilities(self.writer).attaches else memory

    def write(
        self, ids: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"] | Packing | None, memory: Memory | None
    ) -> tuple[Float[Tensor, "B T D"], Aux]:
        """Return the writer's hidden states under teacher forcing, and the `aux` of its layers ({} if it has none)."""
        if not get_capabilities(self.writer).aux:
            return self.writer(ids, mask, memory), {}
        hidden, aux = self.writer.write(ids, mask, memory)
        self._collect(aux)
        return hidden, aux

    @contextmanager
    def collect_aux(self) -> Iterator[list[Aux]]:
        """Yield a list that receives the `aux` of every call of `read` and `write` inside the block.

        Calls in another gradient mode are left out: passes under `no_grad` must not enter the training loss.
        """
        outer, self._aux_collector = self._aux_collector, (torch.is_grad_enabled(), [])
        try:
            yield self._aux_collector[1]
        finally:
            self._aux_collector = outer

    def _collect(self, aux: Aux) -> None:
        if self._aux_collector is not None and self._aux_collector[0] == torch.is_grad_enabled():
            self._aux_collector[1].append(aux)
