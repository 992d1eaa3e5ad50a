"""The Triton kernel of attention in one decoding step: one query for each row and head.

Only positions that are in use are read, whatever room there is; their number is known on the device alone. Keys of a
row may lie in rows of others (beams share their past): `slots` says where. See `decode_kernels.py` for OVERLAP.
"""
# ruff: noqa: PLR0913, SIM102  # a kernel has no other way to get what it needs; only a bare constant is no branch

from typing import no_type_check

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

NOTHING = tl.constexpr(-1.0e30)  # below every score, and finite: differences of it are numbers
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
@no_type_check
def _turned(base, e, real, position, log_base, HEAD: tl.constexpr):
    """A vector of pairs (even, odd), each turned by position / base^(pair / pairs) (Su et al. 2021)."""
    mine = tl.load(base + e, mask=real, other=0.0).to(tl.float32)
    other = tl.load(base + (e ^ 1), mask=real, other=0.0).to(tl.float32)
    angle = position.to(tl.float32) * tl.exp((e // 2).to(tl.float32) * (2.0 / HEAD) * -log_base)
    sign = tl.where(e % 2 == 0, -1.0, 1.0)
    return mine * tl.cos(angle) + sign * other * tl.sin(angle)


@triton.jit
@no_type_check
def _block(
    keys, values, slots, mask, row, line, begin, end, offset, e, real, slots_stride, mask_stride,
    BEAMS: tl.constexpr, OWN: tl.constexpr, LINE: tl.constexpr, PLACE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Keys and values of the positions from `begin` on, and which of them may be attended."""
    positions = begin + tl.arange(0, BLOCK)
    inside = positions < end
    if BEAMS:
        lines = tl.load(slots + row * slots_stride + positions, mask=inside, other=0).to(tl.int64)
    else:
        lines = tl.zeros([BLOCK], tl.int64) + line
    if not OWN:
        inside = inside & (tl.load(mask + line * mask_stride + positions, mask=inside, other=0) != 0)
    at = (lines * LINE + positions.to(tl.int64) * PLACE + offset)[:, None] + e[None, :]
    there = inside[:, None] & real[None, :]
    return tl.load(keys + at, mask=there, other=0.0), tl.load(values + at, mask=there, other=0.0), inside


@triton.jit
@no_type_check
def _added(query, key, value, inside, top, total, mixed):
    """A block added to a running softmax: the largest score so far, the sum of weights, and the mixed values."""
    scores = tl.where(inside, tl.sum(query[None, :] * key.to(tl.float32), 1), NOTHING)
    higher = tl.maximum(top, tl.max(scores, 0))
    weights = tl.where(inside, tl.exp2(scores - higher), 0.0)
    shrink = tl.exp2(top - higher)
    total = total * shrink + tl.sum(weights, 0)
    mixed = mixed * shrink + tl.sum(weights[:, None] * value.to(tl.float32), 0)
    return higher, total, mixed


@triton.jit
@no_type_check
def _new_position(
    given, keys, values, place, query, top, total, mixed, e, real, count, log_base,
    ROTARY: tl.constexpr, HEAD: tl.constexpr,
):  # fmt: skip
    """Writes the key and the value that came with the query, and begins the running softmax with them."""
    if ROTARY:
        key = _turned(given + HEAD, e, real, count, log_base, HEAD)
    else:
        key = tl.load(given + HEAD + e, mask=real, other=0.0).to(tl.float32)
    value = tl.load(given + 2 * HEAD + e, mask=real, other=0.0)
    written = key.to(keys.dtype.element_ty)
    tl.store(keys + place + e, written, mask=real)
    tl.store(values + place + e, value.to(values.dtype.element_ty), mask=real)
    return tl.sum(query * written.to(tl.float32), 0), total + 1.0, mixed + value.to(tl.float32)


@triton.jit
@no_type_check
def _leave(
    top, total, mixed, out, partial, sums, counters, pair, split, e, real,
    SPLIT: tl.constexpr, SPLITS: tl.constexpr, HEAD: tl.constexpr,
):  # fmt: skip
    """The result of one row and head, put together from all parts by the program that comes last."""
    if SPLIT == 1:
        mixed = mixed / tl.where(total > 0.0, total, 1.0)
        tl.store(out + pair * HEAD + e, mixed.to(out.dtype.element_ty), mask=real)
    else:
        tl.store(partial + (pair * SPLIT + split) * HEAD + e, mixed, mask=real)
        tl.store(sums + (pair * SPLIT + split) * 2, top)
        tl.store(sums + (pair * SPLIT + split) * 2 + 1, total)
        tl.debug_barrier()  # all of this part is written before the program says so
        if tl.atomic_add(counters + pair, 1, sem="acq_rel") == SPLIT - 1:
            _join(partial, sums, pair, e, real, out, SPLIT, SPLITS, HEAD)
            tl.store(counters + pair, 0)


@triton.jit
@no_type_check
def _join(partial, sums, pair, e, real, out, SPLIT: tl.constexpr, SPLITS: tl.constexpr, HEAD: tl.constexpr):
    part = tl.arange(0, SPLITS)
    there = part < SPLIT
    at = sums + (pair * SPLIT + part) * 2
    tops = tl.load(at, mask=there, other=NOTHING, cache_modifier=".cg")
    totals = tl.load(at + 1, mask=there, other=0.0, cache_modifier=".cg")
    factors = tl.exp2(tops - tl.max(tops, 0))
    place = (pair * SPLIT + part[:, None]) * HEAD + e[None, :]
    mixed = tl.load(partial + place, mask=there[:, None] & real[None, :], other=0.0, cache_modifier=".cg")
    total = tl.sum(factors * totals, 0)
    mixed = tl.sum(factors[:, None] * mixed, 0) / tl.where(total > 0.0, total, 1.0)
    tl.store(out + pair * HEAD + e, mixed.to(out.dtype.element_ty), mask=real)


@triton.jit
@no_type_check
def attend_step(
    projected, keys, values, slots, lengths, mask, out, partial, sums, counters,
    scale, log_base, window, slots_stride, mask_stride,
    OWN: tl.constexpr, BEAMS: tl.constexpr, ROTARY: tl.constexpr, OVERLAP: tl.constexpr, HEADS: tl.constexpr,
    HEAD: tl.constexpr, ROOM: tl.constexpr, SPLIT: tl.constexpr, SPLITS: tl.constexpr, BLOCK: tl.constexpr,
    BLOCK_E: tl.constexpr,
):  # fmt: skip
    """OWN: self-attention. The new key and value come with the query and are written at position lengths[row].

    Otherwise attention to memory: row slots[row] of it, as far as lengths of that row and `mask` say.
    """
    pair, split = tl.program_id(0), tl.program_id(1)
    row, offset = pair // HEADS, pair % HEADS * HEAD
    PLACE: tl.constexpr = HEADS * HEAD
    LINE: tl.constexpr = ROOM * HEADS * HEAD
    PARTS: tl.constexpr = 3 if OWN else 1  # vectors of each head that were projected
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
    key, value, inside = _block(
        keys, values, slots, mask, row, line, begin, end, offset, e, real, slots_stride, mask_stride,
        BEAMS, OWN, LINE, PLACE, BLOCK,
    )  # fmt: skip
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    given = projected + (row.to(tl.int64) * PLACE + offset) * PARTS
    if ROTARY:
        query = _turned(given, e, real, count, log_base, HEAD)
    else:
        query = tl.load(given + e, mask=real, other=0.0).to(tl.float32)
    query *= scale * LOG2_E
    top, total, mixed = NOTHING, 0.0, tl.zeros([BLOCK_E], tl.float32)
    if OWN:
        if split == 0:
            place = line * LINE + count.to(tl.int64) * PLACE + offset
            top, total, mixed = _new_position(
                given, keys, values, place, query, top, total, mixed, e, real, count, log_base, ROTARY, HEAD
            )
    top, total, mixed = _added(query, key, value, inside, top, total, mixed)
    begin += BLOCK
    while begin < end:
        key, value, inside = _block(
            keys, values, slots, mask, row, line, begin, end, offset, e, real, slots_stride, mask_stride,
            BEAMS, OWN, LINE, PLACE, BLOCK,
        )  # fmt: skip
        top, total, mixed = _added(query, key, value, inside, top, total, mixed)
        begin += BLOCK
    _leave(top, total, mixed, out, partial, sums, counters, pair, split, e, real, SPLIT, SPLITS, HEAD)
