"""Triton kernels that select the best next tokens of each row without storing the logits of the whole vocabulary.

Each program processes a block of the vocabulary and stores its best tokens and its part of the logsumexp;
`merge_top_tokens` combines the blocks. Which tokens are allowed depends on tensors on the device: the current step, the
maximum lengths and the forced prefix (see `DecodingConstraints`). See `decode.py` for OVERLAP.
"""
# ruff: noqa: PLR0913  # kernels have many arguments

from typing import no_type_check

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from saccade.kernels.triton.decode import _load_float, _row_moments

NEG_INF = tl.constexpr(float("-inf"))


@triton.jit
@no_type_check
def _load_constraints(step, min_length, prefix, max_lengths, sentence, valid, end):
    """The token that is forced now, or -1, and whether END is allowed."""
    generated = tl.load(step)
    forced = tl.load(prefix + generated).to(tl.int64)
    at_limit = tl.load(max_lengths + sentence, mask=valid, other=0) <= generated
    return tl.where(at_limit, end, forced), generated >= tl.load(min_length)


@triton.jit
@no_type_check
def _is_allowed(suppressed, tokens, valid_columns, may_end, end):
    """Which tokens are allowed where none is forced."""
    return (tl.load(suppressed + tokens, mask=valid_columns, other=1) == 0) & (may_end | (tokens != end))


@triton.jit
@no_type_check
def score_one_row(
    x, norm_weight, norm_bias, eps, weight, step, min_length, prefix, max_lengths, suppressed, values, tokens, tops,
    totals, v, d, end,
    NORM: tl.constexpr, BEST: tl.constexpr, OVERLAP: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """The best tokens of a block of the vocabulary for a single row; includes the final norm."""
    block = tl.program_id(0)
    columns = block * BLOCK_V + tl.arange(0, BLOCK_V)
    valid_columns = columns < v
    at = tl.arange(0, BLOCK_D)
    place = columns.to(tl.int64)[:, None] * d + at[None, :]
    table = tl.load(weight + place, mask=valid_columns[:, None] & (at < d)[None, :], other=0.0)
    if NORM > 0:
        norm_scale = _load_float(norm_weight, at, at < d)
    if NORM == 1:
        norm_shift = _load_float(norm_bias, at, at < d)
    forced, may_end = _load_constraints(step, min_length, prefix, max_lengths, 0, True, end)
    selectable = (
        tl.where(forced >= 0, columns == forced, _is_allowed(suppressed, columns, valid_columns, may_end, end))
        & valid_columns
    )
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    row = _load_float(x, at, at < d)
    if NORM > 0:
        mean, factor = _row_moments(row, at < d, d, eps, NORM)
        row = (row - mean) * factor * norm_scale
    if NORM == 1:
        row += norm_shift
    row = row.to(weight.dtype.element_ty).to(tl.float32)
    logits = tl.sum(table.to(tl.float32) * row[None, :], 1)
    top = tl.max(tl.where(valid_columns, logits, NEG_INF), 0)
    tl.store(tops + block, top)
    tl.store(totals + block, tl.sum(tl.where(valid_columns, tl.exp(logits - top), 0.0), 0))
    logits = tl.where(selectable, logits, NEG_INF)
    for rank in tl.static_range(BEST):
        value, index = tl.max(logits, 0, return_indices=True)
        tl.store(values + block * BEST + rank, value)
        tl.store(tokens + block * BEST + rank, tl.minimum(block * BLOCK_V + index, v - 1))
        logits = tl.where(columns == block * BLOCK_V + index, NEG_INF, logits)


@triton.jit
@no_type_check
def score_several_rows(
    x, weight, step, min_length, prefix, max_lengths, suppressed, values, tokens, tops, totals, m, v, d: tl.constexpr,
    end, beams,
    BEST: tl.constexpr, OVERLAP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Like `score_one_row` for several rows, which are normalized already; `beams` rows belong to one sentence."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    block = tl.program_id(1)
    columns = block * BLOCK_V + tl.arange(0, BLOCK_V)
    valid_rows, valid_columns = rows < m, columns < v
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    logits = tl.zeros([BLOCK_M, BLOCK_V], tl.float32)
    x_rows = x + rows.to(tl.int64)[:, None] * d
    w_columns = weight + columns.to(tl.int64)[None, :] * d
    for start in range(0, d, BLOCK_D):
        at = start + tl.arange(0, BLOCK_D)
        part = tl.load(x_rows + at[None, :], mask=valid_rows[:, None] & (at < d)[None, :], other=0.0)
        table = tl.load(w_columns + at[:, None], mask=valid_columns[None, :] & (at < d)[:, None], other=0.0)
        logits = tl.dot(part, table, logits, input_precision="ieee")
    place = rows * tl.num_programs(1) + block
    top = tl.max(tl.where(valid_columns[None, :], logits, NEG_INF), 1)
    tl.store(tops + place, top, mask=valid_rows)
    tl.store(
        totals + place, tl.sum(tl.where(valid_columns[None, :], tl.exp(logits - top[:, None]), 0.0), 1), mask=valid_rows
    )
    forced, may_end = _load_constraints(step, min_length, prefix, max_lengths, rows // beams, valid_rows, end)
    allowed = _is_allowed(suppressed, columns, valid_columns, may_end, end) & valid_columns
    selectable = tl.where((forced >= 0)[:, None], columns[None, :] == forced[:, None], allowed[None, :])
    logits = tl.where(selectable, logits, NEG_INF)
    for rank in tl.static_range(BEST):
        value, index = tl.max(logits, 1, return_indices=True)
        index = block * BLOCK_V + index
        tl.store(values + place * BEST + rank, value, mask=valid_rows)
        tl.store(tokens + place * BEST + rank, tl.minimum(index, v - 1), mask=valid_rows)
        logits = tl.where(columns[None, :] == index[:, None], NEG_INF, logits)


@triton.jit
@no_type_check
def merge_top_tokens(
    values, tokens, tops, totals, best_values, best_tokens, log_totals, blocks,
    BEST: tl.constexpr, OVERLAP: tl.constexpr, BLOCKS: tl.constexpr, ENTRIES: tl.constexpr,
):  # fmt: skip
    """Merge the best tokens of all blocks for one row, best first; ties go to the smaller token."""
    row = tl.program_id(0)
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    block = tl.arange(0, BLOCKS)
    top_parts = tl.load(tops + row * blocks + block, mask=block < blocks, other=NEG_INF)
    total_parts = tl.load(totals + row * blocks + block, mask=block < blocks, other=0.0)
    top = tl.max(top_parts, 0)
    tl.store(log_totals + row, top + tl.log(tl.sum(total_parts * tl.exp(top_parts - top), 0)))
    entry = tl.arange(0, ENTRIES)
    valid = entry < blocks * BEST
    remaining = tl.load(values + row * blocks * BEST + entry, mask=valid, other=NEG_INF)
    for rank in tl.static_range(BEST):
        value, index = tl.max(remaining, 0, return_indices=True)
        index = tl.minimum(index, blocks * BEST - 1)
        tl.store(best_values + row * BEST + rank, value)
        tl.store(best_tokens + row * BEST + rank, tl.load(tokens + row * blocks * BEST + index))
        remaining = tl.where(entry == index, NEG_INF, remaining)
