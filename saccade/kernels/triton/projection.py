"""The projection to queries, keys and values, with one Triton kernel that stacks their gradients and sums them for the
bias.

Separate kernels would read the stacked gradients again. Import only where Triton is installed.
"""

from typing import Any, no_type_check

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS, ROW_BLOCKS, WARPS = 16, 128, 16, 4  # a program processes ROW_BLOCKS blocks of ROWS x COLUMNS
PARTS = 3


@triton.jit
@no_type_check
def _stack(  # noqa: PLR0913
    first, second, third, stacked, sums, rows, width,
    EACH: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, ROW_BLOCKS: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    target = (column // EACH) * (PARTS * EACH) + column % EACH
    for part in tl.static_range(PARTS):
        source = first if part == 0 else second if part == 1 else third
        total = tl.zeros([ROWS, COLUMNS], tl.float32)
        for block in range(ROW_BLOCKS):
            row = (tl.program_id(1) * ROW_BLOCKS + block) * ROWS + tl.arange(0, ROWS)
            valid = (row < rows)[:, None] & inside[None, :]
            at = row.to(tl.int64)[:, None] * width
            x = tl.load(source + at + column[None, :], mask=valid, other=0.0)
            tl.store(stacked + PARTS * at + (part * EACH + target)[None, :], x, mask=valid)
            total += x.to(tl.float32)
        tl.store(
            sums + tl.program_id(1) * (PARTS * width) + part * EACH + target, tl.sum(total, 0), mask=inside
        )  # fmt: skip


@torch.library.custom_op("saccade::stacked", mutates_args=())
def stack_gradients(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """(B, T, H, E) each -> (B, T, H, 3, E), and its sums over B and T in float32."""
    query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
    batch, length, heads, each = query.shape
    rows, width = batch * length, heads * each
    programs = triton.cdiv(rows, ROWS * ROW_BLOCKS)
    stacked = query.new_empty(batch, length, heads, PARTS, each)
    sums = query.new_empty(programs, heads, PARTS, each, dtype=torch.float32)
    _stack[(triton.cdiv(width, COLUMNS), programs)](
        query, key, value, stacked, sums, rows, width,
        EACH=each, PARTS=PARTS, ROWS=ROWS, COLUMNS=COLUMNS, ROW_BLOCKS=ROW_BLOCKS, num_warps=WARPS,
    )  # fmt: skip
    return stacked, sums.sum(0)


@stack_gradients.register_fake
def _(query, key, value):  # type: ignore[no-untyped-def]
    batch, length, heads, each = query.shape
    stacked = query.new_empty(batch, length, heads, PARTS, each)
    return stacked, query.new_empty(heads, PARTS, each, dtype=torch.float32)


class _Project(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        y = F.linear(x, weight.flatten(0, 2), bias.flatten())
        return y.unflatten(-1, bias.shape).unbind(-2)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        x, weight, _ = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, ...]:
        x, weight = ctx.saved_tensors
        stacked, sums = stack_gradients(*grad_outputs)
        flat = stacked.flatten(2)
        grad_weight = flat.flatten(0, 1).T @ x.flatten(0, 1)
        return flat @ weight.flatten(0, 2), grad_weight.view(weight.shape), sums.to(x.dtype)


def project_qkv(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value (B, T, H, E) of x (B, T, D), given weight (H, 3, E, D) and bias (H, 3, E)."""
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
    return _Project.apply(*(part.to(dtype) for part in (x, weight, bias)))
