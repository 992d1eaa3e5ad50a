"""Triton kernels of one decoding step: products of a few rows with all weights, and attention to what was written.

Weights are read once, at full bandwidth; everything small between two products (normalisation, bias, activation,
residual) happens inside of them. `fast_step.py` calls them in order, the blocks themselves are the reference.

A sum (R, D) whose normalisation is still due goes on as it is, together with the mean and the squared deviations of
each part of a row, so that whoever reads it normalises while reading.

With OVERLAP a kernel starts while the one before it is still running (programmatic dependent launch). It says so itself
after it has waited for its own predecessor: so what was written two kernels ago may be read before the wait, and what
the last kernel writes only after it. Weights, and all else that is there early, are read before.

no_type_check: Triton reads the source of these functions, and a checker around them would be in its way.
"""
# ruff: noqa: PLR0913, SIM102  # a kernel has no other way to get what it needs; only a bare constant is no branch

from typing import no_type_check

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

NORMS = {"none": 0, "layer": 1, "rms": 2}
NO_RESIDUAL = -1
ACTIVATIONS = {"none": 0, "relu": 1, "gelu": 2, "gelu-tanh": 3, "silu": 4, "sigmoid": 5}


@triton.jit
@no_type_check
def _activate(x, KIND: tl.constexpr):
    if KIND == 1:
        x = tl.maximum(x, 0.0)
    elif KIND == 2:
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif KIND == 3:
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        x = x * tl.sigmoid(2.0 * inner)  # (1 + tanh(y)) / 2 = sigmoid(2 y)
    elif KIND == 4:
        x = x * tl.sigmoid(x)
    elif KIND == 5:
        x = tl.sigmoid(x)
    return x


@triton.jit
@no_type_check
def _row_moments(row, real, n, eps, NORM: tl.constexpr):
    """What to subtract from one whole row, and what to multiply it with."""
    mean = 0.0
    if NORM == 1:
        mean = tl.sum(row, 0) / n
    away = tl.where(real, row - mean, 0.0)
    return mean, tl.rsqrt(tl.sum(away * away, 0) / n + eps)


@triton.jit
@no_type_check
def _moments(stats, rows, real, parts, width, n, eps, NORM: tl.constexpr, PARTS: tl.constexpr):
    """The same for several rows, from the mean and the squared deviations of each part (Chan et al. 1979)."""
    part = tl.arange(0, PARTS)
    count = tl.maximum(tl.minimum(n - part * width, width), 0).to(tl.float32)[None, :]
    at = stats + (rows[:, None] * parts + part[None, :]) * 2
    there = real[:, None] & (part < parts)[None, :]
    means = tl.load(at, mask=there, other=0.0)
    squares = tl.load(at + 1, mask=there, other=0.0)
    mean = tl.sum(means * count, 1) / n
    away = means - mean[:, None]
    square = tl.sum(squares + count * away * away, 1) / n
    if NORM == 2:
        square += mean * mean
        mean = mean * 0.0
    return mean, tl.rsqrt(square + eps)


@triton.jit
@no_type_check
def _column(pointer, at, real):
    """One number for each column."""
    return tl.load(pointer + at, mask=real, other=0.0).to(tl.float32)


@triton.jit
@no_type_check
def _scaled(x, mean, factor, weight, bias, at, real, NORM: tl.constexpr):
    """x normalised, with the norm's own weight and bias at the columns `at`."""
    x = (x - mean) * factor * _column(weight, at, real)
    if NORM == 1:
        x += _column(bias, at, real)
    return x


@triton.jit
@no_type_check
def _ahead(pointers, there):
    """Asks for lines of memory that will be needed soon, without waiting for them."""
    tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.ne.s32 p, $2, 0; @p prefetch.global.L2 [$1]; mov.u32 $0, 0; }", "=r,l,r",
        [pointers.to(tl.int64), there.to(tl.int32)], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
@no_type_check
def one_row(
    x, norm_weight, norm_bias, eps, weight, bias, gate, gate_bias, residual, residual_weight, residual_bias,
    residual_eps, out, n, k: tl.constexpr,
    NORM: tl.constexpr, RESIDUAL: tl.constexpr, ACTIVATION: tl.constexpr, BIAS: tl.constexpr, GATED: tl.constexpr,
    OVERLAP: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """out = residual + act(norm(x) W^T + b) for a single row; a norm needs the whole row in one block."""
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    real = columns < n
    at = tl.arange(0, BLOCK_K)
    place = columns.to(tl.int64)[:, None] * k + at[None, :]
    inside = real[:, None] & (at < k)[None, :]
    block = tl.load(weight + place, mask=inside, other=0.0)
    total = tl.zeros([BLOCK_N], tl.float32)
    gated = tl.zeros([BLOCK_N], tl.float32)
    if GATED:
        gate_block = tl.load(gate + place, mask=inside, other=0.0)
    if BIAS:
        total += _column(bias, columns, real)
        if GATED:
            gated += _column(gate_bias, columns, real)
    if NORM > 0:
        stretch = _column(norm_weight, at, at < k)
    if NORM == 1:
        shift = _column(norm_bias, at, at < k)
    if RESIDUAL >= 0:
        other = _column(residual, columns, real)
    if RESIDUAL > 0:
        all_at = tl.arange(0, BLOCK_R)
        mean, factor = _row_moments(_column(residual, all_at, all_at < n), all_at < n, n, residual_eps, RESIDUAL)
        other = _scaled(other, mean, factor, residual_weight, residual_bias, columns, real, RESIDUAL)
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    row = _column(x, at, at < k)
    if NORM > 0:
        mean, factor = _row_moments(row, at < k, k, eps, NORM)
        row = (row - mean) * factor * stretch
    if NORM == 1:
        row += shift
    row = row.to(weight.dtype.element_ty).to(tl.float32)[None, :]
    total += tl.sum(block.to(tl.float32) * row, 1)
    if GATED:
        gated += tl.sum(gate_block.to(tl.float32) * row, 1)
    for start in range(BLOCK_K, k, BLOCK_K):
        more = start + at
        inside = real[:, None] & (more < k)[None, :]
        rest = _column(x, more, more < k)[None, :]
        total += tl.sum(tl.load(weight + place + start, mask=inside, other=0.0).to(tl.float32) * rest, 1)
        if GATED:
            gated += tl.sum(tl.load(gate + place + start, mask=inside, other=0.0).to(tl.float32) * rest, 1)
    total = _activate(total, ACTIVATION)
    if GATED:
        total *= gated
    if RESIDUAL >= 0:
        total += other
    tl.store(out + columns, total.to(out.dtype.element_ty), mask=real)


@triton.jit
@no_type_check
def _finish(
    total, gated, other, rows, columns, here, real, out, stats, n,
    RESIDUAL: tl.constexpr, ACTIVATION: tl.constexpr, GATED: tl.constexpr, STATS: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Activation, gate and residual of a block of sums, and the moments of what comes out."""
    inside = here[:, None] & real[None, :]
    total = _activate(total, ACTIVATION)
    if GATED:
        total *= gated
    if RESIDUAL >= 0:
        total += other
    result = total.to(out.dtype.element_ty)
    tl.store(out + rows.to(tl.int64)[:, None] * n + columns[None, :], result, mask=inside)
    if STATS:
        count = tl.minimum(n - tl.program_id(0) * BLOCK_N, BLOCK_N).to(tl.float32)
        value = tl.where(inside, result.to(tl.float32), 0.0)
        mean = tl.sum(value, 1) / count
        away = tl.where(inside, value - mean[:, None], 0.0)
        at = stats + (rows * tl.num_programs(0) + tl.program_id(0)) * 2
        tl.store(at, mean, mask=here)
        tl.store(at + 1, tl.sum(away * away, 1), mask=here)


@triton.jit
@no_type_check
def _products(
    x, mean, factor, norm_weight, norm_bias, weight, gate, rows, columns, here, real, first, k: tl.constexpr,
    NORM: tl.constexpr, GATED: tl.constexpr, SHARE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """norm(x) W^T and, where there is a gate, norm(x) G^T, over SHARE blocks of columns of x."""
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    gated = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    x_rows = x + rows.to(tl.int64)[:, None] * k
    w_columns = columns.to(tl.int64)[None, :] * k
    for index in range(SHARE):
        at = first + index * BLOCK_K + tl.arange(0, BLOCK_K)
        inside = at < k
        part = tl.load(x_rows + at[None, :], mask=here[:, None] & inside[None, :], other=0.0)
        if NORM > 0:
            part = _scaled(
                part.to(tl.float32), mean, factor, norm_weight, norm_bias, at[None, :], inside[None, :], NORM
            ).to(weight.dtype.element_ty)
        there = real[None, :] & inside[:, None]
        block = tl.load(weight + w_columns + at[:, None], mask=there, other=0.0)
        total = tl.dot(part, block, total, input_precision="ieee")
        if GATED:
            block = tl.load(gate + w_columns + at[:, None], mask=there, other=0.0)
            gated = tl.dot(part, block, gated, input_precision="ieee")
    return total, gated


@triton.jit
@no_type_check
def _all_parts(total, partial, counters, SPLIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """The sum of all parts of a block, for the program that comes last; the others only leave theirs."""
    tile = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    size = BLOCK_M * BLOCK_N
    own = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    base = partial + tile.to(tl.int64) * SPLIT * size + own
    tl.store(base + tl.program_id(2) * size, total)
    tl.debug_barrier()  # all of this program's sums are written before it says so
    last = tl.atomic_add(counters + tile, 1, sem="acq_rel") == SPLIT - 1
    if last:
        total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for share in tl.static_range(SPLIT):  # in this order, whoever came last
            total += tl.load(base + share * size, cache_modifier=".cg")
        tl.store(counters + tile, 0)
    return total, last


@triton.jit
@no_type_check
def several_rows(
    x, x_stats, x_parts, x_width, norm_weight, norm_bias, eps, weight, bias, gate, gate_bias,
    residual, residual_stats, residual_parts, residual_width, residual_weight, residual_bias, residual_eps,
    out, stats, partial, counters, m, n, k: tl.constexpr,
    NORM: tl.constexpr, RESIDUAL: tl.constexpr, ACTIVATION: tl.constexpr, BIAS: tl.constexpr, GATED: tl.constexpr,
    STATS: tl.constexpr, OVERLAP: tl.constexpr, SPLIT: tl.constexpr, PARTS: tl.constexpr, RESIDUAL_PARTS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """The same for several rows; with SPLIT, parts of a sum are made side by side and added by whoever comes last."""
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    rows = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    here, real = rows < m, columns < n
    SHARE: tl.constexpr = (k + BLOCK_K * SPLIT - 1) // (BLOCK_K * SPLIT)  # blocks of each part
    first = tl.program_id(2) * SHARE * BLOCK_K
    if OVERLAP:
        if tl.program_id(1) == 0:
            for start in tl.static_range(0, SHARE * BLOCK_K, 64):
                _ahead(weight + columns.to(tl.int64) * k + first + start, real & (first + start < k))
    other = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    mean, factor = 0.0, 1.0
    if RESIDUAL >= 0:
        place = rows.to(tl.int64)[:, None] * n + columns[None, :]
        other = _column(residual, place, here[:, None] & real[None, :])
    if RESIDUAL > 0:
        means, factors = _moments(
            residual_stats, rows, here, residual_parts, residual_width, n, residual_eps, RESIDUAL, RESIDUAL_PARTS
        )
        other = _scaled(
            other, means[:, None], factors[:, None], residual_weight, residual_bias, columns[None, :], real[None, :],
            RESIDUAL,
        )  # fmt: skip
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    if NORM > 0:
        means, factors = _moments(x_stats, rows, here, x_parts, x_width, k, eps, NORM, PARTS)
        mean, factor = means[:, None], factors[:, None]
    total, gated = _products(
        x, mean, factor, norm_weight, norm_bias, weight, gate, rows, columns, here, real, first, k,
        NORM, GATED, SHARE, BLOCK_M, BLOCK_N, BLOCK_K,
    )  # fmt: skip
    last = True
    if SPLIT > 1:
        total, last = _all_parts(total, partial, counters, SPLIT, BLOCK_M, BLOCK_N)
    if last:
        if BIAS:
            total += _column(bias, columns, real)[None, :]
            if GATED:
                gated += _column(gate_bias, columns, real)[None, :]
        _finish(
            total, gated, other, rows, columns, here, real, out, stats, n, RESIDUAL, ACTIVATION, GATED, STATS, BLOCK_N
        )
