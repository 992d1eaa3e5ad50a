"""What stands around every sublayer."""

import torch
from torch import nn

from saccade.layers.blocks.residual import Late, entered, normalised, settled


def test_plain_sums_and_norms_are_those_of_torch() -> None:
    x, y, norm, dropout = torch.randn(2, 3, 8), torch.randn(2, 3, 8), nn.LayerNorm(8), nn.Dropout(0.5)
    torch.testing.assert_close(normalised(x, norm), norm(x))
    torch.testing.assert_close(normalised(x, norm, plus=y), norm(x + y))
    torch.testing.assert_close(normalised(x, norm, plus=y, dropout=dropout.eval()), norm(x + y))
    torch.testing.assert_close(normalised(x, nn.Identity()), x)


def test_a_late_sum_is_added_once() -> None:
    x, y, norm, dropout = torch.randn(2, 3, 8), torch.randn(2, 3, 8), nn.LayerNorm(8), nn.Dropout(0.5)
    torch.manual_seed(1)
    total, normal = entered(Late(x, y), norm, dropout)
    torch.manual_seed(1)
    torch.testing.assert_close(settled(Late(x, y), dropout), total)
    torch.testing.assert_close(normal, norm(total))
    torch.testing.assert_close(((total - x) == 0) | ((total - x - 2 * y).abs() < 1e-5), torch.ones_like(x).bool())
    assert settled(x, dropout) is x and entered(x, norm, dropout)[0] is x
