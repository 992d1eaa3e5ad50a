"""Heads over the memory: a class or a number for each sequence, or a class for each token.

Shapes: R is the number of sequences; in a packed row this includes the empty ones that pad it to a fixed shape.
"""

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from saccade.config.protocols import Capabilities
from saccade.kernels.activations import ACTIVATIONS
from saccade.layers.dropout import Dropout
from saccade.layers.memory import Memory
from saccade.layers.packing import Packing, split_mask

Pooling = Literal["first", "mean", "last", "before-end"]
OFFSET_FROM_END = {"last": 1, "before-end": 2}  # position of the pooled state, counted from the end of a sequence
HEAD_ACTIVATIONS = {**ACTIVATIONS, "tanh": torch.tanh}


class StatesHead(nn.Module):
    """Base class of writers without a stack: a head on the states of the reader."""

    stack = None
    queries_reader = False  # whether it sends queries of its own through the layers of the reader (XLNet)

    @property
    def hidden_width(self) -> int:
        """Width of the layer before the output layer; 0 where there is none."""
        return 0


class Head(StatesHead):
    """An optional hidden layer, dropout and a linear layer: C scores for each state.

    With a hidden layer of the width of the states this is the head of BERT and RoBERTa; without one and without bias,
    that of GPT-2.
    """

    capabilities = Capabilities(packed_rows=True, static_shapes=True, tensor_parallel=True)

    def __init__(
        self, dim: int, *, size: int, hidden: int | None, activation: str = "tanh", dropout: float, bias: bool = True
    ) -> None:
        super().__init__()
        self.hidden = None if hidden is None else nn.Linear(dim, hidden)
        self.activation = HEAD_ACTIVATIONS[activation]
        self.dropout = Dropout(dropout)
        self.output = nn.Linear(hidden or dim, size, bias=bias)
        for linear in (self.hidden, self.output):
            if linear is not None:
                nn.init.xavier_uniform_(linear.weight)
                if linear.bias is not None:
                    nn.init.zeros_(linear.bias)

    def compute_scores(self, states: Float[Tensor, "*n D"]) -> Float[Tensor, "*n C"]:
        if self.hidden is not None:
            states = self.activation(self.hidden(states))
        return self.output(self.dropout(states))


class LabelWriter(Head):
    """Scores of classes, or one number (regression), for each sequence, from a pooled state."""

    def __init__(
        self,
        dim: int,
        *,
        size: int,
        pooling: Pooling,
        hidden: int | None,
        activation: str = "tanh",
        dropout: float,
        bias: bool = True,
    ) -> None:
        super().__init__(dim, size=size, hidden=hidden, activation=activation, dropout=dropout, bias=bias)
        self.pooling = pooling

    def forward(self, memory: Memory) -> Float[Tensor, "R C"]:
        return self.compute_scores(pool_states(memory, self.pooling))


class TagWriter(Head):
    """Scores of classes for each token (sequence labelling)."""

    def forward(self, memory: Memory) -> Float[Tensor, "B S C"]:
        return self.compute_scores(memory.states)


def pool_states(memory: Memory, pooling: Pooling) -> Float[Tensor, "R D"]:
    """Pool the states of each sequence: the first, the last, their mean, or the one before END.

    "before-end" suits language models, which never read END. An empty sequence gets zeros or an arbitrary state.
    """
    states, (packing, mask) = memory.states, split_mask(memory.mask)
    if packing is not None:
        return pool_packed_states(states[0], packing, pooling)
    assert mask is not None, "a memory has a mask"
    if pooling == "first":
        return states[:, 0]
    count = mask.sum(1)
    if pooling in OFFSET_FROM_END:
        return states[torch.arange(len(states), device=states.device), (count - OFFSET_FROM_END[pooling]).clamp(min=0)]
    return (states * mask[..., None]).sum(1) / count.clamp(min=1)[:, None].to(states.dtype)


def pool_packed_states(states: Float[Tensor, "N D"], packing: Packing, pooling: Pooling) -> Float[Tensor, "R D"]:
    """As `pool_states`, for sequences packed into one row."""
    begins, ends = packing.offsets[:-1].long(), packing.offsets[1:].long()
    if pooling == "mean":
        zeros = states.new_zeros(len(begins), states.shape[1])
        return zeros.index_add(0, packing.sequence_ids[0], states) / (ends - begins).clamp(min=1)[:, None].to(
            states.dtype
        )
    return states[
        clamp_to_row(
            begins if pooling == "first" else torch.maximum(ends - OFFSET_FROM_END[pooling], begins), len(states)
        )
    ]


def clamp_to_row(places: Int[Tensor, " R"], length: int) -> Int[Tensor, " R"]:
    """Clamp indices to the row: empty sequences start behind its end."""
    return places.clamp(0, length - 1)
