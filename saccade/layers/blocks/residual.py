"""Residual connections and norms of sublayers.

In a pre-norm stack, the addition at the end of a sublayer and the norm at the beginning of the next one can be a single
kernel. So a stack carries two tensors, the output of the last sublayer (`hidden`) and the sum of all before it
(`residual`), and the addition is deferred to the next norm, as in flash-attn and vLLM.
"""

from typing import Literal, TypeGuard

import torch
from jaxtyping import Float
from torch import Tensor, nn

from saccade.layers.attention.backends import HAS_TRITON
from saccade.layers.dropout import Dropout, DropPath
from saccade.layers.norm import LayerNorm, RMSNorm

MAX_FUSED_WIDTH = 8192  # features that one program of the kernel can normalize


def add_and_normalize(
    hidden: Float[Tensor, "B T D"], residual: Float[Tensor, "B T D"] | None, norm: nn.Module, dropout: nn.Dropout
) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B T D"]]:
    """Add dropout(hidden) to the residual stream; return its normalized value and the new residual stream.

    At the beginning of a stack `residual` is None: `hidden` itself is the residual stream.
    """
    if residual is None:
        if can_fuse(norm, hidden):
            return fused_add_norm(hidden, None, norm, None, dtype=get_matmul_dtype(hidden))[0], hidden
        return norm(hidden), hidden
    if can_fuse(norm, residual):
        return fused_add_norm(residual, hidden, norm, dropout, dtype=get_matmul_dtype(residual))
    total = residual + dropout(hidden)
    return norm(total), total


class Residual(nn.Module):
    """The residual connection and the norm of one sublayer f.

    Post-norm is LayerNorm(x + f(x)), as in Vaswani et al. 2017; pre-norm is x + f(LayerNorm(x)), which trains more
    stably in deep stacks. With `adds` False there is no residual connection: LayerNorm(f(x)) or f(LayerNorm(x)).
    `drop_path` is the probability that f is skipped for a row of the batch in training (stochastic depth).
    """

    def __init__(
        self,
        norm: nn.Module,
        *,
        order: Literal["post", "pre"],
        dropout: float,
        adds: bool = True,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self.norm, self.pre_norm, self.adds = norm, order == "pre", adds
        self.dropout = Dropout(dropout)
        self.skip = DropPath(drop_path) if drop_path else None

    def begin_sublayer(
        self, hidden: Float[Tensor, "B T D"], residual: Float[Tensor, "B T D"] | None
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B T D"] | None]:
        """The sublayer's input and the residual stream: pre-norm does the deferred addition and normalizes."""
        if not self.pre_norm:
            return hidden, hidden
        if not self.adds:
            return self.norm(hidden), None
        return add_and_normalize(hidden, residual, self.norm, self.dropout)

    def end_sublayer(
        self, hidden: Float[Tensor, "B T D"], residual: Float[Tensor, "B T D"] | None
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B T D"] | None]:
        """Hidden states and residual stream after the sublayer: post-norm adds and normalizes, pre-norm defers that."""
        if self.skip is not None:
            hidden = self.skip(hidden)
        if not self.adds:
            return self.dropout(hidden) if self.pre_norm else self.norm(self.dropout(hidden)), None
        if self.pre_norm:
            return hidden, residual
        assert residual is not None, "begin_sublayer returns the input as residual"
        if can_fuse(self.norm, residual):
            return fused_add_norm(residual, hidden, self.norm, self.dropout, dtype=residual.dtype)[0], None
        return self.norm(residual + self.dropout(hidden)), None


# ---- one GPU kernel for dropout, addition and norm


def can_fuse(norm: nn.Module, x: Float[Tensor, "B T D"]) -> TypeGuard[LayerNorm | RMSNorm]:
    """Whether the kernel applies: the norm declares `fused_add`, on a GPU with gradients enabled."""
    declared = getattr(norm, "fused_add", False) and norm.weight is not None
    fits = x.shape[-1] <= MAX_FUSED_WIDTH and x.dtype != torch.float64
    return declared and fits and HAS_TRITON and x.is_cuda and torch.is_grad_enabled()


def get_matmul_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which a linear layer reads x: that of autocast where it is enabled."""
    return torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype


def fused_add_norm(
    residual: Tensor,
    hidden: Tensor | None,
    norm: LayerNorm | RMSNorm,
    dropout: nn.Dropout | None,
    *,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """The normalized sum in `dtype`, and the sum residual + dropout(hidden) in the dtype of the residual stream."""
    from saccade.kernels.triton.norm import add_norm

    epsilon = torch.finfo(residual.dtype).eps if norm.eps is None else norm.eps
    rate = dropout.p if dropout is not None and dropout.training else 0.0
    normalized, total, *_ = add_norm(
        residual, hidden, norm.weight, norm.bias, rate, epsilon, norm.subtracts_mean, dtype
    )
    return normalized, total
