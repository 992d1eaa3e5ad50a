"""What crosses from a reader to a writer, and the state of a writer between two steps."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Memory:
    """What was read: one state for each position of the input, and which of them are real."""

    states: Float[Tensor, "B S D"]
    mask: Bool[Tensor, "B S"]
    tokens: Int[Tensor, "B S"] | None = None


@dataclass(frozen=True)
class KeyValue:
    """Keys and values of one attention layer; room for L positions is made once."""

    keys: Float[Tensor, "B L H E"]
    values: Float[Tensor, "B L H E"]

    def write(self, keys: Float[Tensor, "B n H E"], values: Float[Tensor, "B n H E"], at: Int[Tensor, "B n"]) -> None:
        """Puts keys and values at these positions of each row, in place."""
        rows = torch.arange(at.shape[0], device=at.device)[:, None]
        self.keys[rows, at] = keys.to(self.keys.dtype)  # autocast may have made them narrower
        self.values[rows, at] = values.to(self.values.dtype)

    def select(self, indices: Int[Tensor, " C"], length: int) -> "KeyValue":
        """The rows `indices`, of which the first `length` positions are in use."""
        return KeyValue(_select(self.keys, indices, length), _select(self.values, indices, length))


def _select(buffer: Float[Tensor, "B L H E"], indices: Int[Tensor, " C"], length: int) -> Float[Tensor, "C L H E"]:
    if length == buffer.shape[1]:
        return buffer.index_select(0, indices)
    chosen = buffer.new_empty(indices.shape[0], *buffer.shape[1:])
    chosen[:, :length] = buffer[:, :length].index_select(0, indices)
    return chosen


@dataclass(frozen=True)
class AttentionState:
    """Where a Transformer writer stands: what each layer has seen so far, and memory's keys and values, made once."""

    own: tuple[KeyValue, ...]
    memory: tuple[KeyValue, ...]
    memory_mask: Bool[Tensor, "B S"] | None
    lengths: Int[Tensor, " B"]  # positions written so far, row by row
    longest: int  # the largest of them, known without asking the device
    even: bool  # all rows have the same length

    @property
    def capacity(self) -> int:
        """How many positions there is room for."""
        return self.own[0].keys.shape[1]

    def reorder(self, indices: Int[Tensor, " C"]) -> "AttentionState":
        """The state whose row i is row indices[i] of this one; fewer indices let finished rows leave."""
        mask = self.memory_mask
        # Rows of one length never look beyond it; otherwise the short rows need something finite there.
        used = self.longest if self.even else self.capacity
        return AttentionState(
            own=tuple(layer.select(indices, used) for layer in self.own),
            memory=tuple(layer.select(indices, layer.keys.shape[1]) for layer in self.memory),
            memory_mask=None if mask is None else mask.index_select(0, indices),
            lengths=self.lengths.index_select(0, indices),
            longest=self.longest,
            even=self.even,
        )

    def advance(self, n: int) -> "AttentionState":
        """The same buffers, n positions further."""
        return AttentionState(self.own, self.memory, self.memory_mask, self.lengths + n, self.longest + n, self.even)
