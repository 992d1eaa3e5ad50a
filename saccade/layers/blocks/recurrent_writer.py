"""The recurrent stack of a writer: its initial state, and the recurrence with or without attention."""

from dataclasses import replace
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from saccade.config.protocols import Capabilities
from saccade.layers.auxiliary import Aux
from saccade.layers.blocks.experts import NO_EXPERTS, InterLayerExperts
from saccade.layers.blocks.recurrence import BahdanauRecurrence, FixedContextRecurrence, LuongRecurrence, RecurrentState
from saccade.layers.blocks.recurrent import CELLS, CellName, Hidden, Widths, split_widths
from saccade.layers.dropout import Dropout
from saccade.layers.memory import Memory

Context = Literal["last", "mean"]
Initial = Literal["predicted", "copied", "zero"]


class InitialState(nn.Module):
    """The context vector c of the whole source, and the initial states s_0 of all layers.

    c is the reader's last state h_T or the mean of its states. s_0 is predicted, tanh(W c), copied from the last states
    of the reader's layers, or zero, which it also is without a reader.
    """

    def __init__(
        self, dim: Widths, *, cell: CellName, layers: int, memory_dim: int | None, context: Context, initial: Initial
    ) -> None:
        super().__init__()
        self.widths = split_widths(dim)[1:][: CELLS[cell].states]  # of the tensors of a layer's state
        self.layers, self.context, self.is_zero = layers, context, initial == "zero"
        self.predict = (
            None if memory_dim is None or initial != "predicted" else nn.Linear(memory_dim, layers * sum(self.widths))
        )

    def summarize(self, memory: Memory) -> Float[Tensor, "B M"]:
        if self.context == "mean":
            real = memory.padding[..., None]
            return (memory.states * real).sum(1) / real.sum(1).clamp(min=1)
        if memory.final is not None:
            return memory.final[-1][0]
        last = memory.padding.sum(1).clamp(min=1) - 1
        return memory.states[torch.arange(len(last), device=last.device), last]

    def forward(self, memory: Memory | None, context: Tensor | None, like: Float[Tensor, "B M"]) -> tuple[Hidden, ...]:
        if memory is None or context is None or self.is_zero:
            first = like.new_zeros(len(like), self.layers, sum(self.widths))
        elif self.predict is not None:
            first = torch.tanh(self.predict(context)).unflatten(-1, (self.layers, -1))
        else:
            assert memory.final is not None, "only the last states of a recurrent reader can be copied"
            return memory.final
        return tuple(layer.split(self.widths, -1) for layer in first.unbind(1))


class RecurrentWriter(nn.Module):
    """The stack of a recurrent writer: initial states, the recurrence, and dropout of its outputs."""

    operation = "recurrence"  # for counts of parameters by operation

    def __init__(
        self,
        recurrence: FixedContextRecurrence | BahdanauRecurrence | LuongRecurrence,
        *,
        first: InitialState,
        dim: int,
        input_dim: int | None = None,
        between: InterLayerExperts = NO_EXPERTS,
        dropout: float = 0.0,
    ) -> None:
        """`dim` is the width of the outputs, `input_dim` that of the inputs, by default the same."""
        super().__init__()
        self.recurrence, self.first, self.between, self.dim = recurrence, first, between, dim
        self.input_dim = input_dim or dim
        self.dropout = Dropout(dropout)

    @property
    def capabilities(self) -> Capabilities:
        """Static shapes, unless its attention has a user's score that does not declare them."""
        problem = "" if self.recurrence.cross is None else self.recurrence.cross.score_problem
        return Capabilities(static_shapes=not problem, reasons={"static_shapes": problem} if problem else {})

    def forward(
        self,
        x: Float[Tensor, "B T I"],
        mask: Bool[Tensor, "B T"] | None,
        memory: Memory | None = None,
        state: RecurrentState | None = None,
    ) -> tuple[Float[Tensor, "B T D"], Any, RecurrentState | None, Aux]:
        """Hidden states of whole sequences, or with a state those of the next positions. Padding is on the right."""
        initial = self.start(memory, rows=len(x), capacity=x.shape[1]) if state is None else state
        with torch.autocast(x.device.type, enabled=False):  # torch's kernels would run in half precision
            y, after, aux = self.recurrence(x.to(self.dtype), initial, self.between, mask)
        after = None if state is None else replace(after, lengths=after.lengths + x.shape[1])
        return self.dropout(y), mask, after, aux

    def start(self, memory: Memory | None, *, rows: int, capacity: int) -> RecurrentState:
        """The state before the first position; its size does not depend on `capacity`."""
        weight = self.recurrence.layers[0].weight_hh_l0
        with torch.autocast(weight.device.type, enabled=False):
            memory = None if memory is None else replace(memory, states=memory.states.to(self.dtype))
            context = None if memory is None else self.first.summarize(memory)
            hidden = self.first(memory, context, weight.new_empty(rows, 0))
            projected, input_feed = self.recurrence.prepare_memory(memory, context)
        row_indices = torch.arange(rows, device=weight.device)
        return RecurrentState(hidden, input_feed, projected, row_indices, torch.zeros_like(row_indices))

    def switch_memory(self, state: RecurrentState, memory: Memory) -> RecurrentState:
        """The same state with another memory to attend to, such as the next picture of a series."""
        with torch.autocast(memory.states.device.type, enabled=False):
            memory = replace(memory, states=memory.states.to(self.dtype))
            projected, input_feed = self.recurrence.prepare_memory(memory, self.first.summarize(memory))
        return replace(state, memory=projected, input_feed=input_feed if projected is None else state.input_feed)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which this stack computes, whatever the dtype of its inputs."""
        return self.recurrence.layers[0].weight_hh_l0.dtype
