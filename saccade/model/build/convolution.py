"""Builds a convolutional stack from its table of a recipe."""

from collections.abc import Callable
from functools import partial

from torch import nn

from saccade.config import schema
from saccade.errors import SaccadeError
from saccade.layers.blocks.convolution import ConvS2SAttention, GatedBlock, ResidualBlock, WeightNormLinear
from saccade.layers.blocks.convolution_stack import ConvolutionStack
from saccade.model.build.scores import build_score


def build_convolution(
    s: schema.ConvolutionStack, *, memory_dim: int | None, causal: bool, recompute: bool
) -> ConvolutionStack:
    if memory_dim not in (None, s.dim):
        raise SaccadeError(
            f"a convolutional writer must have the width of its reader, got writer.stack.dim = {s.dim} and a reader of "
            f"{memory_dim}; set them equal"
        )
    hidden = s.hidden_dim or (s.dim if s.block == "gated" else -(-s.dim // 2))
    build_block: Callable[..., nn.Module]
    if s.block == "gated":
        width, build_block = hidden, partial(GatedBlock, hidden)
        ends = (
            WeightNormLinear(s.dim, hidden, weight_norm=s.weight_norm),
            WeightNormLinear(hidden, s.dim, weight_norm=s.weight_norm),
        )
    else:
        width, build_block, ends = s.dim, partial(ResidualBlock, s.dim, hidden_dim=hidden), None
    blocks = []
    for i in range(s.layers):
        attends = memory_dim is not None and s.attention[i % len(s.attention)]
        cross = None
        if attends:
            score = None if s.score.kind == "dot" else build_score(s.score, s.dim, s.dim)
            cross = ConvS2SAttention(width, memory_dim=s.dim, weight_norm=s.weight_norm, score=score)
        dilation = s.dilations[i % len(s.dilations)]
        blocks.append(
            build_block(kernel=s.kernel, dilation=dilation, dropout=s.dropout, weight_norm=s.weight_norm, cross=cross)
        )
    return ConvolutionStack(
        blocks, dim=s.dim, ends=ends, causal=causal, unfold=s.unfold, dropout=s.dropout, recompute=recompute
    )
