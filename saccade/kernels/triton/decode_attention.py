"""The Triton kernel for attention in one decoding step: one query per row and head.

Only positions in use are read, whatever the capacity of the buffers; their number is known only on the device. Beams
share their history: `slots` has the row of the buffers that holds each position. See `decode.py` for OVERLAP.
"""
# ruff: noqa: PLR0913, SIM102  # kernels have many arguments; `if` on a constexpr must stay a statement of its own

from typing import no_type_check

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

LOWEST_SCORE = tl.constexpr(-1.0e30)  # lower than every score, but finite, which avoids NaN in differences
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
@no_type_check
def _load_rotated(base, e, real, position, log_base, HEAD: tl.constexpr):
    """Load a vector with rotary positions: each pair (even, odd) is rotated by position / base^(pair / pairs)."""
    mine = tl.load(base + e, mask=real, other=0.0).to(tl.float32)
    other = tl.load(base + (e ^ 1), mask=real, other=0.0).to(tl.float32)
    angle = position.to(tl.float32) * tl.exp((e // 2).to(tl.float32) * (2.0 / HEAD) * -log_base)
    sign = tl.where(e % 2 == 0, -1.0, 1.0)
    return mine * tl.cos(angle) + sign * other * tl.sin(angle)


@triton.jit
@no_type_check
def _load_block(
    keys, values, slots, mask, row, line, begin, end, offset, e, real, slots_stride, mask_stride,
    BEAMS: tl.constexpr, OWN: tl.constexpr, LINE: tl.constexpr, PLACE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Keys and values of a block of positions from `begin` on, and the mask of those that may be attended."""
    positions = begin + tl.arange(0, BLOCK)
    inside = positions < end
    if BEAMS:
        lines = tl.load(slots + row * slots_stride + positions, mask=inside, other=0).to(tl.int64)
    else:
        lines = tl.zeros([BLOCK], tl.int64) + line
    if not OWN:
        inside = inside & (tl.load(mask + line * mask_stride + positions, mask=inside, other=0) != 0)
    at = (lines * LINE + positions.to(tl.int64) * PLACE + offset)[:, None] + e[None, :]
    valid = inside[:, None] & real[None, :]
    return tl.load(keys + at, mask=valid, other=0.0), tl.load(values + at, mask=valid, other=0.0), inside


@triton.jit
@no_type_check
def _update_softmax(query, key, value, inside, top, total, context):
    """Add a block to the online softmax: maximum score, sum of weights, and weighted sum of values."""
    scores = tl.where(inside, tl.sum(query[None, :] * key.to(tl.float32), 1), LOWEST_SCORE)
    new_top = tl.maximum(top, tl.max(scores, 0))
    weights = tl.where(inside, tl.exp2(scores - new_top), 0.0)
    rescale = tl.exp2(top - new_top)  # `top` must be a tensor: the interpreter's exp2 rejects constexpr - tensor
    total = total * rescale + tl.sum(weights, 0)
    context = context * rescale + tl.sum(weights[:, None] * value.to(tl.float32), 0)
    return new_top, total, context


@triton.jit
@no_type_check
def _append_position(
    given, keys, values, place, query, top, total, context, e, real, count, log_base,
    ROTARY: tl.constexpr, HEAD: tl.constexpr,
):  # fmt: skip
    """Write the new key and value into the cache, and start the online softmax with them."""
    if ROTARY:
        key = _load_rotated(given + HEAD, e, real, count, log_base, HEAD)
    else:
        key = tl.load(given + HEAD + e, mask=real, other=0.0).to(tl.float32)
    value = tl.load(given + 2 * HEAD + e, mask=real, other=0.0)
    written = key.to(keys.dtype.element_ty)
    tl.store(keys + place + e, written, mask=real)
    tl.store(values + place + e, value.to(values.dtype.element_ty), mask=real)
    return tl.sum(query * written.to(tl.float32), 0), total + 1.0, context + value.to(tl.float32)


@triton.jit
@no_type_check
def _store_output(
    top, total, context, out, partial, sums, counters, pair, split, e, real,
    SPLIT: tl.constexpr, SPLITS: tl.constexpr, HEAD: tl.constexpr,
):  # fmt: skip
    """Store the output of one row and head; with SPLIT, the program that finishes last merges all splits."""
    if SPLIT == 1:
        context = context / tl.where(total > 0.0, total, 1.0)
        tl.store(out + pair * HEAD + e, context.to(out.dtype.element_ty), mask=real)
    else:
        tl.store(partial + (pair * SPLIT + split) * HEAD + e, context, mask=real)
        tl.store(sums + (pair * SPLIT + split) * 2, top)
        tl.store(sums + (pair * SPLIT + split) * 2 + 1, total)
        tl.debug_barrier()  # everything is stored before the counter is incremented
        if tl.atomic_add(counters + pair, 1, sem="acq_rel") == SPLIT - 1:
            _merge_splits(partial, sums, pair, e, real, out, SPLIT, SPLITS, HEAD)
            tl.store(counters + pair, 0)


@triton.jit
@no_type_check
def _merge_splits(partial, sums, pair, e, real, out, SPLIT: tl.constexpr, SPLITS: tl.constexpr, HEAD: tl.constexpr):
    part = tl.arange(0, SPLITS)
    valid = part < SPLIT
    at = sums + (pair * SPLIT + part) * 2
    tops = tl.load(at, mask=valid, other=LOWEST_SCORE, cache_modifier=".cg")
    totals = tl.load(at + 1, mask=valid, other=0.0, cache_modifier=".cg")
    factors = tl.exp2(tops - tl.max(tops, 0))
    place = (pair * SPLIT + part[:, None]) * HEAD + e[None, :]
    context = tl.load(partial + place, mask=valid[:, None] & real[None, :], other=0.0, cache_modifier=".cg")
    total = tl.sum(factors * totals, 0)
    context = tl.sum(factors[:, None] * context, 0) / tl.where(total > 0.0, total, 1.0)
    tl.store(out + pair * HEAD + e, context.to(out.dtype.element_ty), mask=real)


@triton.jit
@no_type_check
def attend_step(
    projected, keys, values, slots, lengths, mask, out, partial, sums, counters,
    scale, log_base, window, slots_stride, mask_stride,
    OWN: tl.constexpr, BEAMS: tl.constexpr, ROTARY: tl.constexpr, OVERLAP: tl.constexpr, HEADS: tl.constexpr,
    HEAD: tl.constexpr, CAPACITY: tl.constexpr, SPLIT: tl.constexpr, SPLITS: tl.constexpr, BLOCK: tl.constexpr,
    BLOCK_E: tl.constexpr,
):  # fmt: skip
    """Self-attention (OWN): `projected` also has the new key and value, which are written at position lengths[row].

    Otherwise cross-attention to row slots[row] of memory, limited by its length and `mask`.
    """
    pair, split = tl.program_id(0), tl.program_id(1)
    row, offset = pair // HEADS, pair % HEADS * HEAD
    PLACE: tl.constexpr = HEADS * HEAD
    LINE: tl.constexpr = CAPACITY * HEADS * HEAD
    PARTS: tl.constexpr = 3 if OWN else 1  # projected vectors per head
    e = tl.arange(0, BLOCK_E)
    real = e < HEAD
    begin = 0
    if OWN:
        count = tl.load(lengths + row).to(tl.int32)
        line = tl.load(slots + row * slots_stride + (count if BEAMS else 0)).to(tl.int64)
        if window >= 0:
            begin = tl.maximum(count - window, 0)
    else:
        line = tl.load(slots + row * slots_stride).to(tl.int64)
        count = tl.load(lengths + line).to(tl.int32)
    share = tl.cdiv(count - begin, SPLIT)
    begin += split * share
    end = tl.minimum(begin + share, count)
    key, value, inside = _load_block(
        keys, values, slots, mask, row, line, begin, end, offset, e, real, slots_stride, mask_stride,
        BEAMS, OWN, LINE, PLACE, BLOCK,
    )  # fmt: skip
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    given = projected + (row.to(tl.int64) * PLACE + offset) * PARTS
    if ROTARY:
        query = _load_rotated(given, e, real, count, log_base, HEAD)
    else:
        query = tl.load(given + e, mask=real, other=0.0).to(tl.float32)
    query *= scale * LOG2_E
    top, total, context = tl.full([], LOWEST_SCORE, tl.float32), 0.0, tl.zeros([BLOCK_E], tl.float32)
    if OWN:
        if split == 0:
            place = line * LINE + count.to(tl.int64) * PLACE + offset
            top, total, context = _append_position(
                given, keys, values, place, query, top, total, context, e, real, count, log_base, ROTARY, HEAD
            )
    top, total, context = _update_softmax(query, key, value, inside, top, total, context)
    begin += BLOCK
    while begin < end:
        key, value, inside = _load_block(
            keys, values, slots, mask, row, line, begin, end, offset, e, real, slots_stride, mask_stride,
            BEAMS, OWN, LINE, PLACE, BLOCK,
        )  # fmt: skip
        top, total, context = _update_softmax(query, key, value, inside, top, total, context)
        begin += BLOCK
    _store_output(top, total, context, out, partial, sums, counters, pair, split, e, real, SPLIT, SPLITS, HEAD)
