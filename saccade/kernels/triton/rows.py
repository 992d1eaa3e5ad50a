"""Triton kernels with one program per row: token embedding and norm. See `decode.py` for OVERLAP."""
# ruff: noqa: PLR0913  # kernels have many arguments

from typing import no_type_check

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from saccade.kernels.triton.decode import _load_float, _normalize, _row_moments


@triton.jit
@no_type_check
def embed_row(
    ids, table, lengths, positions, out, stats, d, scale,
    POSITIONS: tl.constexpr, OVERLAP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out = table[id] * scale + positions[length], and the moments of each row."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    valid = at < d
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    index = tl.load(ids + row).to(tl.int64)
    value = _load_float(table + index * d, at, valid) * scale
    if POSITIONS:
        position = tl.load(lengths + row).to(tl.int64)
        value = value.to(out.dtype.element_ty).to(tl.float32) + _load_float(positions + position * d, at, valid)
    result = value.to(out.dtype.element_ty)
    tl.store(out + row.to(tl.int64) * d + at, result, mask=valid)
    value = tl.where(valid, result.to(tl.float32), 0.0)
    mean = tl.sum(value, 0) / d
    centered = tl.where(valid, value - mean, 0.0)
    tl.store(stats + row * 2, mean)
    tl.store(stats + row * 2 + 1, tl.sum(centered * centered, 0))


@triton.jit
@no_type_check
def normalize_row(x, weight, bias, eps, out, d, NORM: tl.constexpr, OVERLAP: tl.constexpr, BLOCK: tl.constexpr):
    """out = norm(x)."""
    at = tl.arange(0, BLOCK)
    valid = at < d
    start = tl.program_id(0).to(tl.int64) * d
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    row = _load_float(x + start, at, valid)
    mean, factor = _row_moments(row, valid, d, eps, NORM)
    value = _normalize(row, mean, factor, weight, bias, at, valid, NORM)
    tl.store(out + start + at, value.to(out.dtype.element_ty), mask=valid)
