"""The weights of a Transformer decoder in plain terms: all that the kernels of a decoding step know of a model.

A stack or writer exports them with `describe_step()`, whatever blocks it is made of, and raises `Unsupported` where
they cannot express what it computes. Products that were laid out for a CPU (`cpu/fma.py`, `cpu/vnni.py`) stand for
their weights; as these do not change any more, the same description should be returned each time: what C needs is
prepared once for each.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from saccade.kernels.cpu.native import NativeProduct


class Unsupported(Exception):
    """A fast path cannot express a part; the message says which and why."""


@dataclass(frozen=True, eq=False)
class LinearWeights:
    """x W^T + b, as plain tensors, or as a product that was prepared for C, or as neither of both."""

    weight: Tensor | None = None  # (..., K); all axes but the last are outputs
    bias: Tensor | None = None
    native: NativeProduct | None = None

    @property
    def matrix(self) -> Tensor:
        """(N, K), of a plain product."""
        if self.weight is None:
            raise Unsupported("its products are prepared for another kernel")
        return self.weight.flatten(0, -2)

    @property
    def vector(self) -> Tensor | None:
        """The bias (N), where there is one."""
        return None if self.bias is None else self.bias.flatten()

    @property
    def prepared(self) -> NativeProduct:
        if self.native is None:
            raise Unsupported("its products are not prepared for C")
        return self.native


@runtime_checkable
class HeadProduct(Protocol):
    """A product that gives each head its vectors."""

    shape: tuple[int, int, int]  # heads, vectors of each, features of a vector

    def describe(self) -> LinearWeights: ...


@dataclass(frozen=True, eq=False)
class NormWeights:
    """LayerNorm, RMSNorm, or nothing at all."""

    kind: Literal["none", "layer", "rms"] = "none"
    weight: Tensor | None = None
    bias: Tensor | None = None
    epsilon: float = 0.0


@dataclass(frozen=True, eq=False)
class AttentionWeights:
    """Multi-head attention: to itself, query, key and value in one product; or to memory, with the query alone."""

    project: LinearWeights
    out: LinearWeights
    heads: int
    head_dim: int
    scale: float
    rotary_base: float | None = None


@dataclass(frozen=True, eq=False)
class FeedForwardWeights:
    """down(activation(up(x)) * gate(x)), where there is a gate."""

    up: LinearWeights
    gate: LinearWeights | None
    down: LinearWeights
    activation: str


@dataclass(frozen=True, eq=False)
class BlockWeights:
    """Sublayers, each added to the residual stream, and their norms in the order of use."""

    attention: AttentionWeights
    cross: AttentionWeights | None
    feedforward: FeedForwardWeights
    norms: tuple[NormWeights, ...]
    window: int | None
    stochastic_depth: bool


@dataclass(frozen=True, eq=False)
class StackWeights:
    """Blocks that are all pre-norm or all post-norm, and the norm behind them."""

    blocks: tuple[BlockWeights, ...]
    norm: NormWeights
    dim: int
    pre_norm: bool


@runtime_checkable
class PositionTable(Protocol):
    """Positions that are vectors, one for each place; their number may be limited."""

    max_length: int | None

    def make_table(self, length: int, device: torch.device) -> Tensor:
        """The vectors of the first `length` positions, or of all that there are (L, D)."""
        ...


@dataclass(frozen=True, eq=False)
class EmbeddingWeights:
    """Token vectors times `scale`, plus those of their positions."""

    tokens: Tensor  # (V, D); of int8, each row times its number in `token_scales`
    token_scales: Tensor | None
    scale: float
    positions: PositionTable | None
    rows: Callable[[Tensor], Tensor]  # ids -> the rows of `tokens` in which they are looked up


@dataclass(frozen=True, eq=False)
class WriterWeights:
    """Embedding, stack and the product to the vocabulary."""

    embedding: EmbeddingWeights
    stack: StackWeights
    output: LinearWeights


def describe_linear(part: nn.Module) -> LinearWeights:
    """The weights of an `nn.Linear`, or a product that was prepared in its place."""
    if isinstance(part, NativeProduct):
        return LinearWeights(native=part)
    return LinearWeights(part.weight, part.bias) if isinstance(part, nn.Linear) else LinearWeights()


def describe_norm(part: nn.Module) -> NormWeights:
    match part:
        case nn.LayerNorm() if part.weight is not None and part.bias is not None:
            return NormWeights("layer", part.weight, part.bias, part.eps)
        case nn.RMSNorm() if part.weight is not None and part.eps is not None:
            return NormWeights("rms", part.weight, None, part.eps)
        case nn.Identity():
            return NormWeights()
    raise Unsupported(f"its norm ({type(part).__name__}) is not a LayerNorm or RMSNorm with weights")
