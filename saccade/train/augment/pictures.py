"""Augmentation of pictures: flips, crops, RandAugment and random erasing, sampled for each picture of a batch.

Pixel values are from 0 to 255; positions outside of a picture are grey.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from saccade.config.schema import ImageAugmentation

GREY = 127.5
# At magnitude 1: angle in radians, shear factor, and translation as a fraction of the side of a picture
MAX_ROTATION, MAX_SHEAR, MAX_TRANSLATION = math.radians(30), 0.3, 0.45
MIN_ERASED, MAX_ERASED, MAX_ASPECT = 0.02, 1 / 3, 10 / 3  # shares of the area of a picture; height to width or reverse
BRIGHTNESS, CONTRAST, COLOR, POSTERIZE, SOLARIZE, ROTATE, SHEAR_X, SHEAR_Y, TRANSLATE_X, TRANSLATE_Y = range(10)


@torch.no_grad()
def augment_pictures(
    pictures: Tensor, settings: ImageAugmentation, generator: torch.Generator
) -> Float[Tensor, "B 3 Y X"]:
    """Flip and crop pictures at random, apply `num_ops` random operations (RandAugment, Cubuk et al. 2020), then erase
    rectangles (Zhong et al. 2020)."""
    x = pictures.float()
    if settings.flip:
        flipped = sample_uniform(len(x), generator) < settings.flip
        x = torch.where(flipped[:, None, None, None], x.flip(-1), x)
    if settings.crop:
        x = crop_randomly(x, settings.crop, generator)
    for _ in range(settings.num_ops):
        operation = torch.randint(10, (len(x),), generator=generator, device=x.device)
        amount = settings.magnitude * (2 * sample_uniform(len(x), generator) - 1)
        x = apply_geometric_operation(apply_color_operation(x, operation, amount), operation, amount)
    return erase_rectangles(x, settings.erase, generator) if settings.erase else x


def sample_uniform(count: int, generator: torch.Generator) -> Float[Tensor, " B"]:
    """Sample numbers from 0 to 1 on the generator's device."""
    return torch.rand(count, generator=generator, device=generator.device)


def crop_randomly(x: Float[Tensor, "B 3 Y X"], padding: int, generator: torch.Generator) -> Float[Tensor, "B 3 Y X"]:
    """Pad pictures with grey and crop each to its original size at a random offset."""
    size = len(x), x.shape[-2], x.shape[-1]
    padded = F.pad(x, (padding, padding, padding, padding), value=GREY)
    down, right = (torch.randint(2 * padding + 1, (len(x), 1), generator=generator, device=x.device) for _ in range(2))
    rows, columns = (
        begin + torch.arange(length, device=x.device) for begin, length in ((down, size[1]), (right, size[2]))
    )
    indices = torch.arange(len(x), device=x.device)[:, None, None]
    return padded[indices, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def erase_rectangles(
    x: Float[Tensor, "B 3 Y X"], probability: float, generator: torch.Generator
) -> Float[Tensor, "B 3 Y X"]:
    """Replace a random rectangle of each chosen picture by uniform noise; what exceeds the sides is cut off."""
    chosen, area, aspect, down, right = (sample_uniform(len(x), generator) for _ in range(5))
    area = MIN_ERASED + (MAX_ERASED - MIN_ERASED) * area
    aspect = MAX_ASPECT ** (2 * aspect - 1)
    high, wide = (area * aspect).sqrt().clamp(max=1), (area / aspect).sqrt().clamp(max=1)
    rows, columns = (
        find_interval(count, begin * (1 - length), length)
        for count, begin, length in ((x.shape[2], down, high), (x.shape[3], right, wide))
    )
    erased = rows[:, None, :, None] & columns[:, None, None, :] & (chosen < probability)[:, None, None, None]
    noise = 255 * torch.rand(x.shape, generator=generator, device=x.device)
    return torch.where(erased, noise, x)


def find_interval(count: int, begin: Float[Tensor, " B"], length: Float[Tensor, " B"]) -> Bool[Tensor, "B N"]:
    """Which of `count` equally wide pixels have their middle in intervals of the range 0 to 1."""
    middle = (torch.arange(count, device=begin.device) + 0.5) / count
    return (middle >= begin[:, None]) & (middle < (begin + length)[:, None])


def apply_color_operation(
    x: Float[Tensor, "B 3 Y X"], operation: Int[Tensor, " B"], amount: Float[Tensor, " B"]
) -> Float[Tensor, "B 3 Y X"]:
    """Apply color operations to the pictures that have one; `amount` is from -1 to 1."""
    amount, operation = amount[:, None, None, None], operation[:, None, None, None]
    factor = 1 + 0.9 * amount
    grey = x.mean(1, keepdim=True)
    mean = grey.mean((2, 3), keepdim=True)
    step = 2 ** (4 * amount.abs()).round()
    results = {
        BRIGHTNESS: x * factor,
        CONTRAST: mean + (x - mean) * factor,
        COLOR: grey + (x - grey) * factor,
        POSTERIZE: (x / step).floor() * step,
        SOLARIZE: torch.where(x >= 256 * (1 - amount.abs()), 255 - x, x),
    }
    for number, result in results.items():
        x = torch.where(operation == number, result, x)
    return x.clamp(0, 255)


def apply_geometric_operation(
    x: Float[Tensor, "B 3 Y X"], operation: Int[Tensor, " B"], amount: Float[Tensor, " B"]
) -> Float[Tensor, "B 3 Y X"]:
    """Apply geometric operations to the pictures that have one, as one affine map for each picture."""

    def scale(number: int, maximum: float) -> Tensor:
        return torch.where(operation == number, amount * maximum, torch.zeros_like(amount))

    angle = scale(ROTATE, MAX_ROTATION)
    cosine, sine = angle.cos(), angle.sin()
    x_row = torch.stack((cosine, scale(SHEAR_X, MAX_SHEAR) - sine, scale(TRANSLATE_X, 2 * MAX_TRANSLATION)), -1)
    y_row = torch.stack((scale(SHEAR_Y, MAX_SHEAR) + sine, cosine, scale(TRANSLATE_Y, 2 * MAX_TRANSLATION)), -1)
    grid = F.affine_grid(torch.stack((x_row, y_row), 1), list(x.shape), align_corners=False)
    return F.grid_sample(x - GREY, grid, align_corners=False) + GREY
