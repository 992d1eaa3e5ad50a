"""Kernels for packed rows against explicit attention."""

import itertools

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
    weights = torch.randn_like(y)

    def attend_explicitly(kind):
        """Output and gradients of the reference, which computes in `kind` throughout."""
        wide = [part.detach().to(kind).requires_grad_() for part in parts]
        rows = [part.transpose(0, 1)[None] for part in wide]
        out = kernels.explicit_attention(*rows, scale=scale, allowed=allowed)[0][0].transpose(0, 1)
        return out, *torch.autograd.grad(out, wide, weights.to(kind))

    found, expected = (y, *torch.autograd.grad(y, parts, weights)), attend_explicitly(torch.float64)
    if dtype == torch.float32:
        for ours, right in zip(found, expected, strict=True):
            torch.testing.assert_close(ours.double(), right, rtol=1e-4, atol=1e-5)
        return
    for ours, theirs, right in zip(found, attend_explicitly(dtype), expected, strict=True):
        errors, usual = ((part.double() - right).abs() for part in (ours, theirs))
        assert errors.max() <= 2 * usual.max() + 1e-5, (errors.max(), usual.max())
        assert errors.mean() <= usual.mean() + 1e-5, (errors.mean(), usual.mean())


def main(device):
    for width in (16, 32):
        assert_attention_inside_texts([5, 16, 1, 9], causal=True, width=width, dtype=torch.float32, device=device)
        assert_attention_inside_texts([20, 3, 30], causal=False, width=width, dtype=torch.float32, device=device)
    if device == "cpu":
        return  # the interpreter multiplies no matrices of bfloat16
    for longest, causal in itertools.product((16, 30, 60, 100, 200), (False, True)):
        lengths, kinds = [longest, 5, 1, longest - 3], [torch.float32, torch.bfloat16]
        for dtype in kinds[longest > kernels.MAX_SHORT_KERNEL_LENGTH_FP32 :]:
            assert_attention_inside_texts(lengths, causal=causal, width=64, dtype=dtype, device=device)
