"""The convolutional stem: fewer frames, and padding stays zero."""

import torch

from saccade.layers.audio.downsampling import Stem


def test_strides_divide_the_frames():
    stem = Stem(5, 7, strides=(1, 2, 3))
    mask = torch.arange(13) < torch.tensor([13, 6])[:, None]
    states, short = stem(torch.randn(2, 13, 5), mask)
    assert states.shape == (2, 3, 7)  # 13, 7, 3
    assert short.tolist() == [[True, True, True], [True, False, False]]


def test_without_strides_it_is_one_product():
    stem = Stem(5, 7, strides=())
    x, mask = torch.randn(2, 3, 5), torch.ones(2, 3, dtype=torch.bool)
    torch.testing.assert_close(stem(x, mask)[0], stem.project(x))
    assert stem(x, mask)[1] is mask


def test_padding_changes_nothing():
    stem = Stem(5, 7, strides=(2, 2))
    x = torch.randn(1, 9, 5)
    alone, _ = stem(x, torch.ones(1, 9, dtype=torch.bool))
    padded = torch.cat((x, torch.full((1, 6, 5), 100.0)), 1)
    beside, mask = stem(padded, (torch.arange(15) < 9)[None])
    torch.testing.assert_close(beside[:, : alone.shape[1]], alone)
    assert mask.sum().item() == alone.shape[1] == 3


def test_it_is_the_convolutions_of_torch():
    stem = Stem(5, 7, strides=(1, 2))
    x = torch.randn(2, 8, 5)
    gelu = torch.nn.functional.gelu
    wanted = gelu(stem.layers[1](gelu(stem.layers[0](x.mT)))).mT
    torch.testing.assert_close(stem(x, torch.ones(2, 8, dtype=torch.bool))[0], wanted)
