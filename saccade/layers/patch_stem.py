"""Patches that small convolutions make of a picture, in the place of one matrix."""

from collections.abc import Sequence

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from saccade.layers.grid import Colours, Picture, colour_by_colour, from_minus_one, groups_of


class Level(nn.Module):
    """A convolution, a norm of groups, and what is above 0.

    `times` is how many places it has for each patch in the end.
    """

    def __init__(self, before: int, after: int, *, stride: int, times: int) -> None:
        super().__init__()
        self.times = times
        self.convolve = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.norm = nn.GroupNorm(groups_of(after), after)

    def forward(self, x: Float[Tensor, "B C Y X"]) -> Float[Tensor, "B c y x"]:
        return F.relu(self.norm(self.convolve(x)))


class ConvolvedPatches(nn.Module):
    """Convolutions and a matrix, row by row from the left (Xiao et al. 2021).

    The last of them halve the sides, so many that a vector stands for a patch; those before keep them.
    """

    def __init__(self, dim: int, *, patch: int, channels: Sequence[int], colours: Colours | None = None) -> None:
        """Without `colours`, numbers go from -1 to 1."""
        super().__init__()
        self.colours = colours
        halving, levels = patch.bit_length() - 1, []
        for number, (before, after) in enumerate(zip([3, *channels], channels, strict=False), start=1):
            left = len(channels) - number
            levels.append(Level(before, after, stride=2 if left < halving else 1, times=4 ** min(left, halving)))
        self.levels = nn.Sequential(*levels)
        self.project = nn.Linear(channels[-1], dim)
        nn.init.xavier_uniform_(self.project.weight)
        nn.init.zeros_(self.project.bias)

    def forward(self, pictures: Picture) -> Float[Tensor, "B S D"]:
        normalised = from_minus_one if self.colours is None else self.colours.normalised
        x = self.levels(normalised(colour_by_colour(pictures), self.project.weight.dtype))
        return self.project(x.flatten(2).mT)
