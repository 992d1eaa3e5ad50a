"""Augmentation of sound: masks, noise and speed, reproducible by the seed."""

import pytest
import torch

from saccade.config.sound import AudioAugmentation
from saccade.train.augment.sound import augment_sound

B, T, F = 5, 40, 10


def augment_random(seed: int = 0, **settings):
    frames = torch.randn(B, T, F, generator=torch.Generator().manual_seed(7)) + 5
    mask = torch.arange(T) < torch.tensor([40, 20, 11, 1, 0])[:, None]
    return (
        frames,
        mask,
        *augment_sound(frames, mask, AudioAugmentation(**settings), torch.Generator().manual_seed(seed)),
    )


def test_nothing_is_changed_unless_it_is_asked_for():
    frames, mask, after, same = augment_random()
    assert torch.equal(after, frames) and torch.equal(same, mask)


def test_stretches_of_time_are_hidden_in_all_bands():
    most = 0
    for seed in range(40):
        _, mask, after, _ = augment_random(seed, time_masks=1, time_mask_ratio=0.25)
        hidden = (after == 0).all(2)
        assert torch.equal(hidden, (after == 0).any(2))
        assert (hidden.sum(1) <= 0.25 * mask.sum(1)).all()
        assert not (hidden & ~mask).any()
        assert (hidden.diff(dim=1) & hidden[:, 1:]).sum(1).max() <= 1  # one piece
        most = max(most, int(hidden[0].sum()))
    assert most == 10  # all of the share comes too


def test_neighbouring_bands_are_hidden_all_the_time():
    seen = set()
    for seed in range(40):
        _, _, after, _ = augment_random(seed, freq_masks=1, freq_mask_ratio=0.3)
        hidden = (after == 0).all(1)
        assert torch.equal(hidden[:, None].expand_as(after), after == 0)
        seen |= set(hidden.sum(1).tolist())
    assert seen == {0, 1, 2, 3}


def test_noise_is_as_loud_as_it_is_reported():
    frames, _, after, _ = augment_random(noise=0.5)
    assert (after - frames).std().item() == pytest.approx(0.5, abs=0.03)


def test_speed_changes_lengths_and_keeps_the_content():
    times = torch.linspace(0, 1, 101)[None, :, None].repeat(64, 1, 3)
    mask = torch.ones(64, 101, dtype=torch.bool)
    after, real = augment_sound(times, mask, AudioAugmentation(speed=0.2), torch.Generator().manual_seed(1))
    lengths = real.sum(1)
    assert lengths.min() >= 101 / 1.2 - 1 and lengths.max() <= 101 / 0.8 + 1 and len(set(lengths.tolist())) > 10
    for row, length in zip(after, lengths.tolist(), strict=True):
        step = row[:length, 0].diff()
        assert row[0, 0] == 0 and row[length - 1, 0] > 0.97
        torch.testing.assert_close(step[:-1], step[:1].expand(length - 2), atol=1e-5, rtol=0)  # straight lines stay so


def test_rows_without_sound_stay_so_at_any_speed():
    _, _, after, real = augment_random(speed=0.5)
    assert real.sum(1).tolist()[-1] == 0 and real.sum(1).tolist()[-2] in (1, 2)
    assert after.isfinite().all()


def test_augmentation_is_reproducible_by_the_seed():
    settings = {"time_masks": 2, "freq_masks": 2, "noise": 0.1, "speed": 0.1}
    assert torch.equal(augment_random(3, **settings)[2], augment_random(3, **settings)[2])
    assert not torch.equal(augment_random(3, **settings)[2], augment_random(4, **settings)[2])
