"""Kernels for residual, dropout and norm against torch."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from saccade.kernels.triton.norm import add_norm

WIDE, NARROW = torch.float32, torch.bfloat16
NEAR = {  # how exact: sums over 74 rows of numbers with 8 bits are not
    (WIDE, WIDE): {"rtol": 1e-4, "atol": 1e-4},
    (WIDE, NARROW): {"rtol": 2e-2, "atol": 2e-2},
    (NARROW, NARROW): {"rtol": 5e-2, "atol": 1e-1},
}


def assert_norm_of_sum(norm, *, rows, share, adds, kinds, device):
    """Value and gradients; the mask of dropout is read off a sum with nothing."""
    torch.manual_seed(0)
    width = norm.weight.shape[0]
    for parameter in norm.parameters():
        nn.init.normal_(parameter)
    norm = norm.to(device)
    # Drawn as float32: bfloat16 draws are 0 now and then, which looks as if they had been dropped.
    x, y = (torch.randn(2, rows, width, device=device).to(kind).requires_grad_() for kind in kinds)
    y = y if adds else None
    bias, centres = getattr(norm, "bias", None), isinstance(norm, nn.LayerNorm)
    inputs = [part for part in (x, y, norm.weight, bias) if part is not None]

    out, total, *_, _ = add_norm(x, y, norm.weight, bias, share, norm.eps, centres, kinds[0])
    dropped = 0.0
    if adds:
        mask = (total.detach() - x.detach()).abs() > 0 if share else torch.ones_like(x, dtype=torch.bool)
        dropped = torch.where(mask, y.float() / (1 - share), 0.0)
        if share:
            assert abs(mask.float().mean().item() - (1 - share)) < 0.1
    expected = norm(x.float() + dropped)
    near = NEAR[kinds]
    torch.testing.assert_close(out.float(), expected, **near)
    weights, others = torch.randn_like(expected), torch.randn_like(expected)
    ours = torch.autograd.grad(out, inputs, weights.to(out.dtype), retain_graph=True)
    theirs = torch.autograd.grad(expected, inputs, weights, retain_graph=True)
    torch.testing.assert_close(ours, theirs, **near)
    if adds:  # what was normalised may be used too
        ours = torch.autograd.grad((out, total), inputs, (weights.to(out.dtype), others.to(total.dtype)))
        theirs = torch.autograd.grad((expected, x.float() + dropped), inputs, (weights, others))
        torch.testing.assert_close(ours, theirs, **near)


def assert_recomputed(norm, device):
    """Gradients are the same where activations are recomputed in the backward pass."""
    x, y = (torch.randn(3, 7, norm.weight.shape[0], device=device).requires_grad_() for _ in range(2))

    def add(x, y):
        out, total, *_ = add_norm(x, y, norm.weight, norm.bias, 0.0, norm.eps, True, WIDE)
        return (out * total).sum()

    kept = torch.autograd.grad(add(x, y), (x, y, norm.weight))
    recomputed = torch.autograd.grad(checkpoint(add, x, y, use_reentrant=False), (x, y, norm.weight))
    torch.testing.assert_close(recomputed, kept)


def main(device):
    assert_recomputed(nn.LayerNorm(48).to(device), device)
    for norm in (nn.LayerNorm(48), nn.LayerNorm(64, bias=False), nn.RMSNorm(32, eps=1e-6)):
        for kinds in ((WIDE, WIDE), (WIDE, NARROW), (NARROW, NARROW)):
            for adds, share in ((False, 0.0), (True, 0.0), (True, 0.3)):
                if share and kinds[0] == NARROW:
                    continue  # small numbers are lost in narrow sums, and look as if they had been dropped
                assert_norm_of_sum(norm, rows=37, share=share, adds=adds, kinds=kinds, device=device)
