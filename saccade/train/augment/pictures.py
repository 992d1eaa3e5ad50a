"""Pictures changed at random while a model learns from them; every picture of a batch in its own way.

Numbers are those of pixels, from 0 to 255, and what comes from outside of a picture is grey.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from saccade.config.schema import PictureChanges

GREY = 127.5
TURN, SHEAR, MOVE = math.radians(30), 0.3, 0.45  # the most at full strength; moves in sides of the picture
BRIGHTNESS, CONTRAST, COLOUR, POSTERIZE, SOLARIZE, ROTATE, SHEAR_X, SHEAR_Y, MOVE_X, MOVE_Y = range(10)


@torch.no_grad()
def change_pictures(pictures: Tensor, settings: PictureChanges, generator: torch.Generator) -> Float[Tensor, "B 3 Y X"]:
    """Mirrored, moved, and through so many operations one after the other (Cubuk et al. 2020), as settings say."""
    x = pictures.float()
    if settings.flip:
        mirrored = drawn(len(x), generator) < settings.flip
        x = torch.where(mirrored[:, None, None, None], x.flip(-1), x)
    if settings.crop:
        x = moved(x, settings.crop, generator)
    for _ in range(settings.operations):
        which = torch.randint(10, (len(x),), generator=generator, device=x.device)
        amount = settings.strength * (2 * drawn(len(x), generator) - 1)
        x = turned(recoloured(x, which, amount), which, amount)
    return x


def drawn(count: int, generator: torch.Generator) -> Float[Tensor, " B"]:
    """Numbers from 0 to 1, on the generator's device."""
    return torch.rand(count, generator=generator, device=generator.device)


def moved(x: Float[Tensor, "B 3 Y X"], most: int, generator: torch.Generator) -> Float[Tensor, "B 3 Y X"]:
    """Each picture cut out of itself with a grey border, at a place of its own."""
    size = len(x), x.shape[-2], x.shape[-1]
    wide = F.pad(x, (most, most, most, most), value=GREY)
    down, right = (torch.randint(2 * most + 1, (len(x), 1), generator=generator, device=x.device) for _ in range(2))
    rows, columns = (
        begin + torch.arange(length, device=x.device) for begin, length in ((down, size[1]), (right, size[2]))
    )
    numbers = torch.arange(len(x), device=x.device)[:, None, None]
    return wide[numbers, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def recoloured(
    x: Float[Tensor, "B 3 Y X"], which: Int[Tensor, " B"], amount: Float[Tensor, " B"]
) -> Float[Tensor, "B 3 Y X"]:
    """Those pictures whose operation is one of colours."""
    amount, which = amount[:, None, None, None], which[:, None, None, None]
    factor = 1 + 0.9 * amount
    grey = x.mean(1, keepdim=True)
    middle = grey.mean((2, 3), keepdim=True)
    step = 2 ** (4 * amount.abs()).round()
    ways = {
        BRIGHTNESS: x * factor,
        CONTRAST: middle + (x - middle) * factor,
        COLOUR: grey + (x - grey) * factor,
        POSTERIZE: (x / step).floor() * step,
        SOLARIZE: torch.where(x >= 256 * (1 - amount.abs()), 255 - x, x),
    }
    for number, changed in ways.items():
        x = torch.where(which == number, changed, x)
    return x.clamp(0, 255)


def turned(
    x: Float[Tensor, "B 3 Y X"], which: Int[Tensor, " B"], amount: Float[Tensor, " B"]
) -> Float[Tensor, "B 3 Y X"]:
    """Those pictures whose operation is one of places, by one linear map of them each."""

    def of(number: int, most: float) -> Tensor:
        return torch.where(which == number, amount * most, torch.zeros_like(amount))

    angle = of(ROTATE, TURN)
    cosine, sine = angle.cos(), angle.sin()
    across = torch.stack((cosine, of(SHEAR_X, SHEAR) - sine, of(MOVE_X, 2 * MOVE)), -1)
    along = torch.stack((of(SHEAR_Y, SHEAR) + sine, cosine, of(MOVE_Y, 2 * MOVE)), -1)
    places = F.affine_grid(torch.stack((across, along), 1), list(x.shape), align_corners=False)
    return F.grid_sample(x - GREY, places, align_corners=False) + GREY
