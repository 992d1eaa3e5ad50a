"""Helpers that many checks share: random tensors in float64, small models, the difference of two tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

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

VOCABULARY_SIZE = 23
ModuleT = TypeVar("ModuleT", bound=nn.Module)


def sample_normal(*shape: int) -> Tensor:
    """Sample a standard normal tensor in float64, where rounding errors are far below any real difference."""
    return torch.randn(*shape, dtype=torch.float64)


def max_difference(first: Tensor, second: Tensor) -> float:
    """Return the largest absolute difference of two tensors; infinity if their shapes differ."""
    if first.shape != second.shape:
        return float("inf")
    return float((first - second).detach().abs().max())


def format_shape(x: Tensor) -> str:
    """Format the shape of a tensor, such as "2 x 3"."""
    return " x ".join(map(str, x.shape))


def count_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def randomize_parameters(model: ModuleT, *, scale: float = 0.3) -> ModuleT:
    """Add noise to all parameters, so that no bias, gate or norm has its neutral initial value."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=scale)
    return model


def load_small_recipe(changes: Sequence[str] = ()) -> Recipe:
    """Load the recipe `transformer` with 2 + 2 layers of width 12 and without dropout."""
    sizes = ("layers=2", "dim=12", "heads=3", "ff=17", "dropout=0.0")
    stacks = [f"{part}.stack.{size}" for part in ("reader", "writer") for size in sizes]
    return load("transformer", overrides=[*stacks, "reader.dropout=0.0", "writer.dropout=0.0", *changes])


def build_small_model(changes: Sequence[str] = ()) -> Model:
    """Build a small model with random weights, in float64 and without dropout."""
    return build(load_small_recipe(changes), source_size=VOCABULARY_SIZE, target_size=VOCABULARY_SIZE).double().eval()


def build_small_batch() -> Batch:
    """Build a batch of two sequence pairs of different lengths."""
    return Batch({"source": pad([[5, 6, 7, 8, 9], [10, 11]]), "target": pad([[12, 13, 14], [15, 16, 17]])})


def build_block(dim: int, *, heads: int = 2, norm: str = "post", hidden: int = 17) -> Block:
    """Build one Transformer block without dropout, in float64."""
    order = "pre" if norm == "pre" else "post"
    residuals = [Residual(nn.LayerNorm(dim), order=order, dropout=0.0) for _ in range(2)]  # type: ignore[arg-type]
    return Block(SelfAttention(dim, heads=heads), FeedForward(dim, hidden_dim=hidden), residuals=residuals).double()


def build_stack(dim: int, *, layers: int, causal: bool = False, norm: str = "post") -> TransformerStack:
    """Build a stack of such blocks."""
    last = nn.LayerNorm(dim) if norm == "pre" else None
    blocks = [build_block(dim, norm=norm) for _ in range(layers)]
    return TransformerStack(blocks, dim=dim, causal=causal, norm=last).double()


def fit_exponent(x: Sequence[float], y: Sequence[float]) -> float:
    """Fit y = a x^b by least squares on a log-log scale; return b."""
    u, v = [math.log(value) for value in x], [math.log(value) for value in y]
    mean_u, mean_v = sum(u) / len(u), sum(v) / len(v)
    above = sum((a - mean_u) * (b - mean_v) for a, b in zip(u, v, strict=True))
    return above / sum((a - mean_u) ** 2 for a in u)
