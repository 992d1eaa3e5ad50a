"""Recordings that are never twice the same: hidden stretches and bands, noise, and another speed."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from saccade.config.sound import SoundChanges


def change_sound(
    frames: Float[Tensor, "B T F"], mask: Bool[Tensor, "B T"], changes: SoundChanges, generator: torch.Generator
) -> tuple[Float[Tensor, "B S F"], Bool[Tensor, "B S"]]:
    """Every recording of a batch changed in its own way; at another speed there are more frames or fewer."""
    if changes.speed:
        frames, mask = at_speeds(frames, mask, changes.speed, generator)
    if changes.noise:
        frames = frames + changes.noise * torch.randn(frames.shape, generator=generator, device=frames.device)
    hidden = torch.zeros_like(frames, dtype=torch.bool)
    for _ in range(changes.time_masks):
        hidden = hidden | stretches(mask.sum(1), frames.shape[1], changes.time_share, generator)[..., None]
    bands = torch.full_like(mask[:, 0], frames.shape[2], dtype=torch.long)
    for _ in range(changes.band_masks):
        hidden = hidden | stretches(bands, frames.shape[2], changes.band_share, generator)[:, None]
    return frames.masked_fill(hidden, 0.0), mask  # the mean of a feature that is normalised


def stretches(lengths: Tensor, width: int, share: float, generator: torch.Generator) -> Bool[Tensor, "B W"]:
    """One stretch in each row of `lengths`, of up to a share of it, anywhere in it (Park et al. 2019, section 2)."""
    long, where = torch.rand(2, len(lengths), generator=generator, device=lengths.device)
    size = (long * ((share * lengths).floor() + 1)).floor()  # from nothing to all of the share, each as likely
    first = (where * (lengths - size + 1)).floor()
    at = torch.arange(width, device=lengths.device)
    return (at >= first[:, None]) & (at < (first + size)[:, None])


def at_speeds(
    frames: Float[Tensor, "B T F"], mask: Bool[Tensor, "B T"], most: float, generator: torch.Generator
) -> tuple[Float[Tensor, "B S F"], Bool[Tensor, "B S"]]:
    """Each recording up to a share faster or slower, of the same pitch: frames between frames, by straight lines."""
    factors = 1 + most * (2 * torch.rand(len(frames), generator=generator, device=frames.device) - 1)
    lengths = mask.sum(1)
    wanted = (lengths / factors).round()
    width = math.ceil(frames.shape[1] / (1 - most))  # known without asking the device
    at = torch.arange(width, device=frames.device)
    places = (at * factors[:, None]).minimum((lengths - 1).clamp(min=0)[:, None])
    before = places.floor().long()
    after = (before + 1).minimum((lengths - 1).clamp(min=0)[:, None])
    share = (places - before)[..., None]
    left, right = (frames.gather(1, x[..., None].expand(-1, -1, frames.shape[2])) for x in (before, after))
    return left + share * (right - left), at < wanted[:, None]
