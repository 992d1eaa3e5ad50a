"""The pyramid: half as many states in each layer, and padding has no effect."""

import pytest
import torch

from saccade.layers.audio.downsampling import PyramidStack, concat_pairs


def test_neighbours_stand_side_by_side_and_an_odd_one_beside_zeros():
    x = torch.arange(1.0, 11).view(1, 5, 2)
    pairs, mask = concat_pairs(x, torch.tensor([[True, True, True, True, True]]))
    assert pairs.tolist() == [[[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 0, 0]]]
    assert mask.tolist() == [[True, True, True]]
    pairs, mask = concat_pairs(x, torch.tensor([[True, True, True, False, False]]))
    assert pairs.tolist() == [[[1, 2, 3, 4], [5, 6, 0, 0], [0, 0, 0, 0]]]
    assert mask.tolist() == [[True, True, False]]


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_three_layers_make_a_quarter_of_the_positions(cell):
    stack = PyramidStack(6, cell=cell, layers=3)
    mask = torch.arange(13) < torch.tensor([13, 5])[:, None]
    states, short, final, aux = stack(torch.randn(2, 13, 6), mask)
    assert states.shape == (2, 4, 6) and aux == {}
    assert short.sum(1).tolist() == [4, 2]
    assert [last[0].shape for last in final] == [(2, 6)] * 3


def test_padding_changes_nothing():
    stack = PyramidStack(6, cell="lstm", layers=3)
    x = torch.randn(1, 5, 6)
    alone, _, final, _ = stack(x, None)
    padded = torch.cat((x, torch.full((1, 6, 6), 100.0)), 1)
    beside, mask, last, _ = stack(padded, (torch.arange(11) < 5)[None])
    torch.testing.assert_close(beside[:, : alone.shape[1]], alone)
    assert mask.sum().item() == alone.shape[1]
    torch.testing.assert_close(last, final)


def test_the_layers_are_those_of_torch():
    stack = PyramidStack(6, cell="lstm", layers=2)
    x = torch.randn(3, 8, 6)
    below, _ = stack.layers[0](x)
    above, _ = stack.layers[1](below.reshape(3, 4, 12))
    torch.testing.assert_close(stack(x, None)[0], above)
