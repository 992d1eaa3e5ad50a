"""The reader of a picture and of a question about it."""

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from saccade.layers.grid import Picture
from saccade.layers.memory import Memory


class JoinedReader(nn.Module):
    """Two readers, and what makes one Memory of both; without `look` the picture is not read at all.

    In training the share `blind` of the questions sees nothing of its picture.
    """

    def __init__(self, look: Any, ask: Any, join: Any, *, grid: tuple[int, int], blind: float = 0.0) -> None:
        super().__init__()
        self.look, self.ask, self.join, self.grid, self.dim = look, ask, join, grid, join.dim
        self.blind = blind

    def forward(
        self, pictures: Picture, cells: Bool[Tensor, "B S"], ids: Int[Tensor, "B T"], words: Bool[Tensor, "B T"]
    ) -> Memory:
        memory: Memory = self.join(None if self.look is None else self.seen(pictures, cells), self.ask(ids, words))
        return memory

    def seen(self, pictures: Picture, cells: Bool[Tensor, "B S"]) -> Memory:
        look: Memory = self.look(pictures, cells)
        if not (self.training and self.blind):
            return look
        blind = torch.rand(len(cells), 1, device=cells.device) < self.blind
        return replace(look, states=look.states.masked_fill(blind[..., None], 0.0), mask=cells & ~blind)
