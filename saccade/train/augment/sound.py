"""Augmentation of sound: SpecAugment (time and frequency masks), noise and speed perturbation."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from saccade.config.sound import AudioAugmentation


def augment_sound(
    frames: Float[Tensor, "B T F"], mask: Bool[Tensor, "B T"], settings: AudioAugmentation, generator: torch.Generator
) -> tuple[Float[Tensor, "B S F"], Bool[Tensor, "B S"]]:
    """Augment each recording of a batch independently; a change of speed changes the number of frames."""
    if settings.speed:
        frames, mask = change_speed(frames, mask, settings.speed, generator)
    if settings.noise:
        frames = frames + settings.noise * torch.randn(frames.shape, generator=generator, device=frames.device)
    masked = torch.zeros_like(frames, dtype=torch.bool)
    for _ in range(settings.time_masks):
        masked = (
            masked | sample_mask_spans(mask.sum(1), frames.shape[1], settings.time_mask_ratio, generator)[..., None]
        )
    bands = torch.full_like(mask[:, 0], frames.shape[2], dtype=torch.long)
    for _ in range(settings.freq_masks):
        masked = masked | sample_mask_spans(bands, frames.shape[2], settings.freq_mask_ratio, generator)[:, None]
    return frames.masked_fill(masked, 0.0), mask  # 0 is the mean of a normalized feature


def sample_mask_spans(lengths: Tensor, width: int, share: float, generator: torch.Generator) -> Bool[Tensor, "B W"]:
    """Sample a span in each row, at most `share` of its length, at a random position (Park et al. 2019, section 2)."""
    size_noise, start_noise = torch.rand(2, len(lengths), generator=generator, device=lengths.device)
    size = (size_noise * ((share * lengths).floor() + 1)).floor()  # uniform from 0 to the maximum
    first = (start_noise * (lengths - size + 1)).floor()
    positions = torch.arange(width, device=lengths.device)
    return (positions >= first[:, None]) & (positions < (first + size)[:, None])


def change_speed(
    frames: Float[Tensor, "B T F"], mask: Bool[Tensor, "B T"], max_change: float, generator: torch.Generator
) -> tuple[Float[Tensor, "B S F"], Bool[Tensor, "B S"]]:
    """Change the speed of each recording by at most `max_change` without a change of pitch: interpolate its frames."""
    factors = 1 + max_change * (2 * torch.rand(len(frames), generator=generator, device=frames.device) - 1)
    lengths = mask.sum(1)
    new_lengths = (lengths / factors).round()
    width = math.ceil(frames.shape[1] / (1 - max_change))  # upper bound: no synchronization with the device
    positions = torch.arange(width, device=frames.device)
    sources = (positions * factors[:, None]).minimum((lengths - 1).clamp(min=0)[:, None])
    before = sources.floor().long()
    after = (before + 1).minimum((lengths - 1).clamp(min=0)[:, None])
    fraction = (sources - before)[..., None]
    left, right = (frames.gather(1, x[..., None].expand(-1, -1, frames.shape[2])) for x in (before, after))
    return left + fraction * (right - left), positions < new_lengths[:, None]
