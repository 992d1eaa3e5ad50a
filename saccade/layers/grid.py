"""Pictures as cells: square patches, or what convolutions make of them."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor, nn

Picture = UInt8[Tensor, "B 3 Y X"] | Float[Tensor, "B 3 Y X"]  # numbers from 0 to 255
GROUPS = 8  # of channels that are normalised together, at most


def from_minus_one(pictures: Picture, kind: torch.dtype) -> Float[Tensor, "B 3 Y X"]:
    """Numbers from -1 to 1."""
    return pictures.to(kind) / 127.5 - 1


class Patches(nn.Module):
    """Square patches, row by row from the left, each through one matrix (Dosovitskiy et al. 2021, equation 1)."""

    def __init__(self, dim: int, *, patch: int) -> None:
        super().__init__()
        self.patch = patch
        self.project = nn.Linear(3 * patch * patch, dim)
        nn.init.xavier_uniform_(self.project.weight)
        nn.init.zeros_(self.project.bias)

    def forward(self, pictures: Picture) -> Float[Tensor, "B S D"]:
        x = from_minus_one(pictures, self.project.weight.dtype)
        return self.project(F.unfold(x, self.patch, stride=self.patch).transpose(1, 2))


class Block(nn.Module):
    """Two convolutions and a connection that leads past them (He et al. 2016), with norms of groups (Wu and He 2018).

    These know nothing of other pictures of a batch, so that a picture is always read in the same way. `times` is how
    many places it has for each cell in the end.
    """

    def __init__(self, before: int, after: int, *, stride: int, times: int = 1) -> None:
        super().__init__()
        self.times = times
        self.first = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.second = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.GroupNorm(groups_of(after), after) for _ in range(2))
        changes = stride > 1 or before != after
        self.past = nn.Conv2d(before, after, 1, stride=stride, bias=False) if changes else nn.Identity()

    def forward(self, x: Float[Tensor, "B C Y X"]) -> Float[Tensor, "B c y x"]:
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(y)) + self.past(x))


class Convolutions(nn.Module):
    """Levels of blocks, each of which halves the sides of what it is given: cells, row by row from the left."""

    def __init__(self, channels: Sequence[int], *, depth: int) -> None:
        super().__init__()
        blocks = []
        for level, (before, after) in enumerate(zip([3, *channels], channels, strict=False), start=1):
            times = 4 ** (len(channels) - level)
            blocks.append(Block(before, after, stride=2, times=times))
            blocks += [Block(after, after, stride=1, times=times) for _ in range(depth - 1)]
        self.blocks = nn.Sequential(*blocks)

    def forward(self, pictures: Picture) -> Float[Tensor, "B S D"]:
        x = from_minus_one(pictures, self.blocks[0].first.weight.dtype)  # type: ignore[union-attr, arg-type]
        return self.blocks(x).flatten(2).transpose(1, 2)


def groups_of(channels: int) -> int:
    return next(groups for groups in range(min(GROUPS, channels), 0, -1) if channels % groups == 0)
