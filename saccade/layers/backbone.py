"""Cells from the map of a network that is not ours."""

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from saccade.layers.grid import Colours, Picture


class Backbone(nn.Module):
    """One map of a network, place by place and row by row from the left, through a matrix.

    `network` gives a list of maps, of which there is one, with `channels`, which come first in it or `last`. One that
    is not `tuned` stays as it is, its means of batches included.
    """

    def __init__(
        self, network: nn.Module, dim: int, *, channels: int, colours: Colours, tuned: bool, last: bool = False
    ) -> None:
        super().__init__()
        self.network, self.colours, self.tuned, self.last = network, colours, tuned, last
        self.network.requires_grad_(tuned)
        self.project = nn.Linear(channels, dim)
        nn.init.xavier_uniform_(self.project.weight)
        nn.init.zeros_(self.project.bias)

    def train(self, mode: bool = True) -> "Backbone":
        super().train(mode)
        self.network.train(mode and self.tuned)
        return self

    def forward(self, pictures: Picture) -> Float[Tensor, "B S D"]:
        made: Any = self.network(self.colours.normalised(pictures, self.project.weight.dtype))
        return self.project(made[-1].flatten(1, 2) if self.last else made[-1].flatten(2).mT)
