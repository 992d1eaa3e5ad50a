"""Pictures as cells: square patches, or what convolutions make of them."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from saccade.layers.grid_attention import GridAttention

Picture = UInt8[Tensor, "B 3 Y X"] | Float[Tensor, "B 3 Y X"]  # numbers from 0 to 255
GROUPS = 8  # of channels that are normalised together, at most


class Colours(NamedTuple):
    """What is taken off each colour, from 0 to 1, and by what the rest is divided."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def normalised(self, pictures: Picture, kind: torch.dtype) -> Float[Tensor, "B 3 Y X"]:
        # Numbers of Python, colour by colour: they are as exact as the type of the pictures is.
        x = pictures.to(kind) / 255
        return torch.stack([(x[:, i] - mean) / std for i, (mean, std) in enumerate(zip(*self, strict=True))], 1)


def colour_by_colour(pictures: Picture) -> Picture:
    """How they lie in memory: torch's gradient of a 1 x 1 convolution in steps of 2 writes where it must not, on a CPU,
    if the colours of each pixel lie together."""
    return pictures.contiguous()


def from_minus_one(pictures: Picture, kind: torch.dtype) -> Float[Tensor, "B 3 Y X"]:
    """Numbers from -1 to 1."""
    return pictures.to(kind) / 127.5 - 1


class Patches(nn.Module):
    """Square patches, row by row from the left, each through one matrix (Dosovitskiy et al. 2021, equation 1)."""

    def __init__(self, dim: int, *, patch: int, colours: Colours | None = None) -> None:
        """Without `colours`, numbers go from -1 to 1."""
        super().__init__()
        self.patch, self.colours = patch, colours
        self.project = nn.Linear(3 * patch * patch, dim)
        nn.init.xavier_uniform_(self.project.weight)
        nn.init.zeros_(self.project.bias)

    def forward(self, pictures: Picture) -> Float[Tensor, "B S D"]:
        normalised = from_minus_one if self.colours is None else self.colours.normalised
        x = normalised(pictures, self.project.weight.dtype)
        return self.project(F.unfold(x, self.patch, stride=self.patch).transpose(1, 2))


class Block(nn.Module):
    """Two convolutions and a connection that leads past them (He et al. 2016), with norms of groups (Wu and He 2018).

    These know nothing of other pictures of a batch, so that a picture is always read in the same way. `times` is how
    many places it has for each cell in the end.
    """

    def __init__(self, before: int, after: int, *, stride: int | tuple[int, int], times: int = 1) -> None:
        super().__init__()
        self.times = times
        self.first = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.second = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.GroupNorm(groups_of(after), after) for _ in range(2))
        changes = stride != 1 or before != after
        self.past = nn.Conv2d(before, after, 1, stride=stride, bias=False) if changes else nn.Identity()

    def forward(self, x: Float[Tensor, "B C Y X"]) -> Float[Tensor, "B c y x"]:
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(y)) + self.past(x))


class Convolutions(nn.Module):
    """Levels of blocks, each of which halves the sides of what it is given: cells, row by row from the left.

    The last `flat` of them halve the height alone. After each level that `attention` numbers, from 1, all places look
    at all others.
    """

    def __init__(self, channels: Sequence[int], *, depth: int, flat: int = 0, attention: Sequence[int] = ()) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        for level, (before, after) in enumerate(zip([3, *channels], channels, strict=False), start=1):
            above = len(channels) - level
            times = 2 ** (2 * above - min(flat, above))
            stride = 2 if above >= flat else (2, 1)
            blocks.append(Block(before, after, stride=stride, times=times))
            blocks += [Block(after, after, stride=1, times=times) for _ in range(depth - 1)]
            blocks += [GridAttention(after, times=times)] if level in attention else []
        self.blocks = nn.Sequential(*blocks)

    def forward(self, pictures: Picture) -> Float[Tensor, "B S D"]:
        x = from_minus_one(colour_by_colour(pictures), self.blocks[0].first.weight.dtype)  # type: ignore[union-attr, arg-type]
        return self.blocks(x).flatten(2).transpose(1, 2)


def groups_of(channels: int) -> int:
    return next(groups for groups in range(min(GROUPS, channels), 0, -1) if channels % groups == 0)
