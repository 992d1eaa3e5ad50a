"""The interfaces between the parts of a model, as typing protocols, and what a part declares that it supports.

A model is a reader and a writer, each usually an embedding and a stack. Users bring their own parts with `kinds=`; a
part needs no base class, only these methods. Nothing here imports torch when it runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from torch import Tensor

    from saccade.layers.memory import Memory
    from saccade.layers.packing import Packing
    from saccade.model.writers.tokens import Step


@dataclass(frozen=True)
class Capabilities:
    """What a reader, writer or stack supports beyond the plain path; fast paths ask this and never the type.

    A part declares it as its attribute `capabilities`. A part that declares nothing gets the plain path.
    """

    packed_rows: bool = False  # takes a `Packing` in place of a padding mask: sequences one after the other in one row
    static_shapes: bool = False  # never synchronizes with the device on padded batches, so a CUDA graph can hold it
    static_step: bool = False  # decodes on preallocated buffers, so a CUDA graph can hold a decoding step
    fused_cpu_step: bool = False  # one decoding step is one call of C on a CPU

    def __and__(self, other: Capabilities) -> Capabilities:
        """What two parts support together."""
        return Capabilities(
            self.packed_rows and other.packed_rows,
            self.static_shapes and other.static_shapes,
            self.static_step and other.static_step,
            self.fused_cpu_step and other.fused_cpu_step,
        )


def get_capabilities(part: object) -> Capabilities:
    """The capabilities that a part declares; none for a user's own part without a declaration."""
    declared = getattr(part, "capabilities", None)
    return declared if isinstance(declared, Capabilities) else Capabilities()


@runtime_checkable
class State(Protocol):
    """What a writer carries from one decoding step to the next. The caller gives up the state that it passes on."""

    def reorder(self, indices: Tensor) -> State:
        """Select rows, as beam search does after each step; fewer indices drop finished rows."""
        ...


class Stack(Protocol):
    """Layers over a sequence: hidden states in, hidden states out, optionally attending to a memory."""

    dim: int  # width of the hidden states that come out

    def __call__(
        self, x: Tensor, mask: Tensor | Packing | None, memory: Memory | None = None, state: Any = None
    ) -> tuple[Tensor, Any, Any, dict[str, Tensor]]:
        """Return (hidden states, mask, state, aux); with a state, process only the next positions."""
        ...


class Reader(Protocol):
    """An encoder: X -> Memory."""

    dim: int  # width of the memory

    def __call__(self, content: Tensor, mask: Tensor | Packing) -> Memory: ...


class Writer(Protocol):
    """A decoder or head: Memory -> Y, for all positions at once with teacher forcing."""

    def __call__(self, ids: Tensor, mask: Tensor | Packing | None, memory: Memory | None) -> Tensor: ...


class StepwiseWriter(Writer, Protocol):
    """A writer that also decodes token by token: greedy search, sampling and beam search know nothing else."""

    def start(self, memory: Memory | None, *, capacity: int, rows: int = 0) -> State: ...

    def step(self, inputs: Tensor, state: Any, *, align: bool = False) -> Step: ...
