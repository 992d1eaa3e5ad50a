"""Kernels for packed rows against explicit attention."""

import torch

from saccade.layers.attention import backends as kernels
from saccade.layers.packing import build_packing


def assert_attention_inside_texts(lengths, *, causal, width, dtype, device, heads=2):
    """Self-attention where causal, otherwise attention to texts of other lengths, one of them empty."""
    torch.manual_seed(0)
    others = lengths if causal else [*lengths[1:], 0]
    queries = build_packing(lengths, tokens=sum(lengths) + 20, sequences=16).to(device)
    keys = build_packing(others, tokens=sum(others) + 9, sequences=16).to(device) if not causal else queries
    # Queries, keys and values as they come from one projection: not contiguous.
    q, _, _ = torch.randn(queries.sequence_ids.shape[1], heads, 3, width, dtype=dtype, device=device).unbind(2)
    _, k, v = torch.randn(keys.sequence_ids.shape[1], heads, 3, width, dtype=dtype, device=device).unbind(2)
    parts = [part.requires_grad_() for part in (q, k, v)]
    scale = width**-0.5

    y = kernels.packed_attention(*parts, packings=(queries, keys), causal=causal, scale=scale)

    allowed = queries.sequence_ids[0][:, None] == keys.sequence_ids[0][None, :]
    if causal:
        allowed = allowed & (keys.positions[0][None, :] <= queries.positions[0][:, None])
    wide = [part.double().transpose(0, 1)[None] for part in parts]
    expected = kernels.explicit_attention(*wide, scale=scale, allowed=allowed)[0][0].transpose(0, 1)
    near = {"rtol": 2e-2, "atol": 3e-2} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}
    torch.testing.assert_close(y.double(), expected, **near)
    weights = torch.randn_like(y)
    ours = torch.autograd.grad(y, parts, weights)
    theirs = torch.autograd.grad(expected, parts, weights.double())
    torch.testing.assert_close(ours, theirs, **near)


def main():
    for width in (16, 32):
        assert_attention_inside_texts([5, 16, 1, 9], causal=True, width=width, dtype=torch.float32, device="cpu")
        assert_attention_inside_texts([20, 3, 30], causal=False, width=width, dtype=torch.float32, device="cpu")
