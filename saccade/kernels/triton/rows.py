"""Triton kernels that take a row each: its embedding, its normalisation. See `decode_kernels.py` for OVERLAP."""
# ruff: noqa: PLR0913  # a kernel has no other way to get what it needs

from typing import no_type_check

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from saccade.kernels.triton.decode import _column, _row_moments, _scaled


@triton.jit
@no_type_check
def embed(
    ids, table, lengths, positions, out, stats, d, scale,
    POSITIONS: tl.constexpr, OVERLAP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out = table[id] * scale + positions[length], one program for each row, and its moments."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    real = at < d
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    index = tl.load(ids + row).to(tl.int64)
    value = _column(table + index * d, at, real) * scale
    if POSITIONS:
        place = tl.load(lengths + row).to(tl.int64)
        value = value.to(out.dtype.element_ty).to(tl.float32) + _column(positions + place * d, at, real)
    result = value.to(out.dtype.element_ty)
    tl.store(out + row.to(tl.int64) * d + at, result, mask=real)
    value = tl.where(real, result.to(tl.float32), 0.0)
    mean = tl.sum(value, 0) / d
    away = tl.where(real, value - mean, 0.0)
    tl.store(stats + row * 2, mean)
    tl.store(stats + row * 2 + 1, tl.sum(away * away, 0))


@triton.jit
@no_type_check
def normalise(x, weight, bias, eps, out, d, NORM: tl.constexpr, OVERLAP: tl.constexpr, BLOCK: tl.constexpr):
    """out = norm(x), one program for each row."""
    at = tl.arange(0, BLOCK)
    real = at < d
    start = tl.program_id(0).to(tl.int64) * d
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    row = _column(x + start, at, real)
    mean, factor = _row_moments(row, real, d, eps, NORM)
    value = _scaled(row, mean, factor, weight, bias, at, real, NORM)
    tl.store(out + start + at, value.to(out.dtype.element_ty), mask=real)
