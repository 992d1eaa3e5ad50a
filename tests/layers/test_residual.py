"""Adding to the residual stream and normalizing it."""

import torch
from torch import nn

from saccade.layers.blocks.residual import add_and_normalize


def test_plain_sums_and_norms_are_those_of_torch() -> None:
    x, y, norm, dropout = torch.randn(2, 3, 8), torch.randn(2, 3, 8), nn.LayerNorm(8), nn.Dropout(0.5).eval()
    torch.testing.assert_close(add_and_normalize(x, None, norm, dropout), (norm(x), x))
    torch.testing.assert_close(add_and_normalize(y, x, norm, dropout), (norm(x + y), x + y))
    torch.testing.assert_close(add_and_normalize(x, None, nn.Identity(), dropout), (x, x))
    assert add_and_normalize(x, None, norm, dropout)[1] is x


def test_dropout_is_that_of_what_is_added() -> None:
    x, y, norm, dropout = torch.randn(2, 3, 8), torch.randn(2, 3, 8), nn.LayerNorm(8), nn.Dropout(0.5)
    torch.manual_seed(1)
    normal, total = add_and_normalize(y, x, norm, dropout)
    torch.manual_seed(1)
    torch.testing.assert_close(x + dropout(y), total)
    torch.testing.assert_close(normal, norm(total))
    torch.testing.assert_close(((total - x) == 0) | ((total - x - 2 * y).abs() < 1e-5), torch.ones_like(x).bool())
