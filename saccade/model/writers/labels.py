"""Heads over what was read: Memory -> a class or a number for each text, or a class for each of its tokens.

R texts; in a padded batch they are its rows, in a packed one its texts, also those that only fill it up.
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
BACK = {"last": 1, "before-end": 2}  # how far from behind a state stands
KNOWN = {**ACTIVATIONS, "tanh": torch.tanh}


class StatesHead(nn.Module):
    """A writer without a stack of its own: its output matrix reads the states of the reader."""

    stack = None
    queries_reader = False  # whether queries of its own pass the layers of the reader

    @property
    def hidden_width(self) -> int:
        """Features of the layer before the output matrix; 0 where there is none."""
        return 0


class Head(StatesHead):
    """A layer in between where there is one, dropout, and a product: C numbers for each state.

    With a layer as wide as the states, that is what BERT and RoBERTa have; without one and without bias, GPT-2.
    """

    capabilities = Capabilities(packed_rows=True, static_shapes=True)

    def __init__(
        self, dim: int, *, size: int, hidden: int | None, activation: str = "tanh", dropout: float, bias: bool = True
    ) -> None:
        super().__init__()
        self.hidden = None if hidden is None else nn.Linear(dim, hidden)
        self.activation = KNOWN[activation]
        self.dropout = Dropout(dropout)
        self.output = nn.Linear(hidden or dim, size, bias=bias)
        for linear in (self.hidden, self.output):
            if linear is not None:
                nn.init.xavier_uniform_(linear.weight)
                if linear.bias is not None:
                    nn.init.zeros_(linear.bias)

    def numbers(self, states: Float[Tensor, "*n D"]) -> Float[Tensor, "*n C"]:
        if self.hidden is not None:
            states = self.activation(self.hidden(states))
        return self.output(self.dropout(states))


class LabelWriter(Head):
    """Numbers for each text, from one state that stands for all of it: scores of classes, or the one number asked."""

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
        return self.numbers(pooled(memory, self.pooling))


class TagWriter(Head):
    """Scores of classes for each token."""

    def forward(self, memory: Memory) -> Float[Tensor, "B S C"]:
        return self.numbers(memory.states)


def pooled(memory: Memory, how: Pooling) -> Float[Tensor, "R D"]:
    """The first, the last or the mean of the states of each text, or the one before END, which no language model reads.

    Of an empty text, zeros or any state.
    """
    states, (packing, mask) = memory.states, split_mask(memory.mask)
    if packing is not None:
        return pooled_row(states[0], packing, how)
    assert mask is not None, "a memory has a mask"
    if how == "first":
        return states[:, 0]
    count = mask.sum(1)
    if how in BACK:
        return states[torch.arange(len(states), device=states.device), (count - BACK[how]).clamp(min=0)]
    return (states * mask[..., None]).sum(1) / count.clamp(min=1)[:, None].to(states.dtype)


def pooled_row(states: Float[Tensor, "N D"], packing: Packing, how: Pooling) -> Float[Tensor, "R D"]:
    """The same for texts one behind the other."""
    begins, ends = packing.offsets[:-1].long(), packing.offsets[1:].long()
    if how == "mean":
        zeros = states.new_zeros(len(begins), states.shape[1])
        return zeros.index_add(0, packing.texts[0], states) / (ends - begins).clamp(min=1)[:, None].to(states.dtype)
    return states[inside(begins if how == "first" else torch.maximum(ends - BACK[how], begins), len(states))]


def inside(places: Int[Tensor, " R"], length: int) -> Int[Tensor, " R"]:
    """Empty texts stand behind the end of a row."""
    return places.clamp(0, length - 1)
