"""The autoregressive writer: memory -> tokens, all positions at once in training, one step at a time in decoding."""

from dataclasses import replace
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from saccade.config.protocols import (
    Capabilities,
    PositionedState,
    Stack,
    State,
    StepwiseStack,
    TensorPlan,
    get_capabilities,
)
from saccade.errors import SaccadeError
from saccade.kernels.cpu.prepared import CpuLayout
from saccade.kernels.weights import Unsupported, WriterWeights, describe_linear
from saccade.layers.auxiliary import Aux
from saccade.layers.blocks.fused_step import DescribedStack
from saccade.layers.memory import Memory
from saccade.layers.packing import Packing
from saccade.layers.record import record
from saccade.model.readers.tokens import Embedding, get_packed_positions


class Step(NamedTuple):
    logits: Float[Tensor, "B V"]  # of the next token; the caller may modify them in place
    state: State
    weights: Float[Tensor, "B S"] | None  # cross-attention weights of the last position, if requested


def shift_right(
    ids: Int[Tensor, "B T"], start: int, mask: Bool[Tensor, "B T"] | Packing | None = None
) -> Int[Tensor, "B T"]:
    """Shift targets right for teacher forcing: START, y_1, y_2 ..., in each sequence of a packed row."""
    shifted = F.pad(ids[:, :-1], (1, 0), value=start)
    positions = get_packed_positions(mask)
    return shifted if positions is None else shifted.masked_fill(positions == 0, start)


class TokenWriter(nn.Module):
    """A decoder: embedding of the tokens so far, a causal stack that attends to memory, a head over the vocabulary."""

    cpu_layout = CpuLayout(("output",), exact=True, stepwise=True)
    tensor_plan = TensorPlan(outputs=("output",))

    def __init__(self, embedding: Embedding, stack: Stack, *, output: nn.Module, output_scale: float = 1.0) -> None:
        super().__init__()
        self.embedding = embedding
        self.stack = stack
        self.output, self.output_scale = output, output_scale
        self._described: tuple[tuple[object, ...], WriterWeights] | None = None  # see `describe_step`

    @property
    def dim(self) -> int:
        return int(self.stack.dim)

    @property
    def capabilities(self) -> Capabilities:
        """Those of its stack; a subclass that overrides `head` does not declare a linear head."""
        linear = type(self).head is TokenWriter.head
        return replace(get_capabilities(self.stack, "stack"), padded_targets=True, linear_head=linear, aux=True)

    def describe_step(self) -> WriterWeights:
        """Return the weights for the kernels of a decoding step, cached until one of its modules is replaced.

        Raises `Unsupported` for forms that the kernels do not cover.
        """
        if self.output_scale != 1.0:
            raise Unsupported("its states are scaled before the output")
        stack = cast(DescribedStack, self.stack).describe_step()
        parts = stack, self.embedding.tokens, self.output
        if self._described is None or any(
            one is not other for one, other in zip(parts, self._described[0], strict=True)
        ):
            self._described = parts, WriterWeights(self.embedding.describe(), stack, describe_linear(self.output))
        return self._described[1]

    def forward(
        self, ids: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"] | Packing | None, memory: Memory | None
    ) -> Float[Tensor, "B T D"]:
        """Hidden states at each position given the tokens up to it; `head` turns them into logits."""
        return self.write(ids, mask, memory)[0]

    def write(
        self, ids: Int[Tensor, "B T"], mask: Bool[Tensor, "B T"] | Packing | None, memory: Memory | None
    ) -> tuple[Float[Tensor, "B T D"], Aux]:
        """Hidden states at each position given the tokens up to it, and the `aux` of the stack."""
        hidden, _, _, aux = self.stack(self.embedding(ids, get_packed_positions(mask)), mask, memory)
        return hidden, aux

    def head(self, hidden: Float[Tensor, "... D"]) -> Float[Tensor, "... V"]:
        return self.output(hidden if self.output_scale == 1.0 else hidden * self.output_scale)

    def start(self, memory: Memory | None, *, capacity: int, rows: int = 0) -> Any:
        """Return the decoding state before the first token, for up to `capacity` tokens.

        `rows` is the batch size where there is no memory.
        """
        rows = rows if memory is None else memory.states.shape[0]
        return cast(StepwiseStack, self.stack).start(memory, rows=rows, capacity=capacity)

    def step(self, inputs: Int[Tensor, "B n"], state: PositionedState, *, align: bool = False) -> Step:
        """Process the next n tokens of each row; with `align`, also return the last one's cross-attention weights."""
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
        hidden, _, state, _ = self.stack(self.embedding(inputs, self._get_positions(inputs, state)), None, None, state)
        return hidden, state

    def _get_positions(self, inputs: Int[Tensor, "B n"], state: PositionedState) -> Int[Tensor, "b n"]:
        """Positions of the next tokens in their sequences."""
        if (get_positions := getattr(state, "get_positions", None)) is not None:
            return cast(Tensor, get_positions(inputs.shape[1]))
        at: Tensor = state.lengths[:, None] + torch.arange(inputs.shape[1], device=inputs.device)
        return at
