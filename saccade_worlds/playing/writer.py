"""The writer of a recurrent attention Q-network: action values for each picture of an episode."""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.config.protocols import Capabilities
from saccade.data.tokenization.labels import NO_CLASS
from saccade.layers.auxiliary import Aux, merge_aux
from saccade.layers.blocks.recurrence import RecurrentState
from saccade.layers.blocks.recurrent_writer import RecurrentWriter
from saccade.layers.memory import Memory
from saccade.layers.record import record
from saccade.model.writers.tokens import Step


class ValuesWriter(nn.Module):
    """Q(. | pictures so far) as a linear layer on a recurrent state (DARQN, Sorokin et al. 2015).

    The input of a step is the previous action. Memory changes at each step: the context c_t attends with s_{t-1} to the
    features of the picture of step t.
    """

    capabilities = Capabilities(aux=True)

    def __init__(self, stack: RecurrentWriter, *, size: int) -> None:
        super().__init__()
        self.stack, self.size = stack, size
        self.embedding = nn.Embedding(size + 1, stack.dim)  # row 0: no previous action
        nn.init.normal_(self.embedding.weight, std=stack.dim**-0.5)
        self.output = nn.Linear(stack.dim, size)
        nn.init.zeros_(self.output.bias)

    @property
    def dim(self) -> int:
        return int(self.stack.dim)

    def forward(self, actions: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"], memory: Memory) -> Float[Tensor, "B T A"]:
        """Action values at each step of whole episodes, given the actions taken (B, T).

        Memory has a row for each picture, one episode after the other; `mask` marks the real steps.
        """
        return self.write(actions, mask, memory)[0]

    def write(
        self, actions: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"], memory: Memory
    ) -> tuple[Float[Tensor, "B T A"], Aux]:
        """As `forward`, and return the `aux` of the stack over all steps too."""
        previous_actions = torch.cat((torch.full_like(actions[:, :1], NO_CLASS), actions[:, :-1]), 1)
        rows = (mask.flatten().cumsum(0) - 1).view_as(actions)  # after its end, an episode repeats its last picture
        state, hidden_states, reports = None, [], []
        for t in range(actions.shape[1]):
            current = select_rows(memory, rows[:, t])
            state = self.start(current) if state is None else self.stack.switch_memory(state, current)
            hidden, _, state, aux = self.stack(self.embedding(previous_actions[:, t : t + 1]), None, None, state)
            hidden_states.append(hidden)
            reports.append(aux)
        return self.output(torch.cat(hidden_states, 1)), merge_aux(*reports)

    def start(self, memory: Memory) -> RecurrentState:
        """Return the recurrent state before the first picture."""
        return self.stack.start(memory, rows=len(memory.states), capacity=1)

    def step(
        self, previous_actions: Int[Tensor, " B"], memory: Memory, state: RecurrentState | None, *, align: bool = False
    ) -> Step:
        """Action values for the next picture after the previous actions; with `align`, also the attention weights."""
        state = self.start(memory) if state is None else self.stack.switch_memory(state, memory)
        if not align:
            hidden, state = self._advance(previous_actions, state)
            return Step(self.output(hidden), state, None)
        with record(self) as maps:
            hidden, state = self._advance(previous_actions, state)
        weights: Any = next((found for address, found in maps.items() if "cross" in address), None)
        return Step(self.output(hidden), state, None if weights is None else weights[:, 0, 0])

    def _advance(self, previous_actions: Tensor, state: RecurrentState) -> tuple[Tensor, Any]:
        hidden, _, after, _ = self.stack(self.embedding(previous_actions[:, None]), None, None, state)
        return hidden[:, 0], after


def select_rows(memory: Memory, rows: Int[Tensor, " B"]) -> Memory:
    """Select rows of a memory."""
    return Memory(memory.states.index_select(0, rows), memory.padding.index_select(0, rows), grid=memory.grid)
