"""Convolutions over time: the gated block of ConvS2S with its attention, and the residual block of ByteNet.

A kernel of width k joins k positions, `dilation` apart, into one vector, and one product does the rest. A reader's
kernel looks to both sides, a writer's only back. W is the length of a text and of what stands around it.
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

from saccade.layers.attention.scores import attend, dot
from saccade.layers.dropout import Dropout
from saccade.layers.memory import Memory
from saccade.layers.record import keep, recording
from saccade.layers.regions import region

HALF = math.sqrt(0.5)  # times a sum of two: its variance is then that of one (Gehring et al. 2017, section 3.4)
Around = Callable[[Tensor], Tensor]  # (B, T, D) -> (B, T, kD): each position with its neighbours
Matrices = tuple[Tensor, ...]


class Product(nn.Module):
    """W x + b; weight-normed, W has a length and a direction for each output (Salimans and Kingma 2016, equation 2)."""

    def __init__(self, dim: int, out: int, *, weight_norm: bool, gain: float = 1.0) -> None:
        """The variance of the output is `gain` times that of the input."""
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out, dim))
        nn.init.normal_(self.weight, std=math.sqrt(gain / dim))
        self.length = nn.Parameter(self.weight.detach().norm(dim=1)) if weight_norm else None
        self.bias = nn.Parameter(torch.zeros(out))

    def matrix(self) -> Float[Tensor, "out dim"]:
        """W = g v / |v|"""
        if self.length is None:
            return self.weight
        return self.weight * (self.length / self.weight.norm(dim=1))[:, None]

    def forward(self, x: Float[Tensor, "*b dim"], matrix: Float[Tensor, "out dim"]) -> Float[Tensor, "*b out"]:
        """The matrix is given, so that whoever writes word by word makes it once."""
        return F.linear(x, matrix, self.bias)


def neighbours(wide: Float[Tensor, "B W D"], *, kernel: int, dilation: int) -> Float[Tensor, "B T kD"]:
    """Each position with those after it that its kernel joins."""
    length = wide.shape[1] - (kernel - 1) * dilation
    return torch.cat([wide[:, j * dilation : j * dilation + length] for j in range(kernel)], -1)


# ---- attention


@dataclass(frozen=True)
class Read:
    """What all layers ask: keys z, values m sqrt(1/m) (z + e) for m real positions, and which positions are real.

    Without another sum of values (z + e) these are the keys.
    """

    keys: Float[Tensor, "B S D"]
    values: Float[Tensor, "B S D"]
    allowed: Bool[Tensor, "B 1 S"]

    @classmethod
    def of(cls, memory: Memory) -> "Read":
        values = memory.states if memory.values is None else memory.values
        scale = memory.padding.sum(1).sqrt().to(values.dtype)  # m sqrt(1/m)
        return cls(memory.states, values * scale[:, None, None], memory.padding[:, None])

    def rows(self, indices: Int[Tensor, " C"]) -> "Read":
        return Read(*(part.index_select(0, indices) for part in (self.keys, self.values, self.allowed)))


class MemoryAttention(nn.Module):
    """d_i = W h_i + b + g_i, a_ij = softmax(d_i . z_j), c_i = sum_j a_ij (z_j + e_j) (Gehring et al. 2017).

    h are the states of this layer, g the embeddings of what was written, z the states and e the embeddings of what was
    read. Sums are scaled by sqrt(0.5), and c by m sqrt(1/m) for m positions, so that variances stay (section 3.4).
    """

    def __init__(self, dim: int, *, memory_dim: int, weight_norm: bool) -> None:
        super().__init__()
        self.query = Product(dim, memory_dim, weight_norm=weight_norm)
        self.out = Product(memory_dim, dim, weight_norm=weight_norm)

    def matrices(self) -> Matrices:
        return self.query.matrix(), self.out.matrix()

    def forward(
        self, h: Float[Tensor, "B T D"], written: Float[Tensor, "B T M"], read: Read, matrices: Matrices
    ) -> Float[Tensor, "B T D"]:
        ask, answer = matrices
        query = (self.query(h, ask) + written) * HALF
        context, weights = attend(query, read.keys, read.values, score=dot, mask=read.allowed)
        if recording():
            keep(self, weights[:, None])
        return (self.out(context, answer) + h) * HALF


# ---- blocks


class GatedBlock(nn.Module):
    """h' = (GLU(W [h_{i-k/2} ... h_{i+k/2}] + b) + h_i) sqrt(0.5), GLU([A; B]) = A sigmoid(B) (Gehring et al. 2017).

    A writer's block attends to memory between the gate and the sum.
    """

    def __init__(
        self,
        dim: int,
        *,
        kernel: int,
        dilation: int = 1,
        dropout: float = 0.0,
        weight_norm: bool = True,
        cross: MemoryAttention | None = None,
    ) -> None:
        super().__init__()
        self.kernel, self.dilation, self.width = kernel, dilation, dim
        self.dropout = Dropout(dropout)
        # A gate leaves a quarter of the variance, dropout adds 1 / (1 - p) of it (appendix A).
        self.convolution = Product(kernel * dim, 2 * dim, weight_norm=weight_norm, gain=4 * (1 - dropout))
        self.cross = cross

    def matrices(self) -> Matrices:
        return self.convolution.matrix(), *(() if self.cross is None else self.cross.matrices())

    def forward(
        self, x: Float[Tensor, "B T D"], around: Around, matrices: Matrices, written: Tensor, read: Read | None
    ) -> Float[Tensor, "B T D"]:
        first, *rest = matrices
        y = F.glu(self.convolution(around(self.dropout(x)), first), -1)
        if self.cross is not None and read is not None:
            y = self.cross(y, written, read, tuple(rest))
        return (y + x) * HALF


class ResidualBlock(nn.Module):
    """x + W_3 f(conv(f(W_1 f(x)))), f = ReLU of a layer norm (Kalchbrenner et al. 2016, figure 3, left).

    The convolution has fewer features than what runs along.
    """

    def __init__(
        self,
        dim: int,
        *,
        hidden: int,
        kernel: int,
        dilation: int = 1,
        dropout: float = 0.0,
        weight_norm: bool = False,
        cross: MemoryAttention | None = None,
    ) -> None:
        super().__init__()
        self.kernel, self.dilation, self.width = kernel, dilation, hidden
        self.norms = nn.ModuleList(nn.LayerNorm(size) for size in (dim, hidden, hidden))
        # ReLU leaves half of the variance of what it gets from a norm.
        self.narrow = Product(dim, hidden, weight_norm=weight_norm, gain=2.0)
        self.convolution = Product(kernel * hidden, hidden, weight_norm=weight_norm, gain=2.0)
        self.widen = Product(hidden, dim, weight_norm=weight_norm)
        self.dropout = Dropout(dropout)
        self.cross = cross

    def matrices(self) -> Matrices:
        own = (part.matrix() for part in (self.narrow, self.convolution, self.widen))
        return *own, *(() if self.cross is None else self.cross.matrices())

    def forward(
        self, x: Float[Tensor, "B T D"], around: Around, matrices: Matrices, written: Tensor, read: Read | None
    ) -> Float[Tensor, "B T D"]:
        first, second, third = self.norms
        y = self.narrow(F.relu(first(x)), matrices[0])
        y = self.convolution(around(F.relu(second(y))), matrices[1])
        y = self.widen(F.relu(third(y)), matrices[2])
        if self.cross is not None and read is not None:
            y = self.cross(y, written, read, matrices[3:])
        return x + self.dropout(y)


def over_text(
    block: Any, dilation: int, x: Tensor, real: Tensor | None, causal: bool, written: Tensor, read: Read | None
) -> Float[Tensor, "B T D"]:
    """One block over all positions at once; where `real` is given, no other position is seen.

    The block's dilation stands for itself, so that blocks of all dilations share one compiled graph.
    """
    reach = (block.kernel - 1) * dilation
    left = reach if causal else reach // 2

    def around(y: Tensor) -> Tensor:
        y = y if real is None else y.masked_fill(~real[..., None], 0.0)
        return neighbours(F.pad(y, (0, 0, left, reach - left)), kernel=block.kernel, dilation=dilation)

    return block(x, around, block.matrices(), written, read)


def over_text_twice(
    block: Any, dilation: int, x: Tensor, real: Tensor | None, causal: bool, written: Tensor, read: Read | None
) -> Float[Tensor, "B T D"]:
    """The same, but nothing inside is kept for the backward pass: it is computed once more."""
    return checkpoint(over_text, block, dilation, x, real, causal, written, read, use_reentrant=False)


KEPT, RECOMPUTED = region(over_text), region(over_text_twice)
