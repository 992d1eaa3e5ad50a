"""What stands around every sublayer. The kernels are those of a GPU; Triton's interpreter runs them anywhere."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from saccade.layers.attention.backends import TRITON
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


@pytest.mark.skipif(not TRITON, reason="needs the package triton")
def test_kernels_are_residual_dropout_and_norm() -> None:
    script = Path(__file__).with_name("interpreted_norm.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_kernels_on_the_gpu() -> None:
    from interpreted_norm import assert_all_kernels

    assert_all_kernels("cuda")
