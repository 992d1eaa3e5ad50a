"""The decoding state of a Transformer writer in preallocated buffers that never move, as CUDA graphs require.

A stack that declares the capability `static_step` allocates one with `start_static`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.layers.attention import masks
from saccade.layers.attention.cache import AttentionState, KeyValue


class StaticSizes(NamedTuple):
    """Sizes of the buffers; `beams` consecutive rows share one row of memory."""

    rows: int
    beams: int
    capacity: int  # positions of each row
    source_length: int  # positions of memory


@dataclass(frozen=True)
class StaticCache:
    """One layer of a `StaticState`: position p of row i is read from row rows[i, p] of the buffers."""

    buffers: KeyValue
    positions: Int[Tensor, "R 1"]
    rows: Int[Tensor, "R L"]
    write_rows: Int[Tensor, "R 1"]  # rows of the buffers to which the next position is written

    def update(
        self, keys: Float[Tensor, "R 1 H E"], values: Float[Tensor, "R 1 H E"]
    ) -> tuple[Float[Tensor, "R L H E"], Float[Tensor, "R L H E"]]:
        buffers, where = self.buffers, masks.make_positions(self.rows.shape[1], self.rows.device)
        buffers.keys[self.write_rows, self.positions] = keys.to(buffers.keys.dtype)
        buffers.values[self.write_rows, self.positions] = values.to(buffers.values.dtype)
        return buffers.keys[self.rows, where], buffers.values[self.rows, where]


@dataclass(frozen=True)
class StaticState:
    """The state of R rows (beams); cached keys and values are never moved.

    Beams share their history, so `slots` has a column per position with the row of the buffers that holds it. Without
    beams it has a single column.
    """

    self_caches: tuple[KeyValue, ...]
    cross_caches: tuple[KeyValue, ...]
    memory_mask: Bool[Tensor, "N S"]
    memory_lengths: Int[Tensor, " N"]  # positions of memory without the padding at the end
    memory_rows: Int[Tensor, " R"]  # the row of memory that each row attends to
    slots: Int[Tensor, "R P"]
    lengths: Int[Tensor, " R"]  # positions in the cache
    counters: Int[Tensor, " c"]  # zeros between kernels, which use them to find the program that finishes last

    @classmethod
    def allocate(
        cls,
        self_heads: Sequence[tuple[int, int]],
        cross_heads: Sequence[tuple[int, int]],
        *,
        sizes: StaticSizes,
        like: Tensor,
    ) -> "StaticState":
        """Zero buffers for keys and values of these heads (H, E), one pair for each self- and cross-attention layer."""
        rows, beams, capacity, source_length = sizes
        sentences = rows // beams

        def key_values(heads: Sequence[tuple[int, int]], n: int, length: int) -> tuple[KeyValue, ...]:
            return tuple(KeyValue(*(like.new_zeros(n, length, *shape) for _ in range(2))) for shape in heads)

        def zeros(*shape: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=like.device)

        return cls(
            self_caches=key_values(self_heads, rows, capacity),
            cross_caches=key_values(cross_heads, sentences, source_length),
            memory_mask=zeros(sentences, source_length, dtype=torch.bool),
            memory_lengths=zeros(sentences),
            memory_rows=zeros(rows),
            slots=zeros(rows, capacity if beams > 1 else 1, dtype=torch.int32),
            lengths=zeros(rows),
            counters=zeros(1024, dtype=torch.int32),
        )

    @property
    def capacity(self) -> int:
        return self.self_caches[0].keys.shape[1]

    @property
    def has_beams(self) -> bool:
        """Whether rows share their history."""
        return self.slots.shape[1] > 1

    def select_first(self, rows: int) -> "StaticState":
        """The first rows only, on the same buffers."""
        return replace(self, memory_rows=self.memory_rows[:rows], slots=self.slots[:rows], lengths=self.lengths[:rows])

    def view_prompt(self, rows: int) -> AttentionState:
        """An `AttentionState` on the same buffers, with which the first rows process prompts of one length."""
        own = tuple(KeyValue(cache.keys[:rows], cache.values[:rows]) for cache in self.self_caches)
        return AttentionState(own, (), None, self.lengths[:rows].clone(), max_length=0, is_uniform=True)

    def reset(self, beams: int) -> None:
        """Start over with empty caches; `beams` consecutive rows share one row of memory."""
        rows = torch.arange(self.memory_rows.shape[0], device=self.memory_rows.device)
        self.memory_rows.copy_(rows // beams)
        self.slots.copy_(rows[:, None].expand_as(self.slots))
        self.lengths.zero_()

    def load_memory(self, memory: Sequence[KeyValue], mask: Bool[Tensor, "n s"]) -> None:
        """Copy the keys and values of memory into the buffers."""
        n, s = mask.shape
        for buffer, given in zip(self.cross_caches, memory, strict=True):
            buffer.keys[:n, :s].copy_(given.keys)
            buffer.values[:n, :s].copy_(given.values)
        self.memory_mask.zero_()
        self.memory_mask[:n, :s].copy_(mask)
        ends = torch.arange(1, s + 1, device=mask.device)
        self.memory_lengths.zero_()
        self.memory_lengths[:n].copy_((mask * ends).max(1).values)

    def follow_parents(self, parents: Int[Tensor, " R"]) -> None:
        """Row i continues row parents[i], after both have written one more position: only `slots` changes."""
        self.slots.copy_(self.slots.index_select(0, parents))
        rows = torch.arange(parents.shape[0], device=parents.device, dtype=self.slots.dtype)
        positions = self.lengths.clamp(max=self.slots.shape[1] - 1)
        self.slots.scatter_(1, positions[:, None], rows[:, None])

    def get_layer_caches(self) -> list[StaticCache]:
        """The cache of each layer for the next position of every row."""
        positions, rows = self.lengths[:, None], self.slots.long().expand(-1, self.capacity)
        write_rows = rows.gather(1, positions)
        return [StaticCache(layer, positions, rows, write_rows) for layer in self.self_caches]


class StaticStack(Protocol):
    """A stack that declares the capability `static_step`."""

    def start_static(self, sizes: StaticSizes) -> StaticState: ...

    def project_memory(self, states: Float[Tensor, "B S M"]) -> list[KeyValue]: ...

    def step_static(self, x: Float[Tensor, "R 1 D"], state: StaticState) -> Float[Tensor, "R 1 D"]: ...
