"""Linear maps, norms, activations, softmax, masks, and embedded tokens."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from saccade.data.tokenization.tokenizers import END, START

EPSILON = 1e-5  # of norms, unless a paper has another one


def apply_linear(layer: Any, x: Tensor) -> Tensor:
    """W x + b for each vector x (..., D)."""
    y = torch.einsum("...i,oi->...o", x, layer.weight)
    return y if layer.bias is None else y + layer.bias


def apply_layer_norm(norm: Any, x: Tensor, epsilon: float = EPSILON) -> Tensor:
    """gamma (x - mu) / sqrt(sigma^2 + epsilon) + beta over the features of each vector (Ba et al. 2016)."""
    centred = x - x.mean(-1, keepdim=True)
    y: Tensor = centred / (centred.square().mean(-1, keepdim=True) + epsilon).sqrt() * norm.weight
    return y + norm.bias


def apply_rms_norm(norm: Any, x: Tensor, epsilon: float = EPSILON) -> Tensor:
    """gamma x / sqrt(mean of x^2 + epsilon): no mean is subtracted and nothing is added."""
    y: Tensor = x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt() * norm.weight
    return y


def skip_norm(norm: Any, x: Tensor, epsilon: float = EPSILON) -> Tensor:
    """No norm."""
    return x


def relu(x: Tensor) -> Tensor:
    return x * (x > 0)


def gelu(x: Tensor) -> Tensor:
    """x Phi(x)"""
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def gelu_tanh(x: Tensor) -> Tensor:
    """The approximation of GPT-2."""
    return x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


# ---- attention to given vectors


def compute_softmax(e: Tensor, allowed: Tensor | None = None) -> Tensor:
    """a_ij = exp(e_ij) / sum_k exp(e_ik), where only the allowed keys count; zeros if there are none."""
    e = e if allowed is None else e.masked_fill(~allowed, -1e30)
    powers = (e - e.amax(-1, keepdim=True)).exp()
    powers = powers if allowed is None else powers * allowed
    total = powers.sum(-1, keepdim=True)
    return powers / torch.where(total > 0, total, 1.0)


def weigh(
    q: Tensor, k: Tensor, v: Tensor, *, allowed: Tensor | None = None, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """Y = A V and A = softmax(scale Q K^T); the scale is 1/√E unless given."""
    e = torch.einsum("...qe,...ke->...qk", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    a = compute_softmax(e, allowed)
    return torch.einsum("...qk,...ke->...qe", a, v), a


def build_causal_mask(length: int, window: int | None = None) -> Tensor:
    """The mask (T, T) by which position i may attend to j <= i, and with a window only to j >= i - window."""
    distance = torch.arange(length)[:, None] - torch.arange(length)
    return (distance >= 0) if window is None else (distance >= 0) & (distance <= window)


# ---- tokens and positions


def compute_sinusoids(positions: Tensor | int, dim: int) -> Tensor:
    """PE(p, 2i) = sin(p / 10000^(2i/D)), PE(p, 2i+1) = cos(p / 10000^(2i/D)), for given or so many positions."""
    positions = torch.arange(positions) if isinstance(positions, int) else positions
    angles = positions.double()[:, None] / 10000 ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(1)


def embed_tokens(embedding: Any, ids: Tensor) -> Tensor:
    """Token vectors times √D (Vaswani et al. 2017, section 3.4)."""
    x: Tensor = embedding.tokens.weight[ids]
    return x * math.sqrt(x.shape[-1])


def embed(embedding: Any, ids: Tensor, *, positions: Tensor | None = None) -> Tensor:
    """Token vectors times √D, plus `positions`, by default the sinusoids."""
    x = embed_tokens(embedding, ids)
    return x + (compute_sinusoids(x.shape[-2], x.shape[-1]) if positions is None else positions)


def shift_targets(ids: Tensor) -> Tensor:
    """START, y_1, y_2 ...: what a decoder has read before it predicts y_1, y_2, y_3 ..."""
    return torch.cat((torch.full_like(ids[..., :1], START), ids[..., :-1]), -1)


def find_segments(ids: Tensor) -> Tensor:
    """The segment of each token: the number of end tokens before it."""
    ends = ids.eq(END).long()
    return ends.cumsum(-1) - ends
