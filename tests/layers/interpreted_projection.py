"""Joined projections against plain ones."""

import torch

from saccade.kernels.triton.projection import project_qkv
from saccade.layers.attention.multihead import HeadProjection


def assert_gradients(*, heads, head_dim, dtype, device, compiled=False):
    torch.manual_seed(0)
    plain = HeadProjection(24, heads=heads, head_dim=head_dim, parts=3, form="paper", bias=True).to(device, dtype)
    torch.nn.init.normal_(plain.bias)
    x = torch.randn(2, 301, 24, device=device, dtype=dtype, requires_grad=True)
    wanted = (x, plain.weight, plain.bias)
    plain._can_fuse_backward = lambda x: False
    expected = plain(x)
    above = [torch.randn_like(part) for part in expected]
    theirs = torch.autograd.grad(expected, wanted, above)
    join = torch.compile(project_qkv, backend="aot_eager", fullgraph=True) if compiled else project_qkv
    found = join(*wanted)
    near = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 6e-2}
    torch.testing.assert_close(found, expected, **near)
    torch.testing.assert_close(torch.autograd.grad(found, wanted, above), theirs, **near)


def main(device):
    for heads, head_dim in ((3, 16), (2, 64), (5, 32)):
        for dtype in (torch.float32, torch.bfloat16):
            assert_gradients(heads=heads, head_dim=head_dim, dtype=dtype, device=device)
    assert_gradients(heads=3, head_dim=16, dtype=torch.float32, device=device, compiled=True)
