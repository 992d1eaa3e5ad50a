"""Patches of pictures that are hidden at random: they are painted grey."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from saccade.layers.grid import Picture

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
