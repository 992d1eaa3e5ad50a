"""Mixup and CutMix: pictures mixed from two, with the labels of both in the same proportion."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from saccade.data.batching.batch import Batch, Pictures


def mix_pictures(
    batch: Batch, generator: torch.Generator, *, mixup: float, cutmix: float
) -> tuple[Batch, Int[Tensor, " B"], Float[Tensor, ""]]:
    """Mix each picture with another one of the batch; return the batch, the indices of the others, and the own share.

    Mixup blends whole pictures (Zhang et al. 2018), CutMix pastes a rectangle (Yun et al. 2019); with both, one of them
    is sampled for each batch.
    """
    pictures = batch["source"]
    x = pictures.values.float()
    others = torch.rand(len(x), generator=generator, device=x.device).argsort()
    candidates = [apply_mixup(x, x[others], mixup, generator)] if mixup else []
    candidates += [apply_cutmix(x, x[others], cutmix, generator)] if cutmix else []
    (mixed, share), (other_mixed, other_share) = candidates[0], candidates[-1]
    if len(candidates) > 1:  # computing both avoids a synchronization with the device
        first = torch.rand((), generator=generator, device=x.device) < 0.5
        mixed, share = torch.where(first, mixed, other_mixed), torch.where(first, share, other_share)
    return Batch({**batch.fields, "source": Pictures(mixed, pictures.mask)}, batch.counts), others, share


def apply_mixup(
    x: Float[Tensor, "B 3 Y X"], others: Float[Tensor, "B 3 Y X"], alpha: float, generator: torch.Generator
) -> tuple[Float[Tensor, "B 3 Y X"], Float[Tensor, ""]]:
    """Blend each picture with another; return the result and the share of the first."""
    share = sample_beta(alpha, generator)
    return share * x + (1 - share) * others, share


def apply_cutmix(
    x: Float[Tensor, "B 3 Y X"], others: Float[Tensor, "B 3 Y X"], alpha: float, generator: torch.Generator
) -> tuple[Float[Tensor, "B 3 Y X"], Float[Tensor, ""]]:
    """Paste a rectangle of another picture into each; return the result and the share of the first that is left."""
    inside = sample_rectangle(x.shape[-2], x.shape[-1], 1 - sample_beta(alpha, generator), generator)
    return torch.where(inside, others, x), 1 - inside.float().mean()


def sample_beta(alpha: float, generator: torch.Generator) -> Float[Tensor, ""]:
    """Sample from Beta(alpha, alpha) as x / (x + y) of two samples from Gamma(alpha, 1)."""
    alphas = torch.full((2,), alpha, device=generator.device)
    first, second = torch._standard_gamma(alphas, generator=generator)
    return first / (first + second).clamp(min=1e-12)


def sample_rectangle(height: int, width: int, share: Tensor, generator: torch.Generator) -> Tensor:
    """Sample a mask (height, width) of a rectangle with this share of the area and a random center, clipped to it."""
    half_side = share.sqrt() / 2
    center = torch.rand(2, generator=generator, device=generator.device)
    rows, columns = (
        ((torch.arange(length, device=generator.device) + 0.5) / length - center[axis]).abs() <= half_side
        for axis, length in enumerate((height, width))
    )
    return rows[:, None] & columns[None, :]
