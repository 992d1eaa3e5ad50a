"""Convolutional blocks over time: the gated block of ConvS2S with its attention, and the residual block of ByteNet.

A convolution of width k concatenates k positions, `dilation` apart, and applies one linear layer. A reader's
convolution is centered, a writer's is causal. W is the length of a sequence with the padding of the convolution.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from saccade.layers.attention.scores import Score, attend, dot, explain_not_static, project_keys, score_projected
from saccade.layers.dropout import Dropout
from saccade.layers.memory import Memory
from saccade.layers.record import is_recording, record_weights
from saccade.layers.regions import region

SQRT_HALF = math.sqrt(0.5)  # keeps the variance of a sum of two tensors (Gehring et al. 2017, section 3.4)
NeighborGather = Callable[[Tensor], Tensor]  # (B, T, D) -> (B, T, k D): each position with its neighbours
Weights = tuple[Tensor, ...]


class WeightNormLinear(nn.Module):
    """W x + b; with `weight_norm`, W = g v / |v| for each output (Salimans and Kingma 2016, equation 2).

    The parameter `weight` is v and `length` is g.
    """

    def __init__(self, dim: int, out_dim: int, *, weight_norm: bool, gain: float = 1.0) -> None:
        """At initialization the variance of the output is `gain` times that of the input."""
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out_dim, dim))
        nn.init.normal_(self.weight, std=math.sqrt(gain / dim))
        self.length = nn.Parameter(self.weight.detach().norm(dim=1)) if weight_norm else None
        self.bias = nn.Parameter(torch.zeros(out_dim))

    def compute_weight(self) -> Float[Tensor, "out dim"]:
        """W = g v / |v|, or the weight itself without weight norm."""
        if self.length is None:
            return self.weight
        return self.weight * (self.length / self.weight.norm(dim=1))[:, None]

    def forward(self, x: Float[Tensor, "*b dim"], weight: Float[Tensor, "out dim"]) -> Float[Tensor, "*b out"]:
        """`weight` is the result of `compute_weight`, which decoding computes once for all steps."""
        return F.linear(x, weight, self.bias)


def gather_neighbors(padded: Float[Tensor, "B W D"], *, kernel: int, dilation: int) -> Float[Tensor, "B T kD"]:
    """Concatenate each position with the kernel - 1 positions after it, `dilation` apart."""
    length = padded.shape[1] - (kernel - 1) * dilation
    return torch.cat([padded[:, j * dilation : j * dilation + length] for j in range(kernel)], -1)


# ---- attention


@dataclass(frozen=True)
class AttentionSource:
    """Memory for the attention of all blocks: keys z, values m sqrt(1/m) (z + e) for m real positions, and the mask.

    z are the reader's states and z + e the memory's values, or z where it has none.
    """

    keys: Float[Tensor, "B S D"]
    values: Float[Tensor, "B S D"]
    allowed: Bool[Tensor, "B 1 S"]

    @classmethod
    def from_memory(cls, memory: Memory) -> "AttentionSource":
        values = memory.states if memory.values is None else memory.values
        scale = memory.padding.sum(1).sqrt().to(values.dtype)  # m sqrt(1/m)
        return cls(memory.states, values * scale[:, None, None], memory.padding[:, None])

    def select_rows(self, indices: Int[Tensor, " C"]) -> "AttentionSource":
        return AttentionSource(*(part.index_select(0, indices) for part in (self.keys, self.values, self.allowed)))


class ConvS2SAttention(nn.Module):
    """d_i = W h_i + b + g_i, a_ij = softmax(d_i . z_j), c_i = sum_j a_ij (z_j + e_j) (Gehring et al. 2017).

    `score` replaces the dot product d_i . z_j.

    h are the states of this layer, g the target embeddings, z the states and e the embeddings of the source. Sums are
    scaled by sqrt(0.5), and c by m sqrt(1/m) for m positions, which preserves variances (section 3.4).
    """

    def __init__(self, dim: int, *, memory_dim: int, weight_norm: bool, score: Score | None = None) -> None:
        super().__init__()
        self.score, self.score_problem = score, explain_not_static(score)
        self.query = WeightNormLinear(dim, memory_dim, weight_norm=weight_norm)
        self.out = WeightNormLinear(memory_dim, dim, weight_norm=weight_norm)

    def compute_weights(self) -> Weights:
        return self.query.compute_weight(), self.out.compute_weight()

    def forward(
        self,
        h: Float[Tensor, "B T D"],
        target_embeddings: Float[Tensor, "B T M"],
        source: AttentionSource,
        weights: Weights,
    ) -> Float[Tensor, "B T D"]:
        query_weight, out_weight = weights
        query = (self.query(h, query_weight) + target_embeddings) * SQRT_HALF
        score = dot if self.score is None else self._compute_scores
        context, attention = attend(query, source.keys, source.values, score=score, mask=source.allowed)
        if is_recording():
            record_weights(self, attention[:, None])
        return (self.out(context, out_weight) + h) * SQRT_HALF

    def _compute_scores(self, query: Float[Tensor, "B T M"], key: Float[Tensor, "B S M"]) -> Float[Tensor, "B T S"]:
        return score_projected(self.score, query, project_keys(self.score, key))


# ---- blocks


class GatedBlock(nn.Module):
    """h' = (GLU(W [h_{i-k/2} ... h_{i+k/2}] + b) + h_i) sqrt(0.5), GLU([A; B]) = A sigmoid(B) (Gehring et al. 2017).

    A writer's block attends to memory between the gate and the sum. Where `input_dim` is another width than `dim`, a
    linear map takes h to the width of the sum.
    """

    def __init__(
        self,
        dim: int,
        *,
        kernel: int,
        input_dim: int | None = None,
        dilation: int = 1,
        dropout: float = 0.0,
        weight_norm: bool = True,
        cross: ConvS2SAttention | None = None,
    ) -> None:
        super().__init__()
        width = dim if input_dim is None else input_dim
        self.kernel, self.dilation, self.width = kernel, dilation, width
        self.dropout = Dropout(dropout)
        # The gate divides the variance by 4, dropout multiplies it by 1 / (1 - p) (appendix A).
        self.convolution = WeightNormLinear(kernel * width, 2 * dim, weight_norm=weight_norm, gain=4 * (1 - dropout))
        self.shortcut = None if width == dim else WeightNormLinear(width, dim, weight_norm=weight_norm)
        self.cross = cross

    def compute_weights(self) -> Weights:
        parts = [self.convolution.compute_weight()]
        parts += [] if self.shortcut is None else [self.shortcut.compute_weight()]
        return *parts, *(() if self.cross is None else self.cross.compute_weights())

    def forward(
        self,
        x: Float[Tensor, "B T I"],
        gather: NeighborGather,
        weights: Weights,
        target_embeddings: Tensor,
        source: AttentionSource | None,
    ) -> Float[Tensor, "B T D"]:
        first, *rest = weights
        y = F.glu(self.convolution(gather(self.dropout(x)), first), -1)
        if self.shortcut is not None:
            x = self.shortcut(x, rest.pop(0))
        if self.cross is not None and source is not None:
            y = self.cross(y, target_embeddings, source, tuple(rest))
        return (y + x) * SQRT_HALF


class ResidualBlock(nn.Module):
    """x + W_3 f(conv(f(W_1 f(x)))), f = ReLU of a layer norm (Kalchbrenner et al. 2016, figure 3, left).

    The convolution has fewer features (`hidden_dim`) than the residual stream.
    """

    def __init__(
        self,
        dim: int,
        *,
        hidden_dim: int,
        kernel: int,
        dilation: int = 1,
        dropout: float = 0.0,
        weight_norm: bool = False,
        cross: ConvS2SAttention | None = None,
    ) -> None:
        super().__init__()
        self.kernel, self.dilation, self.width = kernel, dilation, hidden_dim
        self.norms = nn.ModuleList(nn.LayerNorm(size) for size in (dim, hidden_dim, hidden_dim))
        # ReLU halves the second moment of normalized inputs.
        self.narrow = WeightNormLinear(dim, hidden_dim, weight_norm=weight_norm, gain=2.0)
        self.convolution = WeightNormLinear(kernel * hidden_dim, hidden_dim, weight_norm=weight_norm, gain=2.0)
        self.widen = WeightNormLinear(hidden_dim, dim, weight_norm=weight_norm)
        self.dropout = Dropout(dropout)
        self.cross = cross

    def compute_weights(self) -> Weights:
        own = (part.compute_weight() for part in (self.narrow, self.convolution, self.widen))
        return *own, *(() if self.cross is None else self.cross.compute_weights())

    def forward(
        self,
        x: Float[Tensor, "B T D"],
        gather: NeighborGather,
        weights: Weights,
        target_embeddings: Tensor,
        source: AttentionSource | None,
    ) -> Float[Tensor, "B T D"]:
        first, second, third = self.norms
        y = self.narrow(F.relu(first(x)), weights[0])
        y = self.convolution(gather(F.relu(second(y))), weights[1])
        y = self.widen(F.relu(third(y)), weights[2])
        if self.cross is not None and source is not None:
            y = self.cross(y, target_embeddings, source, weights[3:])
        return x + self.dropout(y)


def run_block(
    block: Any,
    dilation: int,
    x: Tensor,
    mask: Tensor | None,
    causal: bool,
    target_embeddings: Tensor,
    source: AttentionSource | None,
) -> Float[Tensor, "B T D"]:
    """Apply a block to all positions at once; positions where `mask` is False are treated as zero padding.

    The dilation is an argument of its own, so that blocks of all dilations share one compiled graph.
    """
    padding = (block.kernel - 1) * dilation
    left = padding if causal else padding // 2

    def gather(y: Tensor) -> Tensor:
        y = y if mask is None else y.masked_fill(~mask[..., None], 0.0)
        return gather_neighbors(F.pad(y, (0, 0, left, padding - left)), kernel=block.kernel, dilation=dilation)

    return block(x, gather, block.compute_weights(), target_embeddings, source)


def checkpoint_block(
    block: Any,
    dilation: int,
    x: Tensor,
    mask: Tensor | None,
    causal: bool,
    target_embeddings: Tensor,
    source: AttentionSource | None,
) -> Float[Tensor, "B T D"]:
    """`run_block` with activation checkpointing: activations are recomputed in the backward pass."""
    return checkpoint(run_block, block, dilation, x, mask, causal, target_embeddings, source, use_reentrant=False)


PLAIN_BLOCK, CHECKPOINTED_BLOCK = region(run_block), region(checkpoint_block)
