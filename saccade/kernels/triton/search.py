"""The Triton kernel for one step of beam search: `advance` of predict/engines/static_search.py in one launch.

A program processes one sentence: it selects the best candidates, collects finished ones, and reorders the rows. The
program that finishes last increments the step and counts unfinished sentences. See `decode.py` for OVERLAP.
"""
# ruff: noqa: PLR0913  # kernels have many arguments

from typing import no_type_check

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

NEG_INF = tl.constexpr(float("-inf"))


@triton.jit
@no_type_check
def _merge_best(pool, more, beam, BEAMS: tl.constexpr):
    """The best scores of two lists, best first."""
    merged = tl.zeros_like(pool)
    for rank in tl.static_range(BEAMS):
        first, at_first = tl.max(pool, 0, return_indices=True)
        second, at_second = tl.max(more, 0, return_indices=True)
        merged = tl.where(beam == rank, tl.maximum(first, second), merged)
        pool = tl.where(beam == tl.where(first >= second, at_first, -1), NEG_INF, pool)
        more = tl.where(beam == tl.where(first >= second, -1, at_second), NEG_INF, more)
    return tl.where(beam < BEAMS, merged, NEG_INF)


@triton.jit
@no_type_check
def _follow_parents(slots, sentence, beam, parents, now, width, BEAMS: tl.constexpr, WIDTH: tl.constexpr):
    """Copy the slots of each row's parent; the next position is generated to the row's own slot."""
    place = tl.arange(0, WIDTH)[None, :]
    inside = (beam < BEAMS)[:, None] & (place < width)
    rows = (sentence * BEAMS + beam)[:, None]
    past = tl.load(slots + (sentence * BEAMS + parents)[:, None] * width + place, mask=inside, other=0)
    tl.debug_barrier()  # all rows are loaded before any is stored
    tl.store(slots + rows * width + place, tl.where(place == now, rows, past), mask=inside)


@triton.jit
@no_type_check
def select_beams(
    values, candidates, log_totals, scores, pool, done, max_lengths, required, penalties, step, sentences, tokens,
    lengths, slots, stored_tokens, stored_parents, stored_ends, unfinished, counters, end, size, width,
    BEAMS: tl.constexpr, OVERLAP: tl.constexpr, BLOCK: tl.constexpr, ENTRIES: tl.constexpr, WIDTH: tl.constexpr,
    SENTENCES: tl.constexpr,
):  # fmt: skip
    sentence = tl.program_id(0)
    beam = tl.arange(0, BLOCK)
    valid_beams = beam < BEAMS
    entry = tl.arange(0, ENTRIES)
    valid = entry < BEAMS * BEAMS
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    generated = tl.load(step)
    row = sentence * BEAMS + entry // BEAMS
    base_score = tl.load(scores + row, mask=valid, other=NEG_INF) - tl.load(log_totals + row, mask=valid, other=0.0)
    remaining = tl.load(values + sentence * BEAMS * BEAMS + entry, mask=valid, other=NEG_INF) + base_score
    remaining = tl.where(valid, remaining, NEG_INF)
    at = sentence * BEAMS + beam
    finished_scores = tl.load(pool + at, mask=valid_beams, other=NEG_INF)
    length = tl.load(lengths + at, mask=valid_beams, other=0) + 1
    is_done = tl.load(done + sentence)
    tl.debug_barrier()  # warps hold the same values: all have loaded before any stores
    best = tl.zeros([BLOCK], tl.float32) + NEG_INF
    index = tl.zeros([BLOCK], tl.int32)
    for rank in tl.static_range(BEAMS):
        value, place = tl.max(remaining, 0, return_indices=True)
        best = tl.where(beam == rank, value, best)
        index = tl.where(beam == rank, tl.minimum(place, BEAMS * BEAMS - 1), index)
        remaining = tl.where(entry == place, NEG_INF, remaining)
    chosen = tl.load(candidates + sentence * BEAMS * BEAMS + index, mask=valid_beams, other=0)
    finished = chosen == end
    ends = tl.where(finished & (is_done == 0) & valid_beams, best, NEG_INF)
    live_scores = tl.where(finished | (beam >= BEAMS), NEG_INF, best)
    tl.store(scores + at, live_scores, mask=valid_beams)
    finished_scores = _merge_best(finished_scores, ends / tl.load(penalties + generated + 1), beam, BEAMS)
    tl.store(pool + at, finished_scores, mask=valid_beams)
    best_live = tl.max(live_scores, 0)
    best_penalty = tl.maximum(
        tl.load(penalties + tl.load(max_lengths + sentence) + 1), tl.load(penalties + generated + 2)
    )
    worst_needed = tl.max(tl.where(beam == tl.load(required), finished_scores, NEG_INF), 0)
    finishes = (worst_needed >= best_live / best_penalty) | (best_live == NEG_INF)
    stored = (generated * size + tl.load(sentences + sentence)) * BEAMS + beam
    tl.store(stored_tokens + stored, chosen.to(tl.int32), mask=valid_beams)
    tl.store(stored_parents + stored, (index // BEAMS).to(tl.int16), mask=valid_beams)
    tl.store(stored_ends + stored, ends, mask=valid_beams)
    tl.store(tokens + at, chosen, mask=valid_beams)
    tl.store(lengths + at, length, mask=valid_beams)
    if BEAMS > 1:
        _follow_parents(slots, sentence, beam, index // BEAMS, length[:, None], width, BEAMS, WIDTH)
    tl.store(done + sentence, is_done | finishes.to(tl.int8))
    tl.debug_barrier()  # everything is stored before the counter is incremented
    if tl.atomic_add(counters, 1, sem="acq_rel") == tl.num_programs(0) - 1:
        number = tl.arange(0, SENTENCES)
        state = tl.load(done + number, mask=number < tl.num_programs(0), other=1, cache_modifier=".cg")
        tl.store(unfinished, tl.sum((state == 0).to(tl.int64), 0))
        tl.store(step, generated + 1)
        tl.store(counters, 0)
