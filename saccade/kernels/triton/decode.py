"""Triton kernels for the linear layers of one decoding step, with a few rows.

Weights are read once, at full bandwidth; norm, bias, activation and residual connection are fused into the matrix
products. `linear.py` launches these kernels and `step.py` calls them in order; the blocks are the reference.

A sum (R, D) that still has to be normalized is stored unnormalized, together with the mean and the squared deviations
of each part of a row, and is normalized by the kernel that reads it.

With OVERLAP a kernel starts while the previous one is still running (programmatic dependent launch). Each kernel allows
its successor to start only after it has waited for its predecessor. So results of the kernel before the previous one,
and weights, may be read before the wait, but results of the previous kernel only after it.

no_type_check: Triton parses the source of these functions, which a runtime type checker would wrap.
"""
# ruff: noqa: PLR0913, SIM102  # kernels have many arguments; `if` on a constexpr must stay a statement of its own

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
def _row_moments(row, valid_columns, n, eps, NORM: tl.constexpr):
    """The mean to subtract from a row (0 for RMSNorm), and the factor 1 / std."""
    mean = 0.0
    if NORM == 1:
        mean = tl.sum(row, 0) / n
    centered = tl.where(valid_columns, row - mean, 0.0)
    return mean, tl.rsqrt(tl.sum(centered * centered, 0) / n + eps)


@triton.jit
@no_type_check
def _moments(stats, rows, valid_rows, parts, width, n, eps, NORM: tl.constexpr, PARTS: tl.constexpr):
    """Mean and 1 / std of several rows, from the means and squared deviations of their parts (Chan et al. 1979)."""
    part = tl.arange(0, PARTS)
    count = tl.maximum(tl.minimum(n - part * width, width), 0).to(tl.float32)[None, :]
    at = stats + (rows[:, None] * parts + part[None, :]) * 2
    valid = valid_rows[:, None] & (part < parts)[None, :]
    means = tl.load(at, mask=valid, other=0.0)
    squares = tl.load(at + 1, mask=valid, other=0.0)
    mean = tl.sum(means * count, 1) / n
    centered = means - mean[:, None]
    square = tl.sum(squares + count * centered * centered, 1) / n
    if NORM == 2:
        square += mean * mean
        mean = mean * 0.0
    return mean, tl.rsqrt(square + eps)


@triton.jit
@no_type_check
def _load_float(pointer, at, valid_columns):
    """Load values as float32, 0 where masked."""
    return tl.load(pointer + at, mask=valid_columns, other=0.0).to(tl.float32)


@triton.jit
@no_type_check
def _normalize(x, mean, factor, weight, bias, at, valid_columns, NORM: tl.constexpr):
    """Normalize x and apply the weight and bias of the norm at the columns `at`."""
    x = (x - mean) * factor * _load_float(weight, at, valid_columns)
    if NORM == 1:
        x += _load_float(bias, at, valid_columns)
    return x


@triton.jit
@no_type_check
def _prefetch(pointers, valid):
    """Prefetch memory into the L2 cache."""
    tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.ne.s32 p, $2, 0; @p prefetch.global.L2 [$1]; mov.u32 $0, 0; }", "=r,l,r",
        [pointers.to(tl.int64), valid.to(tl.int32)], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
@no_type_check
def linear_one_row(
    x, norm_weight, norm_bias, eps, weight, bias, gate, gate_bias, residual, residual_weight, residual_bias,
    residual_eps, out, n, k: tl.constexpr,
    NORM: tl.constexpr, RESIDUAL: tl.constexpr, ACTIVATION: tl.constexpr, BIAS: tl.constexpr, GATED: tl.constexpr,
    OVERLAP: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """out = residual + activation(norm(x) W^T + b) for a single row; with a norm, the row must fit into one block."""
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    valid_columns = columns < n
    at = tl.arange(0, BLOCK_K)
    place = columns.to(tl.int64)[:, None] * k + at[None, :]
    inside = valid_columns[:, None] & (at < k)[None, :]
    block = tl.load(weight + place, mask=inside, other=0.0)
    total = tl.zeros([BLOCK_N], tl.float32)
    gated = tl.zeros([BLOCK_N], tl.float32)
    if GATED:
        gate_block = tl.load(gate + place, mask=inside, other=0.0)
    if BIAS:
        total += _load_float(bias, columns, valid_columns)
        if GATED:
            gated += _load_float(gate_bias, columns, valid_columns)
    if NORM > 0:
        norm_scale = _load_float(norm_weight, at, at < k)
    if NORM == 1:
        norm_shift = _load_float(norm_bias, at, at < k)
    if RESIDUAL >= 0:
        residual_value = _load_float(residual, columns, valid_columns)
    if RESIDUAL > 0:
        all_at = tl.arange(0, BLOCK_R)
        mean, factor = _row_moments(_load_float(residual, all_at, all_at < n), all_at < n, n, residual_eps, RESIDUAL)
        residual_value = _normalize(
            residual_value, mean, factor, residual_weight, residual_bias, columns, valid_columns, RESIDUAL
        )
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    row = _load_float(x, at, at < k)
    if NORM > 0:
        mean, factor = _row_moments(row, at < k, k, eps, NORM)
        row = (row - mean) * factor * norm_scale
    if NORM == 1:
        row += norm_shift
    row = row.to(weight.dtype.element_ty).to(tl.float32)[None, :]
    total += tl.sum(block.to(tl.float32) * row, 1)
    if GATED:
        gated += tl.sum(gate_block.to(tl.float32) * row, 1)
    for start in range(BLOCK_K, k, BLOCK_K):
        more = start + at
        inside = valid_columns[:, None] & (more < k)[None, :]
        rest = _load_float(x, more, more < k)[None, :]
        total += tl.sum(tl.load(weight + place + start, mask=inside, other=0.0).to(tl.float32) * rest, 1)
        if GATED:
            gated += tl.sum(tl.load(gate + place + start, mask=inside, other=0.0).to(tl.float32) * rest, 1)
    total = _activate(total, ACTIVATION)
    if GATED:
        total *= gated
    if RESIDUAL >= 0:
        total += residual_value
    tl.store(out + columns, total.to(out.dtype.element_ty), mask=valid_columns)


@triton.jit
@no_type_check
def _store_outputs(
    total, gated, residual_value, rows, columns, valid_rows, valid_columns, out, stats, n,
    RESIDUAL: tl.constexpr, ACTIVATION: tl.constexpr, GATED: tl.constexpr, STATS: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Apply activation, gate and residual to a block of sums; store the result and its moments."""
    inside = valid_rows[:, None] & valid_columns[None, :]
    total = _activate(total, ACTIVATION)
    if GATED:
        total *= gated
    if RESIDUAL >= 0:
        total += residual_value
    result = total.to(out.dtype.element_ty)
    tl.store(out + rows.to(tl.int64)[:, None] * n + columns[None, :], result, mask=inside)
    if STATS:
        count = tl.minimum(n - tl.program_id(0) * BLOCK_N, BLOCK_N).to(tl.float32)
        value = tl.where(inside, result.to(tl.float32), 0.0)
        mean = tl.sum(value, 1) / count
        centered = tl.where(inside, value - mean[:, None], 0.0)
        at = stats + (rows * tl.num_programs(0) + tl.program_id(0)) * 2
        tl.store(at, mean, mask=valid_rows)
        tl.store(at + 1, tl.sum(centered * centered, 1), mask=valid_rows)


@triton.jit
@no_type_check
def _accumulate_products(
    x, mean, factor, norm_weight, norm_bias, weight, gate, rows, columns, valid_rows, valid_columns, first,
    k: tl.constexpr,
    NORM: tl.constexpr, GATED: tl.constexpr, SHARE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """norm(x) W^T and, with a gate, norm(x) G^T, over SHARE blocks of columns of x."""
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    gated = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    x_rows = x + rows.to(tl.int64)[:, None] * k
    w_columns = columns.to(tl.int64)[None, :] * k
    for index in range(SHARE):
        at = first + index * BLOCK_K + tl.arange(0, BLOCK_K)
        inside = at < k
        part = tl.load(x_rows + at[None, :], mask=valid_rows[:, None] & inside[None, :], other=0.0)
        if NORM > 0:
            part = _normalize(
                part.to(tl.float32), mean, factor, norm_weight, norm_bias, at[None, :], inside[None, :], NORM
            ).to(weight.dtype.element_ty)
        valid = valid_columns[None, :] & inside[:, None]
        block = tl.load(weight + w_columns + at[:, None], mask=valid, other=0.0)
        total = tl.dot(part, block, total, input_precision="ieee")
        if GATED:
            block = tl.load(gate + w_columns + at[:, None], mask=valid, other=0.0)
            gated = tl.dot(part, block, gated, input_precision="ieee")
    return total, gated


@triton.jit
@no_type_check
def _reduce_splits(total, partial, counters, SPLIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Store the partial sum of this program; the program that finishes last gets the total of all splits."""
    tile = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    size = BLOCK_M * BLOCK_N
    own = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    base = partial + tile.to(tl.int64) * SPLIT * size + own
    tl.store(base + tl.program_id(2) * size, total)
    tl.debug_barrier()  # all sums are stored before the counter is incremented
    last = tl.atomic_add(counters + tile, 1, sem="acq_rel") == SPLIT - 1
    if last:
        total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for share in tl.static_range(SPLIT):  # a fixed order keeps results deterministic
            total += tl.load(base + share * size, cache_modifier=".cg")
        tl.store(counters + tile, 0)
    return total, last


@triton.jit
@no_type_check
def linear_several_rows(
    x, x_stats, x_parts, x_width, norm_weight, norm_bias, eps, weight, bias, gate, gate_bias,
    residual, residual_stats, residual_parts, residual_width, residual_weight, residual_bias, residual_eps,
    out, stats, partial, counters, m, n, k: tl.constexpr,
    NORM: tl.constexpr, RESIDUAL: tl.constexpr, ACTIVATION: tl.constexpr, BIAS: tl.constexpr, GATED: tl.constexpr,
    STATS: tl.constexpr, OVERLAP: tl.constexpr, SPLIT: tl.constexpr, PARTS: tl.constexpr, RESIDUAL_PARTS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Like `linear_one_row` for several rows; with SPLIT, the reduction is divided between that many programs."""
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    rows = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    valid_rows, valid_columns = rows < m, columns < n
    SHARE: tl.constexpr = (k + BLOCK_K * SPLIT - 1) // (BLOCK_K * SPLIT)  # blocks of columns of each split
    first = tl.program_id(2) * SHARE * BLOCK_K
    if OVERLAP:
        if tl.program_id(1) == 0:
            for start in tl.static_range(0, SHARE * BLOCK_K, 64):
                _prefetch(weight + columns.to(tl.int64) * k + first + start, valid_columns & (first + start < k))
    residual_value = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    mean, factor = 0.0, 1.0
    if RESIDUAL >= 0:
        place = rows.to(tl.int64)[:, None] * n + columns[None, :]
        residual_value = _load_float(residual, place, valid_rows[:, None] & valid_columns[None, :])
    if RESIDUAL > 0:
        means, factors = _moments(
            residual_stats, rows, valid_rows, residual_parts, residual_width, n, residual_eps, RESIDUAL, RESIDUAL_PARTS
        )
        residual_value = _normalize(
            residual_value, means[:, None], factors[:, None], residual_weight, residual_bias, columns[None, :],
            valid_columns[None, :], RESIDUAL,
        )  # fmt: skip
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    if NORM > 0:
        means, factors = _moments(x_stats, rows, valid_rows, x_parts, x_width, k, eps, NORM, PARTS)
        mean, factor = means[:, None], factors[:, None]
    total, gated = _accumulate_products(
        x, mean, factor, norm_weight, norm_bias, weight, gate, rows, columns, valid_rows, valid_columns, first, k,
        NORM, GATED, SHARE, BLOCK_M, BLOCK_N, BLOCK_K,
    )  # fmt: skip
    last = True
    if SPLIT > 1:
        total, last = _reduce_splits(total, partial, counters, SPLIT, BLOCK_M, BLOCK_N)
    if last:
        if BIAS:
            total += _load_float(bias, columns, valid_columns)[None, :]
            if GATED:
                gated += _load_float(gate_bias, columns, valid_columns)[None, :]
        _store_outputs(
            total, gated, residual_value, rows, columns, valid_rows, valid_columns, out, stats, n,
            RESIDUAL, ACTIVATION, GATED, STATS, BLOCK_N,
        )  # fmt: skip
