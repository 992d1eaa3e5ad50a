"""Triton kernels for what is written next: the best tokens of each row without the logits of the whole vocabulary.

A program takes a block of the vocabulary and leaves its best tokens and its part of the sum over all tokens; `merge`
puts them together. Which tokens may be written follows from three small things on the device: how far all rows are, how
long each may become, and what an output must begin with. See `decode_kernels.py` for OVERLAP.
"""
# ruff: noqa: PLR0913  # a kernel has no other way to get what it needs

from typing import no_type_check

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from saccade.kernels.triton.decode import _column, _row_moments

NEVER = tl.constexpr(float("-inf"))


@triton.jit
@no_type_check
def _rules(step, least, prefix, limits, sentence, there, end):
    """What the next token must be, or -1, and whether an output may end now."""
    written = tl.load(step)
    forced = tl.load(prefix + written).to(tl.int64)
    full = tl.load(limits + sentence, mask=there, other=0) <= written
    return tl.where(full, end, forced), written >= tl.load(least)


@triton.jit
@no_type_check
def _free(never, tokens, real, may_end, end):
    """Which tokens may be written where none is forced."""
    return (tl.load(never + tokens, mask=real, other=1) == 0) & (may_end | (tokens != end))


@triton.jit
@no_type_check
def head_one(
    x, norm_weight, norm_bias, eps, weight, step, least, prefix, limits, never, values, tokens, tops, totals, v, d, end,
    NORM: tl.constexpr, BEST: tl.constexpr, OVERLAP: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """For a single row, normalised here."""
    block = tl.program_id(0)
    columns = block * BLOCK_V + tl.arange(0, BLOCK_V)
    real = columns < v
    at = tl.arange(0, BLOCK_D)
    place = columns.to(tl.int64)[:, None] * d + at[None, :]
    table = tl.load(weight + place, mask=real[:, None] & (at < d)[None, :], other=0.0)
    if NORM > 0:
        stretch = _column(norm_weight, at, at < d)
    if NORM == 1:
        shift = _column(norm_bias, at, at < d)
    forced, may_end = _rules(step, least, prefix, limits, 0, True, end)
    fits = tl.where(forced >= 0, columns == forced, _free(never, columns, real, may_end, end)) & real
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    row = _column(x, at, at < d)
    if NORM > 0:
        mean, factor = _row_moments(row, at < d, d, eps, NORM)
        row = (row - mean) * factor * stretch
    if NORM == 1:
        row += shift
    row = row.to(weight.dtype.element_ty).to(tl.float32)
    logits = tl.sum(table.to(tl.float32) * row[None, :], 1)
    top = tl.max(tl.where(real, logits, NEVER), 0)
    tl.store(tops + block, top)
    tl.store(totals + block, tl.sum(tl.where(real, tl.exp(logits - top), 0.0), 0))
    logits = tl.where(fits, logits, NEVER)
    for rank in tl.static_range(BEST):
        value, index = tl.max(logits, 0, return_indices=True)
        tl.store(values + block * BEST + rank, value)
        tl.store(tokens + block * BEST + rank, tl.minimum(block * BLOCK_V + index, v - 1))
        logits = tl.where(columns == block * BLOCK_V + index, NEVER, logits)


@triton.jit
@no_type_check
def head_several(
    x, weight, step, least, prefix, limits, never, values, tokens, tops, totals, m, v, d: tl.constexpr, end, beams,
    BEST: tl.constexpr, OVERLAP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """For several rows, which are normalised already; `beams` rows belong to one sentence."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    block = tl.program_id(1)
    columns = block * BLOCK_V + tl.arange(0, BLOCK_V)
    here, real = rows < m, columns < v
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    logits = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)
    x_rows = x + rows.to(tl.int64)[:, None] * d
    w_columns = weight + columns.to(tl.int64)[None, :] * d
    for start in range(0, d, BLOCK_D):
        at = start + tl.arange(0, BLOCK_D)
        part = tl.load(x_rows + at[None, :], mask=here[:, None] & (at < d)[None, :], other=0.0)
        table = tl.load(w_columns + at[:, None], mask=real[None, :] & (at < d)[:, None], other=0.0)
        logits = tl.dot(part, table, logits, input_precision="ieee")
    place = rows * tl.num_programs(1) + block
    top = tl.max(tl.where(real[None, :], logits, NEVER), 1)
    tl.store(tops + place, top, mask=here)
    tl.store(totals + place, tl.sum(tl.where(real[None, :], tl.exp(logits - top[:, None]), 0.0), 1), mask=here)
    forced, may_end = _rules(step, least, prefix, limits, rows // beams, here, end)
    free = _free(never, columns, real, may_end, end) & real
    fits = tl.where((forced >= 0)[:, None], columns[None, :] == forced[:, None], free[None, :])
    logits = tl.where(fits, logits, NEVER)
    for rank in tl.static_range(BEST):
        value, index = tl.max(logits, 1, return_indices=True)
        index = block * BLOCK_V + index
        tl.store(values + place * BEST + rank, value, mask=here)
        tl.store(tokens + place * BEST + rank, tl.minimum(index, v - 1), mask=here)
        logits = tl.where(columns[None, :] == index[:, None], NEVER, logits)


@triton.jit
@no_type_check
def merge(
    values, tokens, tops, totals, best_values, best_tokens, log_totals, blocks,
    BEST: tl.constexpr, OVERLAP: tl.constexpr, BLOCKS: tl.constexpr, ENTRIES: tl.constexpr,
):  # fmt: skip
    """The best tokens of one row from those of all blocks, best first, of equal ones the smaller first."""
    row = tl.program_id(0)
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    block = tl.arange(0, BLOCKS)
    top_parts = tl.load(tops + row * blocks + block, mask=block < blocks, other=NEVER)
    total_parts = tl.load(totals + row * blocks + block, mask=block < blocks, other=0.0)
    top = tl.max(top_parts, 0)
    tl.store(log_totals + row, top + tl.log(tl.sum(total_parts * tl.exp(top_parts - top), 0)))
    entry = tl.arange(0, ENTRIES)
    there = entry < blocks * BEST
    left = tl.load(values + row * blocks * BEST + entry, mask=there, other=NEVER)
    for rank in tl.static_range(BEST):
        value, index = tl.max(left, 0, return_indices=True)
        index = tl.minimum(index, blocks * BEST - 1)
        tl.store(best_values + row * BEST + rank, value)
        tl.store(best_tokens + row * BEST + rank, tl.load(tokens + row * blocks * BEST + index))
        left = tl.where(entry == index, NEVER, left)
