"""One Triton kernel for the gradient of an activation and the gradient of the bias before it.

Separate kernels would read the same gradients twice. Import only where Triton is installed.
"""

from typing import no_type_check

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from saccade.kernels.activations import FUSED_BACKWARD

ROWS, COLUMNS, ROW_BLOCKS, WARPS = 32, 128, 16, 4  # a program processes ROW_BLOCKS blocks of ROWS x COLUMNS


@triton.jit
@no_type_check
def _derivative(x, KIND: tl.constexpr):
    """The derivative at x of activation KIND, an index into FUSED_BACKWARD; for relu x may also be its output."""
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
    grad_output, x_or_output, grad_x, bias_sums, rows, width,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, ROW_BLOCKS: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for block in range(ROW_BLOCKS):
        row = (tl.program_id(1) * ROW_BLOCKS + block) * ROWS + tl.arange(0, ROWS)
        valid = (row < rows)[:, None] & inside[None, :]
        at = row.to(tl.int64)[:, None] * width + column[None, :]
        x = tl.load(x_or_output + at, mask=valid, other=0.0).to(tl.float32)
        gradient = tl.load(grad_output + at, mask=valid, other=0.0).to(tl.float32) * _derivative(x, KIND)
        rounded = gradient.to(grad_x.dtype.element_ty)
        tl.store(grad_x + at, rounded, mask=valid)
        total += rounded.to(tl.float32)
    tl.store(bias_sums + tl.program_id(1) * width + column, tl.sum(total, 0), mask=inside)


@torch.library.custom_op("saccade::activated", mutates_args=())
def activate(x: Tensor, bias: Tensor, kind: str) -> Tensor:
    """The activation of x, which includes `bias` already; `bias` is an argument to get its gradient here."""
    if kind == "relu":
        return F.relu(x)
    return F.gelu(x, approximate="tanh" if kind == "gelu-tanh" else "none")


@torch.library.custom_op("saccade::activated_backward", mutates_args=())
def activate_backward(grad_output: Tensor, x_or_output: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """The gradients of x, and of the bias in float32."""
    grad_output, x_or_output = grad_output.contiguous(), x_or_output.contiguous()
    width = x_or_output.shape[-1]
    rows = x_or_output.numel() // width
    programs = triton.cdiv(rows, ROWS * ROW_BLOCKS)
    grad_x = torch.empty_like(x_or_output)
    bias_sums = torch.empty(programs, width, dtype=torch.float32, device=x_or_output.device)
    _backward[(triton.cdiv(width, COLUMNS), programs)](
        grad_output, x_or_output, grad_x, bias_sums, rows, width, ROWS=ROWS, COLUMNS=COLUMNS, ROW_BLOCKS=ROW_BLOCKS,
        KIND=FUSED_BACKWARD.index(kind), num_warps=WARPS,
    )  # fmt: skip
    return grad_x, bias_sums.sum(0)


@activate.register_fake
def _(x, bias, kind):  # type: ignore[no-untyped-def]
    return torch.empty_like(x)


@activate_backward.register_fake
def _(grad_output, x_or_output, kind):  # type: ignore[no-untyped-def]
    grad_x = torch.empty_like(x_or_output, memory_format=torch.contiguous_format)
    return grad_x, x_or_output.new_empty(x_or_output.shape[-1], dtype=torch.float32)


def _save(ctx, inputs, output):  # type: ignore[no-untyped-def]
    x, bias, ctx.kind = inputs
    ctx.bias_dtype = bias.dtype
    ctx.save_for_backward(output if ctx.kind == "relu" else x)  # the output of relu is stored for the next layer anyway


def _gradients(ctx, grad_output):  # type: ignore[no-untyped-def]
    grad_x, bias_sums = activate_backward(grad_output, *ctx.saved_tensors, ctx.kind)
    return grad_x, bias_sums.to(ctx.bias_dtype), None


activate.register_autograd(_gradients, setup_context=_save)
