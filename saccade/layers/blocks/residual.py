"""What stands around every sublayer: normalisation, dropout, and the sum with what went in.

On a GPU in training, a sum and the norm that follows it are one kernel. So in a pre-norm stack, where the next norm
belongs to the next sublayer, a sum waits until it comes.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from saccade.layers.attention.backends import TRITON

WIDEST = 8192  # numbers of a row that one program of the kernel holds


class Late(NamedTuple):
    """total + dropout(more), still to be added."""

    total: Float[Tensor, "B T D"]
    more: Float[Tensor, "B T D"]


def entered(x: Tensor | Late, norm: nn.Module, dropout: nn.Dropout) -> tuple[Tensor, Tensor]:
    """What runs along, all added up, and its norm for the next sublayer."""
    if isinstance(x, Tensor):
        return x, normalised(x, norm)
    if not fuses(x.total, norm):
        total = settled(x, dropout)
        return total, norm(total)
    normal, total = _fused(x.total, x.more, norm, dropout, narrow=True)
    return total, normal


def normalised(
    x: Float[Tensor, "B T D"], norm: nn.Module, *, plus: Tensor | None = None, dropout: nn.Dropout | None = None
) -> Float[Tensor, "B T D"]:
    """norm(x), or norm(x + dropout(plus))"""
    if fuses(x, norm):
        return _fused(x, plus, norm, dropout, narrow=plus is None)[0]
    if plus is None:
        return norm(x)
    return norm(x + (plus if dropout is None else dropout(plus)))


def settled(x: Tensor | Late, dropout: nn.Dropout) -> Float[Tensor, "B T D"]:
    """All added up."""
    if isinstance(x, Tensor):
        return x
    if not (fuses(x.total) and share_of(dropout)):
        return x.total + dropout(x.more)
    from saccade.kernels.triton.norm import add_dropped

    return add_dropped(x.total, x.more, dropout.p)[0]


def fuses(x: Tensor, norm: nn.Module | None = None) -> bool:
    """Whether the kernels serve here: in training on a GPU; elsewhere there is no backward pass to save."""
    known = norm is None or (isinstance(norm, nn.LayerNorm | nn.RMSNorm) and norm.weight is not None)
    fits = x.shape[-1] <= WIDEST and x.dtype != torch.float64
    return known and fits and TRITON and x.is_cuda and torch.is_grad_enabled()


def share_of(dropout: nn.Dropout | None) -> float:
    """How much is dropped now."""
    return dropout.p if dropout is not None and dropout.training else 0.0


def _fused(
    x: Tensor, more: Tensor | None, norm: Any, dropout: nn.Dropout | None, *, narrow: bool
) -> tuple[Tensor, Tensor]:
    """The norm, and what was normalised where something was added.

    What only matrix products read may be as narrow as they make it anyway; what runs along stays as wide as it is.
    """
    from saccade.kernels.triton.norm import add_norm

    kind = torch.get_autocast_dtype("cuda") if narrow and torch.is_autocast_enabled("cuda") else x.dtype
    epsilon = torch.finfo(x.dtype).eps if norm.eps is None else norm.eps
    centres = isinstance(norm, nn.LayerNorm)
    bias = norm.bias if centres else None
    normal, total, *_ = add_norm(x, more, norm.weight, bias, share_of(dropout), epsilon, centres, kind)
    return normal, total
