"""From a recipe's table to a convolutional stack."""

from collections.abc import Callable
from functools import partial

from torch import nn

from saccade.config import schema
from saccade.errors import SaccadeError
from saccade.layers.blocks.convolution import GatedBlock, MemoryAttention, Product, ResidualBlock
from saccade.layers.blocks.convolution_stack import ConvolutionStack


def build_convolution(
    s: schema.ConvolutionStack, *, memory_dim: int | None, causal: bool, recompute: bool
) -> ConvolutionStack:
    if memory_dim not in (None, s.dim):
        raise SaccadeError(
            f"a convolutional writer must be as wide as what it reads, got writer.stack.dim = {s.dim} and a reader of "
            f"{memory_dim}; set them equal"
        )
    hidden = s.hidden or (s.dim if s.block == "gated" else -(-s.dim // 2))
    make: Callable[..., nn.Module]
    if s.block == "gated":
        along, make = hidden, partial(GatedBlock, hidden)
        ends = Product(s.dim, hidden, weight_norm=s.weight_norm), Product(hidden, s.dim, weight_norm=s.weight_norm)
    else:
        along, make, ends = s.dim, partial(ResidualBlock, s.dim, hidden=hidden), None
    blocks = []
    for i in range(s.layers):
        attends = memory_dim is not None and s.attention[i % len(s.attention)]
        cross = MemoryAttention(along, memory_dim=s.dim, weight_norm=s.weight_norm) if attends else None
        dilation = s.dilations[i % len(s.dilations)]
        blocks.append(
            make(kernel=s.kernel, dilation=dilation, dropout=s.dropout, weight_norm=s.weight_norm, cross=cross)
        )
    return ConvolutionStack(
        blocks, dim=s.dim, ends=ends, causal=causal, unfold=s.unfold, dropout=s.dropout, recompute=recompute
    )
