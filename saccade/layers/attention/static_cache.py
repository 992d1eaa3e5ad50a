"""The state of a Transformer writer in buffers that never move, so that a step is the same work on the same memory each
time: what a CUDA graph wants. A stack that declares `static_step` makes one with `start_static`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.layers.attention import masks
from saccade.layers.attention.cache import AttentionState, KeyValue


class StaticSizes(NamedTuple):
    """How much room buffers have: `beams` of the rows write about the same row of memory."""

    rows: int
    beams: int
    capacity: int  # positions of a row
    source_length: int  # positions of memory


@dataclass(frozen=True)
class StaticCache:
    """One layer of a `FixedState`: row i reads position p from line lines[i, p] of the buffers, and writes to `new`."""

    buffers: KeyValue
    positions: Int[Tensor, "R 1"]
    lines: Int[Tensor, "R L"]
    new: Int[Tensor, "R 1"]

    def update(
        self, keys: Float[Tensor, "R 1 H E"], values: Float[Tensor, "R 1 H E"]
    ) -> tuple[Float[Tensor, "R L H E"], Float[Tensor, "R L H E"]]:
        own, where = self.buffers, masks.positions(self.lines.shape[1], self.lines.device)
        own.keys[self.new, self.positions] = keys.to(own.keys.dtype)
        own.values[self.new, self.positions] = values.to(own.values.dtype)
        return own.keys[self.lines, where], own.values[self.lines, where]


@dataclass(frozen=True)
class FixedState:
    """R rows that write, each about a row of memory; a row's keys and values stay where they were written.

    Beams share their past, so `slots` has a column for each position: which row of the buffers it was written to. Where
    every row goes on alone it has one column, and the row lies in one piece.
    """

    own: tuple[KeyValue, ...]
    memory: tuple[KeyValue, ...]
    memory_mask: Bool[Tensor, "N S"]
    memory_lengths: Int[Tensor, " N"]  # positions of memory up to the last real one
    source: Int[Tensor, " R"]  # the row of memory that each row attends to
    slots: Int[Tensor, "R P"]
    lengths: Int[Tensor, " R"]  # positions written so far
    counters: Int[Tensor, " c"]  # zeros, with which the programs of one kernel find out who comes last

    @classmethod
    def empty(cls, own: int, cross: int, heads: tuple[int, int], *, sizes: StaticSizes, like: Tensor) -> "FixedState":
        """Buffers for `own` layers of self-attention and `cross` to memory; `heads`: their number and features."""
        rows, beams, capacity, source_length = sizes
        sentences = rows // beams

        def pairs(count: int, n: int, length: int) -> tuple[KeyValue, ...]:
            room = [like.new_zeros(n, length, *heads) for _ in range(2 * count)]
            return tuple(KeyValue(*pair) for pair in zip(room[::2], room[1::2], strict=True))

        def whole(*shape: int, dtype: torch.dtype = torch.long) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=like.device)

        return cls(
            own=pairs(own, rows, capacity),
            memory=pairs(cross, sentences, source_length),
            memory_mask=whole(sentences, source_length, dtype=torch.bool),
            memory_lengths=whole(sentences),
            source=whole(rows),
            slots=whole(rows, capacity if beams > 1 else 1, dtype=torch.int32),
            lengths=whole(rows),
            counters=whole(1024, dtype=torch.int32),
        )

    @property
    def capacity(self) -> int:
        return self.own[0].keys.shape[1]

    @property
    def beams(self) -> bool:
        """Whether rows share their past."""
        return self.slots.shape[1] > 1

    def first(self, rows: int) -> "FixedState":
        """The first rows alone, on the same buffers."""
        return replace(self, source=self.source[:rows], slots=self.slots[:rows], lengths=self.lengths[:rows])

    def view_prompt(self, rows: int) -> AttentionState:
        """A state over the same buffers in which the first rows read their prompts, all of one length."""
        own = tuple(KeyValue(cache.keys[:rows], cache.values[:rows]) for cache in self.own)
        return AttentionState(own, (), None, self.lengths[:rows].clone(), longest=0, even=True)

    def restart(self, beams: int) -> None:
        """Nothing is written yet; `beams` rows next to each other belong to one row of memory."""
        rows = torch.arange(self.source.shape[0], device=self.source.device)
        self.source.copy_(rows // beams)
        self.slots.copy_(rows[:, None].expand_as(self.slots))
        self.lengths.zero_()

    def put_memory(self, memory: Sequence[KeyValue], mask: Bool[Tensor, "n s"]) -> None:
        """Copies the keys and values of memory to where they are expected."""
        n, s = mask.shape
        for buffer, given in zip(self.memory, memory, strict=True):
            buffer.keys[:n, :s].copy_(given.keys)
            buffer.values[:n, :s].copy_(given.values)
        self.memory_mask.zero_()
        self.memory_mask[:n, :s].copy_(mask)
        ends = torch.arange(1, s + 1, device=mask.device)
        self.memory_lengths.zero_()
        self.memory_lengths[:n].copy_((mask * ends).max(1).values)

    def follow(self, parents: Int[Tensor, " R"]) -> None:
        """Row i goes on from row parents[i], which has written one position more: only `slots` moves."""
        self.slots.copy_(self.slots.index_select(0, parents))
        rows = torch.arange(parents.shape[0], device=parents.device, dtype=self.slots.dtype)
        at = self.lengths.clamp(max=self.slots.shape[1] - 1)
        self.slots.scatter_(1, at[:, None], rows[:, None])

    def layer_caches(self) -> list[StaticCache]:
        """The buffers of each layer, where the next position of every row is written and all before it are read."""
        at, lines = self.lengths[:, None], self.slots.long().expand(-1, self.capacity)
        new = lines.gather(1, at)
        return [StaticCache(layer, at, lines, new) for layer in self.own]
