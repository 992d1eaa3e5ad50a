"""The recurrent stack of a writer: what it begins with, and the recurrence that goes on from there."""

import math
from dataclasses import replace
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from saccade.config.protocols import Capabilities
from saccade.layers.auxiliary import Aux
from saccade.layers.blocks.experts import NOTHING_BETWEEN, Between
from saccade.layers.blocks.recurrence import FixedContext, LookAfter, LookFirst, RecurrentState
from saccade.layers.blocks.recurrent import CELLS, Hidden, Name
from saccade.layers.dropout import Dropout
from saccade.layers.memory import Memory

Context = Literal["last", "mean"]


class FirstState(nn.Module):
    """c, the vector that stands for all that was read, and the states s_0 of all layers.

    c is h_T, the reader's last state, or the mean of all of its states. s_0 = tanh(W c), or the reader's own last
    states are copied. A writer that has read nothing begins with zeros.
    """

    def __init__(
        self, dim: int, *, cell: Name, layers: int, memory_dim: int | None, context: Context, copied: bool
    ) -> None:
        super().__init__()
        self.shape, self.context = (layers, CELLS[cell].states, dim), context
        self.predict = None if memory_dim is None or copied else nn.Linear(memory_dim, math.prod(self.shape))

    def summary(self, memory: Memory) -> Float[Tensor, "B M"]:
        if self.context == "mean":
            real = memory.padding[..., None]
            return (memory.states * real).sum(1) / real.sum(1).clamp(min=1)
        if memory.final is not None:
            return memory.final[-1][0]
        last = memory.padding.sum(1).clamp(min=1) - 1
        return memory.states[torch.arange(len(last), device=last.device), last]

    def forward(self, memory: Memory | None, context: Tensor | None, like: Float[Tensor, "B M"]) -> tuple[Hidden, ...]:
        if memory is None or context is None:
            first = like.new_zeros(len(like), *self.shape)
        elif self.predict is not None:
            first = torch.tanh(self.predict(context)).unflatten(-1, self.shape)
        else:
            assert memory.final is not None, "only a recurrent reader's last states can be copied"
            return memory.final
        return tuple(layer.unbind(1) for layer in first.unbind(1))


class RecurrentWriter(nn.Module):
    """The stack of a writer: first states, the recurrence, dropout of what it tells."""

    operation = "recurrence"  # for counts of parameters by operation
    capabilities = Capabilities(static_shapes=True)

    def __init__(
        self,
        recurrence: FixedContext | LookFirst | LookAfter,
        *,
        first: FirstState,
        dim: int,
        between: Between = NOTHING_BETWEEN,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.recurrence, self.first, self.between, self.dim = recurrence, first, between, dim
        self.dropout = Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        mask: Bool[Tensor, "B T"] | None,
        memory: Memory | None = None,
        state: RecurrentState | None = None,
    ) -> tuple[Float[Tensor, "B T D"], Any, RecurrentState | None, Aux]:
        """A whole text, or with a state its next positions. Padding stands on the right, where nobody reads it."""
        begin = self.start(memory, rows=len(x), capacity=x.shape[1]) if state is None else state
        with torch.autocast(x.device.type, enabled=False):  # under which torch's kernels would run in float16
            y, after, aux = self.recurrence(x.to(self.kind), begin, self.between, mask)
        after = None if state is None else replace(after, lengths=after.lengths + x.shape[1])
        return self.dropout(y), mask, after, aux

    def start(self, memory: Memory | None, *, rows: int, capacity: int) -> RecurrentState:
        """The state before the first word; there is room for any number of positions."""
        weight = self.recurrence.layers[0].weight_hh_l0
        with torch.autocast(weight.device.type, enabled=False):
            memory = None if memory is None else replace(memory, states=memory.states.to(self.kind))
            context = None if memory is None else self.first.summary(memory)
            hidden = self.first(memory, context, weight.new_empty(rows, 0))
            source, fed = self.recurrence.begin(memory, context)
        numbers = torch.arange(rows, device=weight.device)
        return RecurrentState(hidden, fed, source, numbers, torch.zeros_like(numbers))

    def turned(self, state: RecurrentState, memory: Memory) -> RecurrentState:
        """The same state in front of another memory: that of the next picture, where several come one by one."""
        with torch.autocast(memory.states.device.type, enabled=False):
            memory = replace(memory, states=memory.states.to(self.kind))
            source, fed = self.recurrence.begin(memory, self.first.summary(memory))
        return replace(state, source=source, fed=fed if source is None else state.fed)

    @property
    def kind(self) -> torch.dtype:
        """Of the numbers in which this stack computes, whatever those are that it is given."""
        return self.recurrence.layers[0].weight_hh_l0.dtype
