"""Residual, dropout and normalisation as one Triton kernel for each direction.

Apart, they pass over the same numbers five times and more; together once. Dropout's mask is never stored: it follows
from a seed, and the backward pass draws it again. Equal to norm(x + dropout(y)) of torch.
"""

from typing import no_type_check

import torch
import triton
import triton.language as tl
from torch import Tensor

TURNS = 8  # groups of rows over which a program of the backward pass adds up the gradients of weight and bias


@triton.jit
@no_type_check
def _kept(seed, row, share, columns: tl.constexpr):
    """The mask of dropout for some rows: four numbers from each draw."""
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
    there = (row < rows)[:, None] & (column < width)[None, :]
    at = row.to(tl.int64)[:, None] * width + column[None, :]
    value = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
    if ADDS:
        more = tl.load(y + at, mask=there, other=0.0).to(tl.float32)
        if DROPS:
            more = tl.where(_kept(tl.load(seed), row, share, COLUMNS), more / (1 - share), 0.0)
        value += more
    if KEEPS:
        tl.store(total + at, value.to(total.dtype.element_ty), mask=there)
    middle = tl.zeros([ROWS], tl.float32)
    if CENTRES:
        middle = tl.sum(value, 1) / width
    away = tl.where(there, value - middle[:, None], 0.0)
    scale = 1 / tl.sqrt(tl.sum(away * away, 1) / width + epsilon)
    tl.store(mean + row, middle, mask=row < rows)
    tl.store(rate + row, scale, mask=row < rows)
    result = away * scale[:, None] * tl.load(weight + column, mask=column < width, other=0.0)[None, :]
    if SHIFTS:
        result += tl.load(bias + column, mask=column < width, other=0.0)[None, :]
    tl.store(out + at, result.to(out.dtype.element_ty), mask=there)


@triton.jit
@no_type_check
def _backward(  # noqa: PLR0913
    dout, dtotal, total, weight, mean, rate, dx, dy, dweight, dbias, seed, rows, width, share,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, ADDS: tl.constexpr, DROPS: tl.constexpr,
    CENTRES: tl.constexpr, SHIFTS: tl.constexpr, JOINS: tl.constexpr, TURNS: tl.constexpr,
):  # fmt: skip
    column = tl.arange(0, COLUMNS)
    inside = column < width
    of_weight, of_bias = tl.zeros([ROWS, COLUMNS], tl.float32), tl.zeros([ROWS, COLUMNS], tl.float32)
    scales = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    for turn in range(TURNS):
        row = (turn * tl.num_programs(0) + tl.program_id(0)) * ROWS + tl.arange(0, ROWS)
        there = (row < rows)[:, None] & inside[None, :]
        at = row.to(tl.int64)[:, None] * width + column[None, :]
        gradient = tl.load(dout + at, mask=there, other=0.0).to(tl.float32)
        middle = tl.load(mean + row, mask=row < rows, other=0.0)
        scale = tl.load(rate + row, mask=row < rows, other=0.0)
        value = tl.load(total + at, mask=there, other=0.0).to(tl.float32)
        normal = tl.where(there, (value - middle[:, None]) * scale[:, None], 0.0)
        of_weight += gradient * normal
        if SHIFTS:
            of_bias += gradient
        inner = gradient * scales[None, :]
        away = normal * (tl.sum(inner * normal, 1) / width)[:, None]
        if CENTRES:
            away += (tl.sum(inner, 1) / width)[:, None]
        gradient = (inner - away) * scale[:, None]
        if JOINS:
            gradient += tl.load(dtotal + at, mask=there, other=0.0).to(tl.float32)
        tl.store(dx + at, gradient.to(dx.dtype.element_ty), mask=there)
        if ADDS:
            if DROPS:
                gradient = tl.where(_kept(tl.load(seed), row, share, COLUMNS), gradient / (1 - share), 0.0)
            tl.store(dy + at, gradient.to(dy.dtype.element_ty), mask=there)
    part = tl.program_id(0) * width + column
    tl.store(dweight + part, tl.sum(of_weight, 0), mask=inside)
    if SHIFTS:
        tl.store(dbias + part, tl.sum(of_bias, 0), mask=inside)


def _sizes(x: Tensor) -> dict[str, int]:
    columns = max(triton.next_power_of_2(x.shape[-1]), 16)
    rows = max(1, 2048 // columns)
    return {"ROWS": rows, "COLUMNS": columns, "num_warps": 4 if rows * columns <= 4096 else 8}


def _seed(y: Tensor, share: float) -> Tensor:
    """A new seed on the device, from torch's own random numbers."""
    return torch.empty((), dtype=torch.int64, device=y.device).random_() if share else y.new_empty(0, dtype=torch.int64)


@torch.library.custom_op("saccade::add_norm", mutates_args=())
def add_norm(
    x: Tensor, y: Tensor | None, weight: Tensor, bias: Tensor | None, share: float, epsilon: float, centres: bool,
    kind: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """norm(x + dropout(y)) of type `kind`; also what was normalised, its means and scales, and dropout's seed."""
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
    """Gradients of x, of y, which is of type `kind` where there is one, of weight, and of bias where it `shifts`."""
    rows, width = total.numel() // total.shape[-1], total.shape[-1]
    dx = torch.empty_like(total)
    dy = total.new_empty(0) if kind is None else torch.empty_like(total, dtype=kind)
    sizes = _sizes(total)
    programs = triton.cdiv(rows, sizes["ROWS"] * TURNS)
    dweight, dbias = (
        torch.empty(programs if wanted else 0, width, dtype=torch.float32, device=dx.device)
        for wanted in (True, shifts)
    )
    _backward[(programs,)](
        dout.contiguous(), total if dtotal is None else dtotal.contiguous(), total, weight, mean, rate, dx, dy, dweight,
        dbias, seed, rows, width, share, ADDS=kind is not None, DROPS=seed.numel() > 0, CENTRES=centres,
        SHIFTS=shifts, JOINS=dtotal is not None, TURNS=TURNS, **sizes,
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
    total = ctx.saved_tensors[0]
    alike = not ctx.share and ctx.kind == total.dtype  # then what was added has the gradient of the sum
    dx, dy, dweight, dbias = add_norm_backward(
        dout, dtotal, *ctx.saved_tensors, ctx.share, ctx.centres, ctx.shifts, None if alike else ctx.kind
    )
    of_more = dx if alike else None if ctx.kind is None else dy
    return dx, of_more, dweight, dbias if ctx.shifts else None, None, None, None, None


add_norm.register_autograd(_norm_gradients, setup_context=_save_norm)
