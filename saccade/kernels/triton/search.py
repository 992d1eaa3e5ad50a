"""The Triton kernel of a search's bookkeeping: what `advance` of the search on fixed buffers does, in one launch.

A program takes one sentence: the best of its candidates, which of them are finished, where each row goes on from. The
program that comes last moves the step and counts the sentences that are left. See `decode_kernels.py` for OVERLAP.
"""
# ruff: noqa: PLR0913  # a kernel has no other way to get what it needs

from typing import no_type_check

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

NEVER = tl.constexpr(float("-inf"))


@triton.jit
@no_type_check
def _best_of_two(pool, more, beam, BEAMS: tl.constexpr):
    """The best of two lists, best first."""
    merged = tl.zeros_like(pool)
    for rank in tl.static_range(BEAMS):
        first, at_first = tl.max(pool, 0, return_indices=True)
        second, at_second = tl.max(more, 0, return_indices=True)
        merged = tl.where(beam == rank, tl.maximum(first, second), merged)
        pool = tl.where(beam == tl.where(first >= second, at_first, -1), NEVER, pool)
        more = tl.where(beam == tl.where(first >= second, -1, at_second), NEVER, more)
    return tl.where(beam < BEAMS, merged, NEVER)


@triton.jit
@no_type_check
def _follow(slots, sentence, beam, parents, now, width, BEAMS: tl.constexpr, WIDTH: tl.constexpr):
    """Every row takes over where its parent's past lies; the next position it writes is its own."""
    place = tl.arange(0, WIDTH)[None, :]
    inside = (beam < BEAMS)[:, None] & (place < width)
    rows = (sentence * BEAMS + beam)[:, None]
    past = tl.load(slots + (sentence * BEAMS + parents)[:, None] * width + place, mask=inside, other=0)
    tl.debug_barrier()  # all rows are read before one is written
    tl.store(slots + rows * width + place, tl.where(place == now, rows, past), mask=inside)


@triton.jit
@no_type_check
def keep_best(
    values, candidates, log_totals, scores, pool, done, limits, wanted, penalties, step, sentences, tokens, lengths,
    slots, kept_tokens, kept_parents, kept_ends, left, counters, end, size, width,
    BEAMS: tl.constexpr, OVERLAP: tl.constexpr, BLOCK: tl.constexpr, ENTRIES: tl.constexpr, WIDTH: tl.constexpr,
    SENTENCES: tl.constexpr,
):  # fmt: skip
    sentence = tl.program_id(0)
    beam = tl.arange(0, BLOCK)
    real = beam < BEAMS
    entry = tl.arange(0, ENTRIES)
    there = entry < BEAMS * BEAMS
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    written = tl.load(step)
    row = sentence * BEAMS + entry // BEAMS
    before = tl.load(scores + row, mask=there, other=NEVER) - tl.load(log_totals + row, mask=there, other=0.0)
    left_over = tl.load(values + sentence * BEAMS * BEAMS + entry, mask=there, other=NEVER) + before
    left_over = tl.where(there, left_over, NEVER)
    at = sentence * BEAMS + beam
    known = tl.load(pool + at, mask=real, other=NEVER)
    length = tl.load(lengths + at, mask=real, other=0) + 1
    over = tl.load(done + sentence)
    tl.debug_barrier()  # several warps hold the same numbers: all have read before one writes
    best = tl.zeros([BLOCK], tl.float32) + NEVER
    index = tl.zeros([BLOCK], tl.int32)
    for rank in tl.static_range(BEAMS):
        value, place = tl.max(left_over, 0, return_indices=True)
        best = tl.where(beam == rank, value, best)
        index = tl.where(beam == rank, tl.minimum(place, BEAMS * BEAMS - 1), index)
        left_over = tl.where(entry == place, NEVER, left_over)
    chosen = tl.load(candidates + sentence * BEAMS * BEAMS + index, mask=real, other=0)
    finished = chosen == end
    ends = tl.where(finished & (over == 0) & real, best, NEVER)
    live_scores = tl.where(finished | (beam >= BEAMS), NEVER, best)
    tl.store(scores + at, live_scores, mask=real)
    known = _best_of_two(known, ends / tl.load(penalties + written + 1), beam, BEAMS)
    tl.store(pool + at, known, mask=real)
    live = tl.max(live_scores, 0)
    ahead = tl.maximum(tl.load(penalties + tl.load(limits + sentence) + 1), tl.load(penalties + written + 2))
    enough = tl.max(tl.where(beam == tl.load(wanted), known, NEVER), 0)
    leaves = (enough >= live / ahead) | (live == NEVER)
    kept = (written * size + tl.load(sentences + sentence)) * BEAMS + beam
    tl.store(kept_tokens + kept, chosen.to(tl.int32), mask=real)
    tl.store(kept_parents + kept, (index // BEAMS).to(tl.int16), mask=real)
    tl.store(kept_ends + kept, ends, mask=real)
    tl.store(tokens + at, chosen, mask=real)
    tl.store(lengths + at, length, mask=real)
    if BEAMS > 1:
        _follow(slots, sentence, beam, index // BEAMS, length[:, None], width, BEAMS, WIDTH)
    tl.store(done + sentence, over | leaves.to(tl.int8))
    tl.debug_barrier()  # everything of this sentence is written before the program says so
    if tl.atomic_add(counters, 1, sem="acq_rel") == tl.num_programs(0) - 1:
        number = tl.arange(0, SENTENCES)
        state = tl.load(done + number, mask=number < tl.num_programs(0), other=1, cache_modifier=".cg")
        tl.store(left, tl.sum((state == 0).to(tl.int64), 0))
        tl.store(step, written + 1)
        tl.store(counters, 0)
