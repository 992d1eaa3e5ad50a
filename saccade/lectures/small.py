"""The small things that many checks share: random numbers in double precision, a small model, how far two are apart."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from saccade.config.load import load
from saccade.config.schema import Recipe
from saccade.data.batching.batch import Batch, pad
from saccade.layers.attention.multihead import SelfAttention
from saccade.layers.blocks.feedforward import FeedForward
from saccade.layers.blocks.residual import Residual
from saccade.layers.blocks.transformer import Block, TransformerStack
from saccade.model.build.model import build
from saccade.model.model import Model

VOCABULARY = 23


def numbers(*shape: int) -> Tensor:
    """Standard normal numbers in double precision, so that only real differences are seen."""
    return torch.randn(*shape, dtype=torch.float64)


def apart(first: Tensor, second: Tensor) -> float:
    """The largest difference between two tensors; of another shape they are not the same thing at all."""
    if first.shape != second.shape:
        return float("inf")
    return float((first - second).detach().abs().max())


def shape_of(x: Tensor) -> str:
    """2 x 3"""
    return " x ".join(map(str, x.shape))


def count(module: nn.Module) -> int:
    """How many numbers are learned."""
    return sum(parameter.numel() for parameter in module.parameters())


def small_recipe(changes: Sequence[str] = ()) -> Recipe:
    """The Transformer's recipe with 2 + 2 layers of width 12."""
    sizes = ("layers=2", "dim=12", "heads=3", "ff=17", "dropout=0.0")
    stacks = [f"{part}.stack.{size}" for part in ("reader", "writer") for size in sizes]
    return load("transformer", overrides=[*stacks, "reader.dropout=0.0", "writer.dropout=0.0", *changes])


def small_model(changes: Sequence[str] = ()) -> Model:
    """A model with fresh weights, in double precision and without dropout."""
    return build(small_recipe(changes), source_size=VOCABULARY, target_size=VOCABULARY).double().eval()


def small_batch() -> Batch:
    """Two pairs of unlike lengths."""
    return Batch({"source": pad([[5, 6, 7, 8, 9], [10, 11]]), "target": pad([[12, 13, 14], [15, 16, 17]])})


def block(dim: int, *, heads: int = 2, norm: str = "post", hidden: int = 17) -> Block:
    """One Transformer block without dropout, in double precision."""
    order = "pre" if norm == "pre" else "post"
    residuals = [Residual(nn.LayerNorm(dim), order=order, dropout=0.0) for _ in range(2)]  # type: ignore[arg-type]
    return Block(SelfAttention(dim, heads=heads), FeedForward(dim, hidden=hidden), residuals=residuals).double()


def stack(dim: int, *, layers: int, causal: bool = False, norm: str = "post") -> TransformerStack:
    """Several of them."""
    last = nn.LayerNorm(dim) if norm == "pre" else None
    blocks = [block(dim, norm=norm) for _ in range(layers)]
    return TransformerStack(blocks, dim=dim, causal=causal, norm=last).double()


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """b of y = a x^b."""
    u, v = [math.log(value) for value in x], [math.log(value) for value in y]
    mean_u, mean_v = sum(u) / len(u), sum(v) / len(v)
    above = sum((a - mean_u) * (b - mean_v) for a, b in zip(u, v, strict=True))
    return above / sum((a - mean_u) ** 2 for a in u)
