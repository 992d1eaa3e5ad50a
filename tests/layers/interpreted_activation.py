"""The kernel behind activations against autograd."""

import torch
import torch.nn.functional as F

from saccade.kernels.activations import ACTIVATIONS
from saccade.kernels.triton.activation import activate


def assert_gradients(kind, *, rows, width, dtype, device):
    torch.manual_seed(0)
    x, weight = torch.randn(2, rows, 24, device=device), torch.randn(width, 24, device=device)
    bias = torch.randn(width, device=device).requires_grad_()
    before = F.linear(x, weight, bias).to(dtype).detach().requires_grad_()

    out = activate(before, bias, kind)
    expected = ACTIVATIONS[kind](before)
    torch.testing.assert_close(out, expected)
    above = torch.randn_like(expected)
    of_x, of_bias = torch.autograd.grad(out, (before, bias), above)
    [theirs] = torch.autograd.grad(expected, before, above)
    near = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    torch.testing.assert_close(of_x, theirs, **near)
    torch.testing.assert_close(of_bias, of_x.float().flatten(0, -2).sum(0), rtol=1e-4, atol=1e-4)


def main(device):
    for kind in ("relu", "gelu", "gelu-tanh"):
        for dtype in (torch.float32, torch.bfloat16):
            assert_gradients(kind, rows=300, width=140, dtype=dtype, device=device)
