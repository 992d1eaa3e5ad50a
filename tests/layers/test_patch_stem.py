"""Patches made by convolutions."""

import pytest
import torch

from saccade.layers.vision.patches import ColorNormalization, ConvPatchEmbedding, ResNetCells


@pytest.mark.parametrize(("patch", "strides"), [(4, [1, 2, 2]), (8, [2, 2, 2]), (1, [1, 1, 1])])
def test_the_last_convolutions_halve_the_sides(patch, strides):
    cells = ConvPatchEmbedding(11, patch=patch, channels=[5, 6, 7])
    assert [level.convolve.stride[0] for level in cells.levels] == strides
    assert cells(torch.zeros(2, 3, 16, 24, dtype=torch.uint8)).shape == (2, 16 * 24 // patch**2, 11)
    places = [level(torch.zeros(1, level.convolve.in_channels, 8, 8)).shape[-1] // 8 for level in cells.levels]
    assert [level.positions_per_state for level in cells.levels][-1] == 1
    assert places == [1 if stride == 1 else 0 for stride in strides]


def test_a_patch_sees_its_own_part_of_the_picture():
    cells, dark = ConvPatchEmbedding(7, patch=4, channels=[8, 8]), torch.zeros(1, 3, 32, 32)
    lit = dark.clone()
    lit[..., :4, 28:] = 255
    changed = (cells(lit) - cells(dark)).abs().sum(-1).view(8, 8)
    assert int(changed.argmax()) == 7


def test_colours_are_taken_into_account():
    half, other = ColorNormalization((0.5,) * 3, (0.5,) * 3), ColorNormalization((0.2, 0.4, 0.6), (0.3, 0.2, 0.1))
    plain, same, others = (ConvPatchEmbedding(7, patch=2, channels=[8], normalization=c) for c in (None, half, other))
    for cells in (same, others):
        cells.load_state_dict(plain.state_dict())
    pictures = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    torch.testing.assert_close(same(pictures), plain(pictures))
    assert not torch.allclose(others(pictures), plain(pictures), atol=1e-2)


@pytest.mark.parametrize(
    "make", [lambda: ResNetCells([16, 8], depth=1), lambda: ConvPatchEmbedding(7, patch=4, channels=[16, 8])]
)
def test_how_a_picture_lies_in_memory_says_nothing(make):
    """Moved pictures have the colours of a pixel together, which torch's gradients do not bear."""
    cells, pictures = make(), torch.rand(16, 3, 24, 24) * 255
    turned = pictures.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    torch.testing.assert_close(cells(turned), cells(pictures))
    cells(turned).square().sum().backward()
    found = [parameter.grad.clone() for parameter in cells.parameters()]
    cells.zero_grad()
    cells(pictures).square().sum().backward()
    for one, parameter in zip(found, cells.parameters(), strict=True):
        torch.testing.assert_close(one, parameter.grad, atol=1e-3, rtol=1e-3)
