"""The writer of a recurrent attention Q-network: what each action is worth, picture by picture."""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.config.protocols import Capabilities
from saccade.data.tokenization.labels import NONE
from saccade.layers.auxiliary import Aux, merge_aux
from saccade.layers.blocks.recurrence import RecurrentState
from saccade.layers.blocks.recurrent_writer import RecurrentWriter
from saccade.layers.memory import Memory
from saccade.layers.record import record
from saccade.model.writers.tokens import Step


class ValuesWriter(nn.Module):
    """Q(. | pictures so far), as in DARQN (Sorokin et al. 2015): a product with what the stack tells at each step.

    What was done before stands where other writers have the last word. Memory is another one at each step: c_t is a
    look of s_{t-1} at the cells of the picture of that step.
    """

    capabilities = Capabilities(aux=True)

    def __init__(self, stack: RecurrentWriter, *, size: int) -> None:
        super().__init__()
        self.stack, self.size = stack, size
        self.embedding = nn.Embedding(size + 1, stack.dim)  # its first row: nothing was done yet
        nn.init.normal_(self.embedding.weight, std=stack.dim**-0.5)
        self.output = nn.Linear(stack.dim, size)
        nn.init.zeros_(self.output.bias)

    @property
    def dim(self) -> int:
        return int(self.stack.dim)

    def forward(self, actions: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"], memory: Memory) -> Float[Tensor, "B T A"]:
        """Values at each step of whole episodes, with what was done there.

        Memory has a row for each picture, one episode after the other; `mask` says which steps there were.
        """
        return self.write(actions, mask, memory)[0]

    def write(
        self, actions: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"], memory: Memory
    ) -> tuple[Float[Tensor, "B T A"], Aux]:
        """The same, and what the layers of the stack report in all steps."""
        before = torch.cat((torch.full_like(actions[:, :1], NONE), actions[:, :-1]), 1)
        rows = (mask.flatten().cumsum(0) - 1).view_as(actions)  # behind its end, an episode sees its last picture
        state, found, reports = None, [], []
        for t in range(actions.shape[1]):
            now = picked(memory, rows[:, t])
            state = self.start(now) if state is None else self.stack.turned(state, now)
            hidden, _, state, aux = self.stack(self.embedding(before[:, t : t + 1]), None, None, state)
            found.append(hidden)
            reports.append(aux)
        return self.output(torch.cat(found, 1)), merge_aux(*reports)

    def start(self, memory: Memory) -> RecurrentState:
        """The state in front of the first picture of each row."""
        return self.stack.start(memory, rows=len(memory.states), capacity=1)

    def step(
        self, before: Int[Tensor, " B"], memory: Memory, state: RecurrentState | None, *, align: bool = False
    ) -> Step:
        """Values for the next picture after `before` was done; with `align`, also what it looked at there."""
        state = self.start(memory) if state is None else self.stack.turned(state, memory)
        if not align:
            hidden, state = self._advance(before, state)
            return Step(self.output(hidden), state, None)
        with record(self) as maps:
            hidden, state = self._advance(before, state)
        weights: Any = next((found for address, found in maps.items() if "cross" in address), None)
        return Step(self.output(hidden), state, None if weights is None else weights[:, 0, 0])

    def _advance(self, before: Tensor, state: RecurrentState) -> tuple[Tensor, Any]:
        hidden, _, after, _ = self.stack(self.embedding(before[:, None]), None, None, state)
        return hidden[:, 0], after


def picked(memory: Memory, rows: Int[Tensor, " B"]) -> Memory:
    """Some rows of what was read."""
    return Memory(memory.states.index_select(0, rows), memory.padding.index_select(0, rows), grid=memory.grid)
