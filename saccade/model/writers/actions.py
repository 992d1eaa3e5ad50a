"""A writer of actions, which at each step also sees the world as it is after the actions so far (Mei et al. 2016)."""

from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.config.protocols import Capabilities, PositionedState, Stack
from saccade.kernels.cpu.prepared import CpuLayout
from saccade.layers.auxiliary import Aux
from saccade.layers.dropout import Dropout
from saccade.layers.memory import Memory
from saccade.layers.packing import Packing
from saccade.layers.walking import Walking
from saccade.model.readers.tokens import Embedding
from saccade.model.writers.tokens import Step, TokenWriter


class Underway(NamedTuple):
    """The state of the stack, and where rows stand."""

    inner: Any
    walking: Walking

    @property
    def lengths(self) -> Int[Tensor, " B"]:
        lengths: Tensor = self.inner.lengths
        return lengths

    def reorder(self, indices: Int[Tensor, " C"]) -> "Underway":
        return Underway(self.inner.reorder(indices), self.walking.reorder(indices))


class ActionWriter(TokenWriter):
    """Each token is carried out where its row stands; what is seen from there is added to its vector."""

    cpu_layout = CpuLayout()

    def __init__(
        self,
        embedding: Embedding,
        stack: Stack,
        *,
        output: nn.Module,
        output_scale: float = 1.0,
        sights: int,
        blind: float = 0.0,
    ) -> None:
        """`sights` are the numbers that tell what is seen, of which the share `blind` is hidden in training."""
        super().__init__(embedding, stack, output=output, output_scale=output_scale)
        self.see, self.blind = nn.Linear(sights, embedding.tokens.embedding_dim), Dropout(blind)

    @property
    def capabilities(self) -> Capabilities:
        """No fast path: each row stands somewhere else in the world."""
        return Capabilities(linear_head=True, aux=True)

    def write(
        self, ids: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"] | Packing | None, memory: Memory | None
    ) -> tuple[Float[Tensor, "B T D"], Aux]:
        walking = walking_of(memory)
        hidden, _, _, aux = self.stack(self._inputs(ids, None, walking, walking.after(ids)), mask, memory)
        return hidden, aux

    def start(self, memory: Memory | None, *, capacity: int, rows: int = 0) -> Underway:
        return Underway(super().start(memory, capacity=capacity, rows=rows), walking_of(memory))

    def step(self, inputs: Int[Tensor, "B n"], state: PositionedState, *, align: bool = False) -> Step:
        """As any writer does; but nobody chooses to walk against a wall."""
        made = super().step(inputs, state, align=align)
        walking = cast(Underway, made.state).walking
        return made._replace(logits=made.logits.masked_fill(walking.blocked(), -torch.inf))

    def _advance(self, inputs: Tensor, state: PositionedState) -> tuple[Tensor, Underway]:
        state = cast(Underway, state)
        poses = state.walking.after(inputs)
        x = self._inputs(inputs, self._places(inputs, state.inner), state.walking, poses)
        hidden, _, inner, _ = self.stack(x, None, None, state.inner)
        return hidden, Underway(inner, state.walking.at(poses[:, -1]))

    def _inputs(self, ids: Tensor, at: Tensor | None, walking: Walking, poses: Int[Tensor, "B T"]) -> Tensor:
        return self.embedding(ids, at) + self.see(self.blind(walking.sights[poses]))


def walking_of(memory: Memory | None) -> Walking:
    assert memory is not None and memory.walking is not None, "one who walks stands somewhere"
    return memory.walking
