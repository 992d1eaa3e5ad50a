"""The reader of sound: frames -> Memory."""

from typing import Any

from jaxtyping import Bool, Float
from torch import Tensor, nn

from saccade.layers import masks
from saccade.layers.dropout import Dropout
from saccade.layers.memory import Memory
from saccade.layers.stem import Stem


class FrameReader(nn.Module):
    """Sound: a stem that makes fewer and wider frames, positions, then a stack that may look in both directions."""

    def __init__(self, stem: Stem, stack: Any, *, positions: nn.Module | None = None, dropout: float = 0.0) -> None:
        super().__init__()
        self.stem, self.stack, self.positions, self.dim = stem, stack, positions, stack.dim
        self.dropout = Dropout(dropout)

    def forward(self, frames: Float[Tensor, "B T F"], mask: Bool[Tensor, "B T"]) -> Memory:
        x, mask = self.stem(frames, mask)
        if self.positions is not None:
            x = x + self.positions(masks.positions(x.shape[1], x.device)).to(x.dtype)
        states, mask, final, _ = self.stack(self.dropout(x), mask)
        return Memory(states, mask, final=final, grid=(1, states.shape[1]))
