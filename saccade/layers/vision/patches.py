"""Pictures as cells: square patches, or what convolutions make of them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, UInt8
from torch import Tensor, nn

from saccade.layers.vision.grid_attention import GridAttention

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


# ---- Patches that small convolutions make of a picture, in the place of one matrix.


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


# ---- Patches of pictures that are hidden at random: they are painted grey.


GREY = 127.5  # a 0 for readers whose numbers go from -1 to 1


def hidden_patches(rows: int, count: int, *, share: float, generator: torch.Generator) -> Bool[Tensor, "B N"]:
    """Which patches of each picture are hidden: this share of them, but at least one and not all."""
    many = min(max(1, round(share * count)), max(1, count - 1))
    order = torch.rand(rows, count, generator=generator, device=generator.device).argsort(1)
    return order.argsort(1) < many


def painted(pictures: Picture, hidden: Bool[Tensor, "B N"], *, patch: int) -> Float[Tensor, "B 3 Y X"]:
    """Pictures with these patches in grey."""
    high, wide = (side // patch for side in pictures.shape[-2:])
    grey = hidden.view(-1, 1, high, wide).repeat_interleave(patch, 2).repeat_interleave(patch, 3)
    return torch.where(grey, GREY, pictures.float())


# ---- Cells from the map of a network that is not ours.


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
