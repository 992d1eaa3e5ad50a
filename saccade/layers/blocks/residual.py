"""The residual stream: sublayers add to it, and each reads it through a norm.

In a pre-norm stack an add and the norm that follows it belong to two sublayers. So a stack carries two tensors, the
output of the last sublayer (`hidden`) and the sum of all before it (`residual`), and the add waits for the next norm:
on a GPU in training both are one kernel.
"""

from typing import Literal, TypeGuard

import torch
from jaxtyping import Float
from torch import Tensor, nn

from saccade.layers.attention.backends import TRITON
from saccade.layers.dropout import Dropout, DropRows
from saccade.layers.norm import LayerNorm, RMSNorm

WIDEST = 8192  # numbers of a row that one program of the kernel holds


def add_and_normalize(
    hidden: Float[Tensor, "B T D"], residual: Float[Tensor, "B T D"] | None, norm: nn.Module, dropout: nn.Dropout
) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B T D"]]:
    """Add dropout(hidden) to the residual stream; return its normalized value and the new residual stream.

    At the beginning of a stack there is no residual yet: `hidden` itself is the stream.
    """
    if residual is None:
        if can_fuse(norm, hidden):
            return fused_add_norm(hidden, None, norm, None, dtype=product_dtype(hidden))[0], hidden
        return norm(hidden), hidden
    if can_fuse(norm, residual):
        return fused_add_norm(residual, hidden, norm, dropout, dtype=product_dtype(residual))
    total = residual + dropout(hidden)
    return norm(total), total


class Residual(nn.Module):
    """The residual connection and the norm of one sublayer f.

    Post-norm is LayerNorm(x + f(x)), as in the paper; pre-norm is x + f(LayerNorm(x)), more stable when deep. Where
    nothing `adds`, the sublayer stands alone: LayerNorm(f(x)) or f(LayerNorm(x)). With `skip`, f contributes nothing to
    this share of the rows of a batch in training (stochastic depth).
    """

    def __init__(
        self, norm: nn.Module, *, order: Literal["post", "pre"], dropout: float, adds: bool = True, skip: float = 0.0
    ) -> None:
        super().__init__()
        self.norm, self.pre, self.adds = norm, order == "pre", adds
        self.dropout = Dropout(dropout)
        self.skip = DropRows(skip) if skip else None

    def before(
        self, hidden: Float[Tensor, "B T D"], residual: Float[Tensor, "B T D"] | None
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B T D"] | None]:
        """The input of the sublayer and the residual stream: pre-norm adds and normalizes, post-norm does nothing."""
        if not self.pre:
            return hidden, hidden
        if not self.adds:
            return self.norm(hidden), None
        return add_and_normalize(hidden, residual, self.norm, self.dropout)

    def after(
        self, hidden: Float[Tensor, "B T D"], residual: Float[Tensor, "B T D"] | None
    ) -> tuple[Float[Tensor, "B T D"], Float[Tensor, "B T D"] | None]:
        """What follows the sublayer: post-norm adds and normalizes, pre-norm leaves the add to the next norm."""
        if self.skip is not None:
            hidden = self.skip(hidden)
        if not self.adds:
            return self.dropout(hidden) if self.pre else self.norm(self.dropout(hidden)), None
        if self.pre:
            return hidden, residual
        assert residual is not None, "post-norm has remembered the input"
        if can_fuse(self.norm, residual):
            return fused_add_norm(residual, hidden, self.norm, self.dropout, dtype=residual.dtype)[0], None
        return self.norm(residual + self.dropout(hidden)), None


# ---- one kernel for the add, the dropout and the norm


def can_fuse(norm: nn.Module, x: Float[Tensor, "B T D"]) -> TypeGuard[LayerNorm | RMSNorm]:
    """Whether the kernel applies: the norm declares it, in training on a GPU; elsewhere no backward pass is saved."""
    declared = getattr(norm, "fused_add", False) and norm.weight is not None
    fits = x.shape[-1] <= WIDEST and x.dtype != torch.float64
    return declared and fits and TRITON and x.is_cuda and torch.is_grad_enabled()


def product_dtype(x: Tensor) -> torch.dtype:
    """The type to which autocast converts the inputs of matrix products: what only they read may have it already."""
    return torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype


def fused_add_norm(
    residual: Tensor,
    hidden: Tensor | None,
    norm: LayerNorm | RMSNorm,
    dropout: nn.Dropout | None,
    *,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """The norm as `dtype`, and residual + dropout(hidden), which is as wide as the residual stream is."""
    from saccade.kernels.triton.norm import add_norm

    epsilon = torch.finfo(residual.dtype).eps if norm.eps is None else norm.eps
    share = dropout.p if dropout is not None and dropout.training else 0.0
    normal, total, *_ = add_norm(residual, hidden, norm.weight, norm.bias, share, epsilon, norm.subtracts_mean, dtype)
    return normal, total
