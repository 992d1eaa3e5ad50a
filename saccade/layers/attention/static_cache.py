"""The state of a Transformer writer in buffers that never move, so that a step is the same work on the same memory each
time: what a CUDA graph wants. `step_fixed` is the reference for the kernels in `fast_step.py`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.layers.attention import masks
from saccade.layers.memory import KeyValue


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


def make_room(stack: Any, *, rows: int, beams: int, capacity: int, source_length: int) -> FixedState:
    """Buffers for `rows` rows of `capacity` positions; `beams` of them read the same `source_length` positions."""
    heads, _, head_dim = stack.blocks[0].self.project.shape
    weight = next(stack.parameters())
    attends = [block for block in stack.blocks if block.cross is not None]
    sentences = rows // beams

    def pairs(count: int, n: int, length: int) -> tuple[KeyValue, ...]:
        room = [weight.new_zeros(n, length, heads, head_dim) for _ in range(2 * count)]
        return tuple(KeyValue(*pair) for pair in zip(room[::2], room[1::2], strict=True))

    def whole(*shape: int, dtype: torch.dtype = torch.long) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=weight.device)

    return FixedState(
        own=pairs(len(stack.blocks), rows, capacity),
        memory=pairs(len(attends), sentences, source_length),
        memory_mask=whole(sentences, source_length, dtype=torch.bool),
        memory_lengths=whole(sentences),
        source=whole(rows),
        slots=whole(rows, capacity if beams > 1 else 1, dtype=torch.int32),
        lengths=whole(rows),
        counters=whole(1024, dtype=torch.int32),
    )


def step_fixed(stack: Any, x: Float[Tensor, "R 1 D"], state: FixedState) -> Float[Tensor, "R 1 D"]:
    """One position further in every row, with the blocks' own functions; the caller moves `lengths`."""
    at = state.lengths[:, None]
    where = masks.positions(state.capacity, x.device)
    lines = state.slots.long().expand(-1, state.capacity)
    new = lines.gather(1, at)
    memories = iter(state.memory)
    for block, cache, window in zip(stack.blocks, state.own, stack.windows, strict=True):

        def attention(y: Tensor, block: Any = block, cache: KeyValue = cache, window: int | None = window) -> Tensor:
            query, key, value = block.self.turned(y, at)
            cache.keys[new, at] = key.to(cache.keys.dtype)
            cache.values[new, at] = value.to(cache.values.dtype)
            keys, values = cache.keys[lines, where], cache.values[lines, where]
            return block.self.heads.mix(
                block.self, query, keys, values, mask=stack.structure(None, window), q_pos=at, k_pos=where
            )

        seen = None
        if block.cross is not None:
            whole = next(memories)
            seen = KeyValue(whole.keys[state.source], whole.values[state.source])
        x = block(x, attention, seen, None if seen is None else state.memory_mask[state.source])
    return stack.norm(x)
