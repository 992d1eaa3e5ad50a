"""Keys and values that decoding keeps from step to step, so that no position is computed twice."""

from dataclasses import dataclass, replace
from itertools import groupby
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True)
class KeyValue:
    """Keys and values of one attention layer; room for L positions is made once."""

    keys: Float[Tensor, "B L H E"]
    values: Float[Tensor, "B L H E"]

    @classmethod
    def empty(cls, rows: int, length: int, heads: int, head_dim: int, *, like: Tensor) -> "KeyValue":
        """Room in which one position of all rows lies in one piece: a step writes and reads by position."""
        keys, values = (like.new_zeros(length, rows, heads, head_dim).transpose(0, 1) for _ in range(2))
        return cls(keys, values)

    def write(self, keys: Float[Tensor, "B n H E"], values: Float[Tensor, "B n H E"], at: Int[Tensor, "B n"]) -> None:
        """Puts keys and values at these positions of each row, in place."""
        rows = torch.arange(at.shape[0], device=at.device)[:, None]
        self.keys[rows, at] = keys.to(self.keys.dtype)  # autocast may have made them narrower
        self.values[rows, at] = values.to(self.values.dtype)

    def write_even(self, keys: Float[Tensor, "B n H E"], values: Float[Tensor, "B n H E"], end: int) -> None:
        """The same for the last n positions before `end`, in all rows alike."""
        begin = end - keys.shape[1]
        self.keys[:, begin:end].copy_(keys)
        self.values[:, begin:end].copy_(values)

    def select(self, indices: Int[Tensor, " C"], length: int) -> "KeyValue":
        """The rows `indices`, of which the first `length` positions are in use."""
        return KeyValue(_select(self.keys, indices, length), _select(self.values, indices, length))

    def move(self, source: Int[Tensor, " m"], target: Int[Tensor, " m"]) -> None:
        """Copies some cells onto others, in place; a cell is a row at a position, counted position by position."""
        for buffer in (self.keys, self.values):
            cells = buffer.transpose(0, 1).view(-1, *buffer.shape[2:])
            cells[target] = cells.index_select(0, source)

    def by_head(self) -> "KeyValue":
        """The same, so laid out that the positions of one head lie in one piece: for many looks at what stays."""
        keys, values = (part.transpose(1, 2).contiguous().transpose(1, 2) for part in (self.keys, self.values))
        return KeyValue(keys, values)

    def by_feature(self) -> "KeyValue":
        """The same for the positions of one feature."""
        _, _, heads, head_dim = self.keys.shape
        # Row by row, since matrices are turned by a kernel that is faster than the one for all else.
        rows = ([row.flatten(1).T for row in part] for part in (self.keys, self.values))
        keys, values = (torch.stack(part).unflatten(1, (heads, head_dim)).permute(0, 3, 1, 2) for part in rows)
        return KeyValue(keys, values)


def _select(buffer: Float[Tensor, "B L H E"], indices: Int[Tensor, " C"], length: int) -> Float[Tensor, "C L H E"]:
    by_position = buffer.transpose(0, 1)
    if torch.is_grad_enabled():  # which has no way back from what is written into a buffer
        return by_position.index_select(1, indices).transpose(0, 1)
    chosen = buffer.new_empty(buffer.shape[1], indices.shape[0], *buffer.shape[2:])
    torch.index_select(by_position[:length], 1, indices, out=chosen[:length])
    return chosen.transpose(0, 1)


@runtime_checkable
class LayerCache(Protocol):
    """Keys and values of one attention layer while it decodes, and where the next positions stand."""

    @property
    def positions(self) -> Int[Tensor, "b n"]:
        """Those of the next positions of each row; one row of numbers where all rows are alike."""
        ...

    def update(
        self, keys: Float[Tensor, "B n H E"], values: Float[Tensor, "B n H E"]
    ) -> tuple[Float[Tensor, "B L H E"], Float[Tensor, "B L H E"]]:
        """Write the keys and values of the next positions; return those of all positions so far."""
        ...


@dataclass(frozen=True)
class DynamicCache:
    """The buffers of an `AttentionState`, of which the first `length` positions are in use after the next ones."""

    buffers: KeyValue
    positions: Int[Tensor, "b n"]
    length: int

    def update(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        if self.positions.shape[0] == 1:
            self.buffers.write_even(keys, values, self.length)
        else:
            self.buffers.write(keys, values, self.positions)
        return self.buffers.keys[:, : self.length], self.buffers.values[:, : self.length]


@dataclass(frozen=True)
class AttentionState:
    """Where a Transformer writer stands: what each layer has seen so far, and memory's keys and values, made once.

    Memory may have fewer rows than are written: then the rows that write about the same memory stand next to each
    other, equally many for each row of it.
    """

    own: tuple[KeyValue, ...]
    memory: tuple[KeyValue, ...]
    memory_mask: Bool[Tensor, "N S"] | None  # none: all positions are real
    lengths: Int[Tensor, " B"]  # positions written so far, row by row
    longest: int  # the largest of them, known without asking the device
    even: bool  # all rows have the same length
    origins: Int[Tensor, "B L"] | None = None  # on a CPU: the row that wrote what a row has at a position

    @property
    def capacity(self) -> int:
        """How many positions there is room for."""
        return self.own[0].keys.shape[1]

    def positions(self, n: int) -> Int[Tensor, "b n"]:
        """Where the next n positions of each row stand; one row of numbers where all rows are alike."""
        if self.even:
            return torch.arange(self.longest, self.longest + n, device=self.lengths.device)[None]
        return self.lengths[:, None] + torch.arange(n, device=self.lengths.device)

    def reorder(self, indices: Int[Tensor, " C"]) -> "AttentionState":
        """The state whose row i is row indices[i] of this one; fewer indices let finished rows leave."""
        memory, mask = self._memory_rows(indices) if self.origins is None else self._shared_memory(indices)
        origins = None if self.origins is None else self.origins.index_select(0, indices)
        lengths = self.lengths.index_select(0, indices)
        return AttentionState(self._own_rows(indices, origins), memory, mask, lengths, self.longest, self.even, origins)

    def _own_rows(self, indices: Int[Tensor, " C"], origins: Int[Tensor, "C L"] | None) -> tuple[KeyValue, ...]:
        """Copies, or the same buffers in which only that is copied which two rows do not share: beams share much."""
        before, as_many = self.origins, len(indices) == len(self.lengths)
        if before is not None and origins is not None and self.even and as_many and not torch.is_grad_enabled():
            row, position = torch.ne(origins, before)[:, : self.longest].nonzero(as_tuple=True)
            if 2 * len(row) < len(indices) * self.longest:
                first = position * len(indices)
                for layer in self.own:
                    layer.move(first + indices[row], first + row)
                return self.own
        # Rows of one length never look beyond it; otherwise the short rows need something finite there.
        used = self.longest if self.even else self.capacity
        return tuple(layer.select(indices, used) for layer in self.own)

    def _shared_memory(self, indices: Int[Tensor, " C"]) -> tuple[tuple[KeyValue, ...], Tensor | None]:
        """Memory once for rows next to each other that write about the same; asks what the indices are."""
        if not self.memory:
            return (), None
        there = self.memory[0].keys.shape[0]
        wanted = (indices // (self.lengths.shape[0] // there)).tolist()
        groups = [(row, len(list(group))) for row, group in groupby(wanted)]
        rows = [row for row, _ in groups] if len({size for _, size in groups}) == 1 else wanted
        if rows == list(range(there)):
            return self.memory, self.memory_mask
        return self._memory_rows(torch.tensor(rows, dtype=torch.long))

    def _memory_rows(self, rows: Int[Tensor, " M"]) -> tuple[tuple[KeyValue, ...], Tensor | None]:
        mask = None if self.memory_mask is None else self.memory_mask.index_select(0, rows)
        chosen = tuple(KeyValue(_keep_layout(m.keys, rows), _keep_layout(m.values, rows)) for m in self.memory)
        return chosen, mask

    def advance(self, n: int) -> "AttentionState":
        """The same buffers, n positions further."""
        if self.origins is not None and self.even and len(self.lengths) > 1:  # a single row comes from itself
            rows = torch.arange(self.lengths.shape[0])[:, None]
            self.origins[:, self.longest : self.longest + n] = rows
        return self.further(n)

    def further(self, n: int) -> "AttentionState":
        """The same, where it has been noted already which rows wrote these positions."""
        return replace(self, lengths=self.lengths + n, longest=self.longest + n)


def _keep_layout(x: Float[Tensor, "N S H E"], rows: Int[Tensor, " M"]) -> Float[Tensor, "M S H E"]:
    """Some rows, in the order of memory in which `x` lies: by feature, by head, or as its shape says."""
    if x.stride(1) == 1:
        return x.permute(0, 2, 3, 1).index_select(0, rows).permute(0, 3, 1, 2)
    if x.stride(1) < x.stride(2):
        return x.transpose(1, 2).index_select(0, rows).transpose(1, 2)
    return x.index_select(0, rows)
