"""The gradients behind an activation, and their sums for the bias before it, as one Triton kernel.

Apart, the sums read again what the gradients were made of. Imported only where there is Triton.
"""

from typing import no_type_check

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from saccade.kernels.activations import FUSED_BACKWARD

ROWS, COLUMNS, TURNS, WARPS = 32, 128, 16, 4  # a program takes TURNS times so many rows of so many columns


@triton.jit
@no_type_check
def _slope(x, KIND: tl.constexpr):
    """The derivative of the activation of this number in FUSED_BACKWARD at x; of relu also where x is what came out."""
    if KIND == 0:
        return tl.where(x > 0, 1.0, 0.0)
    if KIND == 1:
        inside = 0.5 * (1 + tl.erf(x * 0.7071067811865476))
        return inside + x * tl.exp(-0.5 * x * x) * 0.3989422804014327
    square = x * x
    inner = x * (2.302208198 + 0.1029432396 * square)  # 2 sqrt(2 / pi) / ln(2) (x + 0.044715 x^3)
    lower = 1 / (1 + tl.exp2(inner))  # (1 - tanh) / 2
    upper = 1 - lower
    return upper + upper * lower * (x * (1.595769122 + 0.2140644488 * square))


@triton.jit
@no_type_check
def _backward(  # noqa: PLR0913
    above, before, slopes, sums, rows, width,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, TURNS: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for turn in range(TURNS):
        row = (tl.program_id(1) * TURNS + turn) * ROWS + tl.arange(0, ROWS)
        there = (row < rows)[:, None] & inside[None, :]
        at = row.to(tl.int64)[:, None] * width + column[None, :]
        x = tl.load(before + at, mask=there, other=0.0).to(tl.float32)
        gradient = tl.load(above + at, mask=there, other=0.0).to(tl.float32) * _slope(x, KIND)
        narrow = gradient.to(slopes.dtype.element_ty)
        tl.store(slopes + at, narrow, mask=there)
        total += narrow.to(tl.float32)
    tl.store(sums + tl.program_id(1) * width + column, tl.sum(total, 0), mask=inside)


@torch.library.custom_op("saccade::activated", mutates_args=())
def activated(x: Tensor, bias: Tensor, kind: str) -> Tensor:
    """The activation of x, in which `bias` has been added already: it is given so that it gets its gradient here."""
    if kind == "relu":
        return F.relu(x)
    return F.gelu(x, approximate="tanh" if kind == "gelu-tanh" else "none")


@torch.library.custom_op("saccade::activated_backward", mutates_args=())
def activated_backward(above: Tensor, before: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """Gradients of x, and of the bias in float32."""
    above, before = above.contiguous(), before.contiguous()
    width = before.shape[-1]
    rows = before.numel() // width
    programs = triton.cdiv(rows, ROWS * TURNS)
    slopes = torch.empty_like(before)
    sums = torch.empty(programs, width, dtype=torch.float32, device=before.device)
    _backward[(triton.cdiv(width, COLUMNS), programs)](
        above, before, slopes, sums, rows, width, ROWS=ROWS, COLUMNS=COLUMNS, TURNS=TURNS,
        KIND=FUSED_BACKWARD.index(kind), num_warps=WARPS,
    )  # fmt: skip
    return slopes, sums.sum(0)


@activated.register_fake
def _(x, bias, kind):  # type: ignore[no-untyped-def]
    return torch.empty_like(x)


@activated_backward.register_fake
def _(above, before, kind):  # type: ignore[no-untyped-def]
    slopes = torch.empty_like(before, memory_format=torch.contiguous_format)
    return slopes, before.new_empty(before.shape[-1], dtype=torch.float32)


def _save(ctx, inputs, output):  # type: ignore[no-untyped-def]
    x, bias, ctx.kind = inputs
    ctx.narrow = bias.dtype
    ctx.save_for_backward(output if ctx.kind == "relu" else x)  # relu's own result is kept for the next product anyway


def _gradients(ctx, above):  # type: ignore[no-untyped-def]
    slopes, sums = activated_backward(above, *ctx.saved_tensors, ctx.kind)
    return slopes, sums.to(ctx.narrow), None


activated.register_autograd(_gradients, setup_context=_save)
