"""Patches and convolutions over pictures."""

import torch
import torch.nn.functional as F

from saccade.layers.vision.patches import ColorNormalization, PatchEmbedding, ResNetCells, get_num_groups


def test_patches_are_taken_row_by_row_from_the_left():
    patches = PatchEmbedding(12, patch=2)
    with torch.no_grad():
        patches.project.weight.copy_(torch.eye(12))
    picture = torch.arange(3 * 4 * 6).view(1, 3, 4, 6).to(torch.uint8)
    found = (patches(picture) + 1) * 127.5
    assert found.shape == (1, 6, 12)
    second = picture[0, :, 0:2, 2:4].flatten().float()  # first row, second column
    fourth = picture[0, :, 2:4, 0:2].flatten().float()
    torch.testing.assert_close(found[0, 1], second)
    torch.testing.assert_close(found[0, 3], fourth)


def test_patches_are_what_a_strided_convolution_gives():
    patches = PatchEmbedding(7, patch=3)
    picture = torch.rand(2, 3, 9, 9) * 255
    kernel = patches.project.weight.view(7, 3, 3, 3)
    expected = F.conv2d(picture / 127.5 - 1, kernel, patches.project.bias, stride=3).flatten(2).transpose(1, 2)
    torch.testing.assert_close(patches(picture), expected, atol=1e-5, rtol=1e-5)


def test_colours_have_their_own_mean_and_deviation():
    picture = torch.randint(0, 256, (2, 3, 5, 7), dtype=torch.uint8)
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.25, 0.125)
    found = ColorNormalization(mean, std).normalize(picture, torch.float64)
    for i in range(3):
        torch.testing.assert_close(found[:, i], (picture[:, i].double() / 255 - mean[i]) / std[i])
    plain, same = (
        PatchEmbedding(7, patch=1),
        PatchEmbedding(7, patch=1, normalization=ColorNormalization((0.5,) * 3, (0.5,) * 3)),
    )
    same.load_state_dict(plain.state_dict())
    torch.testing.assert_close(same(picture), plain(picture), atol=1e-5, rtol=1e-5)


def test_each_level_halves_the_sides():
    cells = ResNetCells([5, 7], depth=2)
    assert cells(torch.zeros(2, 3, 12, 20, dtype=torch.uint8)).shape == (2, 15, 7)
    assert [block.positions_per_state for block in cells.blocks] == [4, 4, 1, 1]


def test_the_last_levels_may_keep_the_width():
    cells = ResNetCells([5, 7, 4], depth=1, height_only_stages=2)
    assert cells(torch.zeros(2, 3, 16, 20, dtype=torch.uint8)).shape == (2, 2 * 10, 4)
    assert [block.positions_per_state for block in cells.blocks] == [4, 2, 1]


def test_a_picture_is_read_in_the_same_way_in_any_company():
    cells, pictures = ResNetCells([4, 8], depth=1), torch.rand(3, 3, 8, 8) * 255
    torch.testing.assert_close(cells(pictures)[1:2], cells(pictures[1:2]))


def test_a_cell_sees_its_own_part_of_the_picture():
    cells, dark = ResNetCells([4], depth=1), torch.zeros(1, 3, 64, 64)
    lit = dark.clone()
    lit[..., :4, 60:] = 255
    changed = (cells(lit) - cells(dark)).abs().sum(-1).view(32, 32)
    assert changed[0, -1] > 1e-3
    assert changed[0, -1] > 20 * changed[-1, 0]


def test_channels_fall_into_groups_of_one_size():
    assert [get_num_groups(channels) for channels in (16, 12, 7, 5)] == [8, 6, 7, 5]
