"""Writers: Memory -> Y, all positions at once in training, step by step in decoding."""

from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.config.protocols import Capabilities, PositionedState, Stack, State, get_capabilities
from saccade.errors import SaccadeError
from saccade.kernels.cpu.prepared import CpuLayout
from saccade.kernels.weights import Unsupported, WriterWeights, describe_linear
from saccade.layers.attention.cache import AttentionState
from saccade.layers.auxiliary import Aux
from saccade.layers.memory import Memory
from saccade.layers.packing import Packing
from saccade.layers.record import record
from saccade.model.readers.tokens import Embedding, places


class Step(NamedTuple):
    logits: Float[Tensor, "B V"]  # of the token after the last one given; the caller's to change
    state: State
    weights: Float[Tensor, "B S"] | None  # what the last position looked at in memory, where that was asked


def shift_right(
    ids: Int[Tensor, "B T"], start: int, mask: Bool[Tensor, "B T"] | Packing | None = None
) -> Int[Tensor, "B T"]:
    """What the writer has seen before each target token: y_0 = [START], y_1, y_2 ..., in each text of a packed row."""
    shifted = F.pad(ids[:, :-1], (1, 0), value=start)
    positions = places(mask)
    return shifted if positions is None else shifted.masked_fill(positions == 0, start)


class TokenWriter(nn.Module):
    """Text: embedding of what was written so far, a causal stack that attends to memory, a head over the vocabulary."""

    cpu_layout = CpuLayout(("output",), exact=True, stepwise=True)

    def __init__(self, embedding: Embedding, stack: Stack, *, output: nn.Module, output_scale: float = 1.0) -> None:
        super().__init__()
        self.embedding = embedding
        self.stack: Any = stack  # with further methods where its capabilities say so
        self.output, self.output_scale = output, output_scale
        self._described: tuple[tuple[object, ...], WriterWeights] | None = None  # see `describe_step`

    @property
    def dim(self) -> int:
        return int(self.stack.dim)

    @property
    def capabilities(self) -> Capabilities:
        """Those of its stack; a subclass with a head of its own has none that losses know."""
        linear = type(self).head is TokenWriter.head
        return replace(get_capabilities(self.stack, "stack"), padded_targets=True, linear_head=linear, aux=True)

    def describe_step(self) -> WriterWeights:
        """Its weights for the kernels of a decoding step, the same object until they are laid out anew.

        Raises `Unsupported` where the kernels cannot express it.
        """
        if self.output_scale != 1.0:
            raise Unsupported("its states are scaled before the output")
        stack = self.stack.describe_step()
        parts = stack, self.embedding.tokens, self.output
        if self._described is None or any(
            one is not other for one, other in zip(parts, self._described[0], strict=True)
        ):
            self._described = parts, WriterWeights(self.embedding.describe(), stack, describe_linear(self.output))
        return self._described[1]

    def forward(
        self, ids: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"] | Packing | None, memory: Memory | None
    ) -> Float[Tensor, "B T D"]:
        """The state at each position, given the tokens up to it; `head` makes logits of it."""
        return self.write(ids, mask, memory)[0]

    def write(
        self, ids: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"] | Packing | None, memory: Memory | None
    ) -> tuple[Float[Tensor, "B T D"], Aux]:
        """Hidden states at each position given the tokens up to it, and the `aux` of the stack."""
        hidden, _, _, aux = self.stack(self.embedding(ids, places(mask)), mask, memory)
        return hidden, aux

    def head(self, hidden: Float[Tensor, "... D"]) -> Float[Tensor, "... V"]:
        return self.output(hidden if self.output_scale == 1.0 else hidden * self.output_scale)

    def start(self, memory: Memory | None, *, capacity: int, rows: int = 0) -> Any:
        """The state before the first token, with room for `capacity` tokens; `rows` of them where nothing was read."""
        rows = rows if memory is None else memory.states.shape[0]
        return self.stack.start(memory, rows=rows, capacity=capacity)

    def step(self, inputs: Int[Tensor, "B n"], state: PositionedState, *, align: bool = False) -> Step:
        """Reads the next n tokens of each row; with `align`, also says what the last of them looked at."""
        if not align:
            hidden, state = self._advance(inputs, state)
            return Step(self.head(hidden[:, -1]), state, None)
        with record(self) as maps:
            hidden, state = self._advance(inputs, state)
        cross = [weights for address, weights in maps.items() if "cross" in address]
        if not cross:
            raise SaccadeError(
                "this model does not attend to what it reads, so nothing can be aligned; "
                "ask without align, coverage or replace_unknown"
            )
        return Step(self.head(hidden[:, -1]), state, cross[-1].mean(1)[:, -1])

    def _advance(self, inputs: Tensor, state: PositionedState) -> tuple[Tensor, Any]:
        hidden, _, state, _ = self.stack(self.embedding(inputs, self._places(inputs, state)), None, None, state)
        return hidden, state

    def _places(self, inputs: Int[Tensor, "B n"], state: PositionedState) -> Int[Tensor, "b n"]:
        """Where in their texts the next tokens stand."""
        if isinstance(state, AttentionState):
            return state.positions(inputs.shape[1])
        at: Tensor = state.lengths[:, None] + torch.arange(inputs.shape[1], device=inputs.device)
        return at
