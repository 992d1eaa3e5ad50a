"""Self-attention inside a convolutional network."""

import torch

from saccade.layers.record import record
from saccade.layers.vision.grid_attention import GridAttention
from saccade.layers.vision.patches import ResNetCells


def test_at_first_nothing_changes():
    layer, x = GridAttention(16), torch.randn(2, 16, 3, 5)
    assert torch.equal(layer(x), x)


def test_what_is_shown_is_what_was_used():
    layer, x = GridAttention(24), torch.randn(2, 24, 3, 5)
    torch.nn.init.constant_(layer.gamma, 0.7)
    plain = layer(x)
    with record(layer) as maps:
        torch.testing.assert_close(layer(x), plain, atol=1e-5, rtol=1e-5)
    weights = maps[""]
    assert weights.shape == (2, 1, 15, 15)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 1, 15))


def test_every_place_sees_every_other():
    layer, x = GridAttention(8), torch.randn(1, 8, 4, 7, requires_grad=True)
    torch.nn.init.ones_(layer.gamma)
    layer(x)[0, :, 0, 0].sum().backward()
    assert bool((x.grad[0].abs().sum(0) > 0).all())


def test_it_stands_behind_the_levels_that_are_named():
    cells = ResNetCells([8, 16, 24], depth=2, attention=[1, 3])
    kinds = [type(block).__name__ for block in cells.blocks]
    assert kinds == [*["ResNetBlock"] * 2, "GridAttention", *["ResNetBlock"] * 4, "GridAttention"]
    assert [block.positions_per_state for block in cells.blocks] == [16, 16, 16, 4, 4, 1, 1, 1]
    assert cells(torch.zeros(2, 3, 16, 24, dtype=torch.uint8)).shape == (2, 6, 24)
