"""norm(x + dropout(y)) as one Triton kernel for the forward and one for the backward pass.

Separate kernels would pass over the same tensors five times or more. The dropout mask is never stored: the backward
pass generates it again from the seed. Equal to the composition in torch.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

ROW_GROUPS = 8  # groups of rows over which each backward program sums the gradients of weight and bias


@triton.jit
@no_type_check
def _make_dropout_mask(seed, row, share, columns: tl.constexpr):
    """The dropout mask of some rows; each random number generator call yields four values."""
    counters = row.to(tl.int64)[:, None] * (columns // 4) + tl.arange(0, columns // 4)[None, :]
    a, b, c, d = tl.randint4x(seed, counters)
    bits = tl.interleave(tl.interleave(a, c), tl.interleave(b, d))
    return tl.uint_to_uniform_float(bits) >= share


@triton.jit
@no_type_check
def _forward(  # noqa: PLR0913
    x, y, weight, bias, total, out, mean, rate, seed, rows, width, share, epsilon,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, ADDS: tl.constexpr, DROPS: tl.constexpr,
    CENTRES: tl.constexpr, SHIFTS: tl.constexpr, KEEPS: tl.constexpr,
):  # fmt: skip
    row, column = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    valid = (row < rows)[:, None] & (column < width)[None, :]
    at = row.to(tl.int64)[:, None] * width + column[None, :]
    value = tl.load(x + at, mask=valid, other=0.0).to(tl.float32)
    if ADDS:
        y_value = tl.load(y + at, mask=valid, other=0.0).to(tl.float32)
        if DROPS:
            y_value = tl.where(_make_dropout_mask(tl.load(seed), row, share, COLUMNS), y_value / (1 - share), 0.0)
        value += y_value
    if KEEPS:
        tl.store(total + at, value.to(total.dtype.element_ty), mask=valid)
    row_mean = tl.zeros([ROWS], tl.float32)
    if CENTRES:
        row_mean = tl.sum(value, 1) / width
    centered = tl.where(valid, value - row_mean[:, None], 0.0)
    scale = 1 / tl.sqrt(tl.sum(centered * centered, 1) / width + epsilon)
    tl.store(mean + row, row_mean, mask=row < rows)
    tl.store(rate + row, scale, mask=row < rows)
    result = centered * scale[:, None] * tl.load(weight + column, mask=column < width, other=0.0)[None, :]
    if SHIFTS:
        result += tl.load(bias + column, mask=column < width, other=0.0)[None, :]
    tl.store(out + at, result.to(out.dtype.element_ty), mask=valid)


@triton.jit
@no_type_check
def _backward(  # noqa: PLR0913
    dout, dtotal, total, weight, mean, rate, dx, dy, dweight, dbias, seed, rows, width, share,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, ADDS: tl.constexpr, DROPS: tl.constexpr,
    CENTRES: tl.constexpr, SHIFTS: tl.constexpr, JOINS: tl.constexpr, ROW_GROUPS: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, COLUMNS)
    inside = column < width
    weight_grad, bias_grad = tl.zeros([ROWS, COLUMNS], tl.float32), tl.zeros([ROWS, COLUMNS], tl.float32)
    scales = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    for group in range(ROW_GROUPS):
        row = (group * tl.num_programs(0) + tl.program_id(0)) * ROWS + tl.arange(0, ROWS)
        valid = (row < rows)[:, None] & inside[None, :]
        at = row.to(tl.int64)[:, None] * width + column[None, :]
        gradient = tl.load(dout + at, mask=valid, other=0.0).to(tl.float32)
        row_mean = tl.load(mean + row, mask=row < rows, other=0.0)
        scale = tl.load(rate + row, mask=row < rows, other=0.0)
        value = tl.load(total + at, mask=valid, other=0.0).to(tl.float32)
        normalized = tl.where(valid, (value - row_mean[:, None]) * scale[:, None], 0.0)
        weight_grad += gradient * normalized
        if SHIFTS:
            bias_grad += gradient
        inner = gradient * scales[None, :]
        centered = normalized * (tl.sum(inner * normalized, 1) / width)[:, None]
        if CENTRES:
            centered += (tl.sum(inner, 1) / width)[:, None]
        gradient = (inner - centered) * scale[:, None]
        if JOINS:
            gradient += tl.load(dtotal + at, mask=valid, other=0.0).to(tl.float32)
        tl.store(dx + at, gradient.to(dx.dtype.element_ty), mask=valid)
        if ADDS:
            if DROPS:
                gradient = tl.where(_make_dropout_mask(tl.load(seed), row, share, COLUMNS), gradient / (1 - share), 0.0)
            tl.store(dy + at, gradient.to(dy.dtype.element_ty), mask=valid)
    part = tl.program_id(0) * width + column
    tl.store(dweight + part, tl.sum(weight_grad, 0), mask=inside)
    if SHIFTS:
        tl.store(dbias + part, tl.sum(bias_grad, 0), mask=inside)


def _sizes(x: Tensor) -> dict[str, int]:
    columns = max(triton.next_power_of_2(x.shape[-1]), 16)
    rows = max(1, 2048 // columns)
    return {"ROWS": rows, "COLUMNS": columns, "num_warps": 4 if rows * columns <= 4096 else 8}


def _seed(y: Tensor, share: float) -> Tensor:
    """A new seed on the device, from torch's random number generator."""
    return torch.empty((), dtype=torch.int64, device=y.device).random_() if share else y.new_empty(0, dtype=torch.int64)


@torch.library.custom_op("saccade::add_norm", mutates_args=())
def add_norm(
    x: Tensor, y: Tensor | None, weight: Tensor, bias: Tensor | None, share: float, epsilon: float, centres: bool,
    kind: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """norm(x + dropout(y)) in dtype `kind`; also x + dropout(y), its means and 1 / std, and the seed of dropout."""
    x = x.contiguous()
    rows, width = x.numel() // x.shape[-1], x.shape[-1]
    out = torch.empty(x.shape, dtype=kind, device=x.device)
    total = torch.empty_like(x) if y is not None else x.new_empty(0)
    mean, rate = (torch.empty(rows, dtype=torch.float32, device=x.device) for _ in range(2))
    seed, sizes = _seed(x, share if y is not None else 0.0), _sizes(x)
    _forward[(triton.cdiv(rows, sizes["ROWS"]),)](
        x, x if y is None else y.contiguous(), weight, weight if bias is None else bias, total, out, mean, rate, seed,
        rows, width, share, epsilon, ADDS=y is not None, DROPS=seed.numel() > 0, CENTRES=centres,
        SHIFTS=bias is not None, KEEPS=y is not None, **sizes,
    )  # fmt: skip
    return out, total, mean, rate, seed


@torch.library.custom_op("saccade::add_norm_backward", mutates_args=())
def add_norm_backward(  # noqa: PLR0913
    dout: Tensor, dtotal: Tensor | None, total: Tensor, weight: Tensor, mean: Tensor, rate: Tensor, seed: Tensor,
    share: float, centres: bool, shifts: bool, kind: torch.dtype | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of x, of y in dtype `kind` (None without y), of the weight, and of the bias if the norm `shifts`."""
    rows, width = total.numel() // total.shape[-1], total.shape[-1]
    dx = torch.empty_like(total)
    dy = total.new_empty(0) if kind is None else torch.empty_like(total, dtype=kind)
    sizes = _sizes(total)
    programs = triton.cdiv(rows, sizes["ROWS"] * ROW_GROUPS)
    dweight, dbias = (
        torch.empty(programs if needed else 0, width, dtype=torch.float32, device=dx.device)
        for needed in (True, shifts)
    )
    _backward[(programs,)](
        dout.contiguous(), total if dtotal is None else dtotal.contiguous(), total, weight, mean, rate, dx, dy, dweight,
        dbias, seed, rows, width, share, ADDS=kind is not None, DROPS=seed.numel() > 0, CENTRES=centres,
        SHIFTS=shifts, JOINS=dtotal is not None, ROW_GROUPS=ROW_GROUPS, **sizes,
    )  # fmt: skip
    return dx, dy, dweight.sum(0), dbias.sum(0)


@add_norm.register_fake
def _(x, y, weight, bias, share, epsilon, centres, kind):  # type: ignore[no-untyped-def]
    rows = x.numel() // x.shape[-1]
    parts = [x.new_empty(rows, dtype=torch.float32) for _ in range(2)]
    seed = x.new_empty((), dtype=torch.int64) if share and y is not None else x.new_empty(0, dtype=torch.int64)
    total = torch.empty_like(x, memory_format=torch.contiguous_format) if y is not None else x.new_empty(0)
    return torch.empty(x.shape, dtype=kind, device=x.device), total, *parts, seed


@add_norm_backward.register_fake
def _(dout, dtotal, total, weight, mean, rate, seed, share, centres, shifts, kind):  # type: ignore[no-untyped-def]  # noqa: PLR0913
    dy = total.new_empty(0) if kind is None else torch.empty_like(total, dtype=kind)
    dbias = torch.empty_like(weight, dtype=torch.float32)
    return torch.empty_like(total), dy, torch.empty_like(weight, dtype=torch.float32), dbias


def _save_norm(ctx, inputs, output):  # type: ignore[no-untyped-def]
    x, y, weight, bias, ctx.share, _, ctx.centres, _ = inputs
    _, total, mean, rate, seed = output
    ctx.kind, ctx.shifts = None if y is None else y.dtype, bias is not None
    ctx.save_for_backward(x if y is None else total, weight, mean, rate, seed)
    ctx.set_materialize_grads(False)


def _norm_gradients(ctx, dout, dtotal, *others):  # type: ignore[no-untyped-def]
    total, *saved = ctx.saved_tensors  # read once: with recomputed activations a second time is an error
    same_gradient = not ctx.share and ctx.kind == total.dtype  # then y has the same gradient as x
    dx, dy, dweight, dbias = add_norm_backward(
        dout, dtotal, total, *saved, ctx.share, ctx.centres, ctx.shifts, None if same_gradient else ctx.kind
    )
    dy_or_dx = dx if same_gradient else None if ctx.kind is None else dy
    return dx, dy_or_dx, dweight, dbias if ctx.shifts else None, None, None, None, None


add_norm.register_autograd(_norm_gradients, setup_context=_save_norm)
