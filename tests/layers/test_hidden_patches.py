"""Patches that are hidden."""

import pytest
import torch

from saccade.layers.vision.patches import GRAY_LEVEL, paint_patches, sample_hidden_patches


def test_the_share_of_patches_is_hidden_in_each_picture():
    hidden = sample_hidden_patches(50, 10, share=0.6, generator=torch.Generator().manual_seed(1))
    assert hidden.sum(1).tolist() == [6] * 50
    assert bool((hidden.float().mean(0) - 0.6).abs().max() < 0.3)
    assert len(set(map(tuple, hidden.tolist()))) > 10


def test_something_is_hidden_and_something_is_left():
    for share, expected in ((0.001, 1), (0.999, 4)):
        assert sample_hidden_patches(3, 5, share=share, generator=torch.Generator()).sum(1).tolist() == [expected] * 3


def test_hidden_patches_are_grey_and_others_as_they_were():
    pictures = torch.randint(0, 256, (1, 3, 4, 6), dtype=torch.uint8)
    hidden = torch.tensor([[False, True, False, False, False, True]])  # of 2 x 3 patches
    found = paint_patches(pictures, hidden, patch=2)
    assert bool((found[..., 0:2, 2:4] == GRAY_LEVEL).all())
    assert bool((found[..., 2:4, 4:6] == GRAY_LEVEL).all())
    assert torch.equal(found[..., 0:2, 0:2], pictures[..., 0:2, 0:2].float())
    assert torch.equal(found[..., 2:4, 0:4], pictures[..., 2:4, 0:4].float())


@pytest.mark.parametrize("patch", [3, 7, 41, 47])
def test_patches_of_every_size_are_grey_to_their_edges(patch):
    """Scaling by 1 / 41 in single precision takes the first row of a patch for the last one before it."""
    hidden = torch.tensor([[True, False, False, True]])
    found = paint_patches(torch.zeros(1, 3, 2 * patch, 2 * patch), hidden, patch=patch) == GRAY_LEVEL
    assert bool(found[..., :patch, :patch].all())
    assert bool(found[..., patch:, patch:].all())
    assert int(found.sum()) == 2 * 3 * patch * patch
