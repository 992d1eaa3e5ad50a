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
    widths, ends = s.hidden_dims, None
    if s.block == "gated":
        ends = (
            WeightNormLinear(s.dim, widths[0], weight_norm=s.weight_norm),
            WeightNormLinear(widths[-1], s.dim, weight_norm=s.weight_norm),
        )
    blocks = []
    for i, (width, kernel) in enumerate(zip(widths, s.kernels, strict=True)):
        cross = None
        if memory_dim is not None and s.attention[i % len(s.attention)]:
            score = None if s.score.kind == "dot" else build_score(s.score, s.dim, s.dim)
            stream = width if s.block == "gated" else s.dim
            cross = ConvS2SAttention(stream, memory_dim=s.dim, weight_norm=s.weight_norm, score=score)
        build_block: Callable[..., nn.Module] = partial(ResidualBlock, s.dim, hidden_dim=width)
        if s.block == "gated":
            build_block = partial(GatedBlock, width, input_dim=widths[max(i - 1, 0)])
        dilation = s.dilations[i % len(s.dilations)]
        blocks.append(
            build_block(kernel=kernel, dilation=dilation, dropout=s.dropout, weight_norm=s.weight_norm, cross=cross)
        )
    return ConvolutionStack(
        blocks, dim=s.dim, ends=ends, causal=causal, unfold=s.unfold, dropout=s.dropout, recompute=recompute
    )
