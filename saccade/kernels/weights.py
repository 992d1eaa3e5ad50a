"""A description of the weights of a Transformer decoder, from which the kernels of a decoding step compute.

A stack or writer returns it from `describe_step()`, and raises `Unsupported` where it cannot express what the stack
computes. Weights packed for a CPU (`cpu/fma.py`, `cpu/vnni.py`) are described by their linear layer. As these are
constant, the same description should be returned each time: C structures are prepared once per description.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from saccade.kernels.cpu.native import NativeLinear


class Unsupported(Exception):
    """Raised where a fast path does not support a part; the message has the part and the reason."""


@dataclass(frozen=True, eq=False)
class LinearWeights:
    """A linear layer x W^T + b: plain tensors, a packed layer for C, or neither where it is packed otherwise."""

    weight: Tensor | None = None  # (..., K): all axes but the last are outputs
    bias: Tensor | None = None
    native: NativeLinear | None = None

    @property
    def matrix(self) -> Tensor:
        """The weight as a matrix (N, K); raises `Unsupported` for packed weights."""
        if self.weight is None:
            raise Unsupported("its weights are packed for another kernel")
        return self.weight.flatten(0, -2)

    @property
    def vector(self) -> Tensor | None:
        """The bias (N), if there is one."""
        return None if self.bias is None else self.bias.flatten()

    @property
    def native_linear(self) -> NativeLinear:
        if self.native is None:
            raise Unsupported("its weights are not packed for C")
        return self.native


@runtime_checkable
class HeadLinear(Protocol):
    """A projection to several vectors per head, such as `HeadProjection`."""

    shape: tuple[int, int, int]  # heads, vectors per head, features of a vector

    def describe(self) -> LinearWeights: ...


@dataclass(frozen=True, eq=False)
class NormWeights:
    """LayerNorm, RMSNorm or no norm."""

    kind: Literal["none", "layer", "rms"] = "none"
    weight: Tensor | None = None
    bias: Tensor | None = None
    epsilon: float = 0.0


@dataclass(frozen=True, eq=False)
class AttentionWeights:
    """Multi-head attention: `project` computes query, key and value in self-attention, only the query in
    cross-attention."""

    project: LinearWeights
    out: LinearWeights
    heads: int
    head_dim: int
    scale: float
    rotary_base: float | None = None


@dataclass(frozen=True, eq=False)
class FeedForwardWeights:
    """down(activation(up(x)) * gate(x)), or without `gate` down(activation(up(x)))."""

    up: LinearWeights
    gate: LinearWeights | None
    down: LinearWeights
    activation: str


@dataclass(frozen=True, eq=False)
class BlockWeights:
    """The sublayers of a block, each with a residual connection, and their norms in order."""

    attention: AttentionWeights
    cross: AttentionWeights | None
    feedforward: FeedForwardWeights
    norms: tuple[NormWeights, ...]
    window: int | None
    stochastic_depth: bool


@dataclass(frozen=True, eq=False)
class StackWeights:
    """Blocks, all pre-norm or all post-norm, and the final norm."""

    blocks: tuple[BlockWeights, ...]
    norm: NormWeights
    dim: int
    pre_norm: bool


@runtime_checkable
class PositionTable(Protocol):
    """Absolute positional encodings; `max_length` is None where their number is not limited."""

    max_length: int | None

    def make_table(self, length: int, device: torch.device) -> Tensor:
        """The encodings (L, D) of at least the first `length` positions."""
        ...


@dataclass(frozen=True, eq=False)
class EmbeddingWeights:
    """Token embeddings times `scale`, plus positional encodings."""

    tokens: Tensor  # (V, D); int8 rows are multiplied by `token_scales`
    token_scales: Tensor | None
    scale: float
    positions: PositionTable | None
    rows: Callable[[Tensor], Tensor]  # token ids -> rows of `tokens`


@dataclass(frozen=True, eq=False)
class WriterWeights:
    """Embedding, stack and output projection."""

    embedding: EmbeddingWeights
    stack: StackWeights
    output: LinearWeights


def describe_linear(part: nn.Module) -> LinearWeights:
    """Describe an `nn.Linear`, or the packed layer in its place."""
    if isinstance(part, NativeLinear):
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
