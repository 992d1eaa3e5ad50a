"""Key-value caches of autoregressive decoding: each position is projected once and read by all later steps."""

from dataclasses import dataclass, replace
from itertools import groupby
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True)
class KeyValue:
    """Keys and values of one attention layer, in buffers for L positions.

    Keys that an attention score has projected may have a width Ek of their own.
    """

    keys: Float[Tensor, "B L H Ek"]
    values: Float[Tensor, "B L H E"]

    @classmethod
    def allocate(
        cls, rows: int, length: int, heads: int, head_dim: int, *, like: Tensor, key_dim: int | None = None
    ) -> "KeyValue":
        """Zero buffers with positions as the outermost dimension in memory: a step writes and reads by position."""
        widths = (head_dim if key_dim is None else key_dim, head_dim)
        keys, values = (like.new_zeros(length, rows, heads, width).transpose(0, 1) for width in widths)
        return cls(keys, values)

    def write(
        self, keys: Float[Tensor, "B n H Ek"], values: Float[Tensor, "B n H E"], positions: Int[Tensor, "B n"]
    ) -> None:
        """Write keys and values at the given positions of each row, in place."""
        rows = torch.arange(positions.shape[0], device=positions.device)[:, None]
        self.keys[rows, positions] = keys.to(self.keys.dtype)  # autocast may have produced a lower precision
        self.values[rows, positions] = values.to(self.values.dtype)

    def write_range(self, keys: Float[Tensor, "B n H Ek"], values: Float[Tensor, "B n H E"], end: int) -> None:
        """Write keys and values at the last n positions before `end`, the same positions in all rows."""
        begin = end - keys.shape[1]
        self.keys[:, begin:end].copy_(keys)
        self.values[:, begin:end].copy_(values)

    def select(self, indices: Int[Tensor, " C"], length: int) -> "KeyValue":
        """New buffers with the rows `indices`; only the first `length` positions are copied."""
        return KeyValue(_select(self.keys, indices, length), _select(self.values, indices, length))

    def copy_cells(self, source: Int[Tensor, " m"], target: Int[Tensor, " m"]) -> None:
        """Copy cells in place; cell p * B + b is position p of row b."""
        for buffer in (self.keys, self.values):
            cells = buffer.transpose(0, 1).view(-1, *buffer.shape[2:])
            cells[target] = cells.index_select(0, source)

    def to_head_major(self) -> "KeyValue":
        """The same values with the positions of one head contiguous in memory: faster to read many times."""
        keys, values = (part.transpose(1, 2).contiguous().transpose(1, 2) for part in (self.keys, self.values))
        return KeyValue(keys, values)

    def to_feature_major(self) -> "KeyValue":
        """The same values with the positions of one feature contiguous in memory."""
        heads = self.keys.shape[2]
        # Row by row: transposing a matrix has a faster kernel than permuting a tensor.
        rows = ([row.flatten(1).T for row in part] for part in (self.keys, self.values))
        keys, values = (torch.stack(part).unflatten(1, (heads, -1)).permute(0, 3, 1, 2) for part in rows)
        return KeyValue(keys, values)


def _select(buffer: Float[Tensor, "B L H E"], indices: Int[Tensor, " C"], length: int) -> Float[Tensor, "C L H E"]:
    by_position = buffer.transpose(0, 1)
    if torch.is_grad_enabled():  # autograd does not support out=
        return by_position.index_select(1, indices).transpose(0, 1)
    chosen = buffer.new_empty(buffer.shape[1], indices.shape[0], *buffer.shape[2:])
    torch.index_select(by_position[:length], 1, indices, out=chosen[:length])
    return chosen.transpose(0, 1)


@runtime_checkable
class LayerCache(Protocol):
    """The cache of one attention layer during decoding, and the positions that come next."""

    @property
    def positions(self) -> Int[Tensor, "b n"]:
        """The next positions of each row; b is 1 where they are the same in all rows."""
        ...

    def update(
        self, keys: Float[Tensor, "B n H Ek"], values: Float[Tensor, "B n H E"]
    ) -> tuple[Float[Tensor, "B L H Ek"], Float[Tensor, "B L H E"]]:
        """Write the keys and values of the next positions; return those of all positions so far."""
        ...


@dataclass(frozen=True)
class DynamicCache:
    """One layer of an `AttentionState`; `length` positions are in use after the next ones are written."""

    buffers: KeyValue
    positions: Int[Tensor, "b n"]
    length: int
    is_uniform: bool = True  # all rows write at the same positions, which end at `length`

    def update(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        if self.is_uniform:
            self.buffers.write_range(keys, values, self.length)
        else:
            self.buffers.write(keys, values, self.positions)
        return self.buffers.keys[:, : self.length], self.buffers.values[:, : self.length]


@dataclass(frozen=True)
class AttentionState:
    """The decoding state of a Transformer writer: caches of self-attention, and projected memory for cross-attention.

    Memory may have fewer rows N than the batch has rows B: then B / N consecutive rows share each row of memory, as the
    beams of one sentence do.
    """

    self_caches: tuple[KeyValue, ...]
    cross_caches: tuple[KeyValue, ...]
    memory_mask: Bool[Tensor, "N S"] | None  # None: no padding
    lengths: Int[Tensor, " B"]  # positions in the cache
    max_length: int  # their maximum, known without synchronizing with the device
    is_uniform: bool  # all rows have the same length; always so in this package, whose searches batch equal lengths
    origins: Int[Tensor, "B L"] | None = None  # on a CPU: the row that first wrote each cached position

    @property
    def capacity(self) -> int:
        """Positions that the buffers can hold."""
        return self.self_caches[0].keys.shape[1]

    def get_positions(self, n: int) -> Int[Tensor, "b n"]:
        """The next n positions of each row; b is 1 where all rows have the same length."""
        if self.is_uniform:
            return torch.arange(self.max_length, self.max_length + n, device=self.lengths.device)[None]
        return self.lengths[:, None] + torch.arange(n, device=self.lengths.device)

    def reorder(self, indices: Int[Tensor, " C"]) -> "AttentionState":
        """The state whose row i is row indices[i] of this one, as beam search needs it; fewer indices drop rows."""
        memory, mask = (
            self._select_memory_rows(indices) if self.origins is None else self._select_shared_memory(indices)
        )
        origins = None if self.origins is None else self.origins.index_select(0, indices)
        lengths = self.lengths.index_select(0, indices)
        return AttentionState(
            self._reorder_self_caches(indices, origins),
            memory,
            mask,
            lengths,
            self.max_length,
            self.is_uniform,
            origins,
        )

    def _reorder_self_caches(
        self, indices: Int[Tensor, " C"], origins: Int[Tensor, "C L"] | None
    ) -> tuple[KeyValue, ...]:
        """Reordered caches; where rows share most of their history, as beams do, only differing cells are copied.

        Cells differ where the new and the old row at an index have different `origins`.
        """
        before, same_size = self.origins, len(indices) == len(self.lengths)
        if before is not None and origins is not None and self.is_uniform and same_size and not torch.is_grad_enabled():
            row, position = torch.ne(origins, before)[:, : self.max_length].nonzero(as_tuple=True)
            if 2 * len(row) < len(indices) * self.max_length:
                first = position * len(indices)
                for layer in self.self_caches:
                    layer.copy_cells(first + indices[row], first + row)
                return self.self_caches
        # Rows of unequal length need finite values beyond the shorter lengths, because attention computes them too.
        used = self.max_length if self.is_uniform else self.capacity
        return tuple(layer.select(indices, used) for layer in self.self_caches)

    def _select_shared_memory(self, indices: Int[Tensor, " C"]) -> tuple[tuple[KeyValue, ...], Tensor | None]:
        """Memory after `reorder`, still shared by consecutive rows where possible; reads the indices (CPU only)."""
        if not self.cross_caches:
            return (), None
        memory_rows = self.cross_caches[0].keys.shape[0]
        needed = (indices // (self.lengths.shape[0] // memory_rows)).tolist()
        groups = [(row, len(list(group))) for row, group in groupby(needed)]
        rows = [row for row, _ in groups] if len({size for _, size in groups}) == 1 else needed
        if rows == list(range(memory_rows)):
            return self.cross_caches, self.memory_mask
        return self._select_memory_rows(torch.tensor(rows, dtype=torch.long))

    def _select_memory_rows(self, rows: Int[Tensor, " M"]) -> tuple[tuple[KeyValue, ...], Tensor | None]:
        mask = None if self.memory_mask is None else self.memory_mask.index_select(0, rows)
        chosen = tuple(
            KeyValue(_select_keeping_layout(m.keys, rows), _select_keeping_layout(m.values, rows))
            for m in self.cross_caches
        )
        return chosen, mask

    def advance(self, n: int) -> "AttentionState":
        """The state after n more positions were written to the same buffers."""
        if self.origins is not None and self.is_uniform and len(self.lengths) > 1:  # a single row is its own origin
            rows = torch.arange(self.lengths.shape[0])[:, None]
            self.origins[:, self.max_length : self.max_length + n] = rows
        return self.advance_lengths(n)

    def advance_lengths(self, n: int) -> "AttentionState":
        """Like `advance`, for callers that have updated `origins` already."""
        return replace(self, lengths=self.lengths + n, max_length=self.max_length + n)


def _select_keeping_layout(x: Float[Tensor, "N S H E"], rows: Int[Tensor, " M"]) -> Float[Tensor, "M S H E"]:
    """Select rows, keeping the memory layout of `x`: feature-major, head-major or contiguous."""
    if x.stride(1) == 1:
        return x.permute(0, 2, 3, 1).index_select(0, rows).permute(0, 3, 1, 2)
    if x.stride(1) < x.stride(2):
        return x.transpose(1, 2).index_select(0, rows).transpose(1, 2)
    return x.index_select(0, rows)
