"""Triton kernels of the loss: logits of a piece become losses and, in their place, gradients.

A program takes one row, whatever the size of the vocabulary: one reading for its statistics, in float32, and one for
the gradients. `turn_plainly` in cross_entropy.py is the reference. Imported only where there is Triton.
"""

from typing import Any, no_type_check

import triton
import triton.language as tl
from torch import Tensor

LOG2E = tl.constexpr(1.4426950408889634)  # exp(x) = 2^(x log2 e)
LOWEST = tl.constexpr(-1e30)  # below every logit, and still a number: what is never reached is no NaN
GROUP = 8  # neighbouring entries that one thread reads at once
BLOCK, WARPS = 8192, 16  # entries of the vocabulary at a time, and warps that share them: chosen on an H200


def turn(logits: Tensor, targets: Tensor, keep: Tensor, values: Tensor, settings: Any, wanted: bool) -> None:
    """Writes the values of each row, and the gradients over the logits (P, R, V) where they are wanted."""
    passes, rows, vocabulary = logits.shape
    if not rows:
        return
    smoothing, apart_weight = settings
    smoothed, nll, apart = values
    block = min(triton.next_power_of_2(vocabulary), BLOCK)
    if passes == 1:
        apart.zero_()
        _single[(rows,)](
            logits, logits.stride(1), targets, keep, smoothed, nll, smoothing,
            vocabulary=vocabulary, smooths=smoothing > 0, wanted=wanted, block=block, group=min(block, GROUP),
            num_warps=WARPS,
        )  # fmt: skip
    else:
        first, second = logits
        _double[(rows,)](
            first, second, logits.stride(1), targets, keep, smoothed, nll, apart, smoothing, apart_weight,
            vocabulary=vocabulary, wanted=wanted, block=block, num_warps=WARPS,
        )  # fmt: skip


# no_type_check: Triton reads the source of these functions, and a checker around them would be in its way.
# Where a piece begins in memory differs from one to the next, and is no reason to compile once more.


@triton.jit
@no_type_check
def _grouped(top, total, value, block: tl.constexpr, group: tl.constexpr):
    """The largest value and the sum of exponentials of each group of neighbours, with one more block."""
    value = tl.reshape(value, (block // group, group))
    higher = tl.maximum(top, tl.max(value, 1))
    part = tl.exp2(value * LOG2E - (higher * LOG2E)[:, None])
    return higher, total * tl.exp2((top - higher) * LOG2E) + tl.sum(part, 1)


@triton.jit
@no_type_check
def _statistics(x, vocabulary: tl.constexpr, smooths: tl.constexpr, block: tl.constexpr, group: tl.constexpr):
    """The log of the sum of exponentials of a row, and the sum of its values.

    Each thread keeps a maximum and a sum of its own: the threads meet once, at the end, and not at every block.
    """
    top = tl.full([block // group], LOWEST, tl.float32)
    total = tl.zeros([block // group], tl.float32)
    added = tl.zeros([block], tl.float32)
    whole: tl.constexpr = vocabulary // block * block
    for start in range(0, whole, block):
        value = tl.load(x + start + tl.arange(0, block)).to(tl.float32)
        if smooths:
            added += value
        top, total = _grouped(top, total, value, block, group)
    if whole < vocabulary:
        at = whole + tl.arange(0, block)
        value = tl.load(x + at, mask=at < vocabulary, other=-float("inf")).to(tl.float32)
        if smooths:
            added += tl.where(at < vocabulary, value, 0.0)
        top, total = _grouped(top, total, value, block, group)
    most = tl.max(top, 0)
    return most + tl.log(tl.sum(total * tl.exp2((top - most) * LOG2E), 0)), tl.sum(added, 0)


@triton.jit(do_not_specialize_on_alignment=["targets", "keep", "smoothed", "nll"])
@no_type_check
def _single(  # noqa: PLR0913
    logits, stride, targets, keep, smoothed, nll, smoothing,
    vocabulary: tl.constexpr, smooths: tl.constexpr, wanted: tl.constexpr, block: tl.constexpr, group: tl.constexpr,
):  # fmt: skip
    """Few operations for an entry: masks and comparisons stand outside of the loops."""
    row = tl.program_id(0)
    x = logits + row.to(tl.int64) * stride
    whole: tl.constexpr = vocabulary // block * block
    if tl.load(keep + row) != 0:
        target = tl.load(targets + row)
        chosen = tl.load(x + target).to(tl.float32)  # before anything is written over it
        norm, added = _statistics(x, vocabulary, smooths, block, group)
        loss = norm - chosen
        tl.store(nll + row, loss)
        tl.store(smoothed + row, (1 - smoothing) * loss + smoothing * (norm - added / vocabulary))
        if wanted:
            shift = norm * LOG2E
            each = smoothing / vocabulary
            for start in range(0, whole, block):
                at = start + tl.arange(0, block)
                slope = tl.exp2(tl.load(x + at).to(tl.float32) * LOG2E - shift)
                if smooths:
                    slope -= each
                tl.store(x + at, slope.to(logits.dtype.element_ty))
            if whole < vocabulary:
                at = whole + tl.arange(0, block)
                value = tl.load(x + at, mask=at < vocabulary, other=0.0).to(tl.float32)
                slope = tl.exp2(value * LOG2E - shift) - each
                tl.store(x + at, slope.to(logits.dtype.element_ty), mask=at < vocabulary)
            tl.debug_barrier()  # the target's slope is written over by one that knows that it is the target's
            slope = tl.exp2(chosen * LOG2E - shift) - each - (1 - smoothing)
            tl.store(x + target, slope.to(logits.dtype.element_ty))
    else:
        tl.store(nll + row, 0.0)
        tl.store(smoothed + row, 0.0)
        if wanted:
            for start in range(0, vocabulary, block):
                at = start + tl.arange(0, block)
                tl.store(x + at, tl.zeros([block], logits.dtype.element_ty), mask=at < vocabulary)


@triton.jit
@no_type_check
def _grown(top, total, weighted, value, away):
    """The largest value, sums of exponentials and those weighted by `away`, place by place, with one more block."""
    higher = tl.maximum(top, tl.max(value, 0))
    shrink = tl.exp(top - higher)
    part = tl.exp(value - higher)
    return higher, total * shrink + part, weighted * shrink + part * away


@triton.jit(do_not_specialize_on_alignment=["targets", "keep", "smoothed", "nll", "apart"])
@no_type_check
def _double(  # noqa: PLR0913
    first, second, stride, targets, keep, smoothed, nll, apart, smoothing, apart_weight,
    vocabulary: tl.constexpr, wanted: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    x = first + row.to(tl.int64) * stride
    y = second + row.to(tl.int64) * stride
    kept = tl.load(keep + row) != 0
    target = tl.load(targets + row)
    chosen = tl.load(x + target, mask=kept, other=0.0).to(tl.float32)
    chosen += tl.load(y + target, mask=kept, other=0.0).to(tl.float32)
    x_top = -float("inf")
    y_top = -float("inf")
    x_total = tl.zeros([block], tl.float32)
    y_total = tl.zeros([block], tl.float32)
    x_away = tl.zeros([block], tl.float32)  # exp(x) (x - y), scaled like the total
    y_away = tl.zeros([block], tl.float32)
    added = tl.zeros([block], tl.float32)
    for start in range(0, vocabulary, block):
        at = start + tl.arange(0, block)
        real = at < vocabulary
        one = tl.load(x + at, mask=real & kept, other=0.0).to(tl.float32)
        two = tl.load(y + at, mask=real & kept, other=0.0).to(tl.float32)
        added += one + two
        away = one - two
        one = tl.where(real, one, -float("inf"))
        two = tl.where(real, two, -float("inf"))
        x_top, x_total, x_away = _grown(x_top, x_total, x_away, one, away)
        y_top, y_total, y_away = _grown(y_top, y_total, y_away, two, away)
    x_sum, y_sum = tl.sum(x_total, 0), tl.sum(y_total, 0)
    x_norm = x_top + tl.log(x_sum)
    y_norm = y_top + tl.log(y_sum)
    shift = x_norm - y_norm
    there = tl.sum(x_away, 0) / x_sum - shift  # KL(P1 || P2)
    back = shift - tl.sum(y_away, 0) / y_sum
    loss = x_norm + y_norm - chosen
    spread = x_norm + y_norm - tl.sum(added, 0) / vocabulary
    tl.store(nll + row, tl.where(kept, loss, 0.0))
    tl.store(smoothed + row, tl.where(kept, (1 - smoothing) * loss + smoothing * spread, 0.0))
    tl.store(apart + row, tl.where(kept, (there + back) / 2, 0.0))
    if wanted:
        half = apart_weight / 2
        for start in range(0, vocabulary, block):
            at = start + tl.arange(0, block)
            real = at < vocabulary
            one = tl.load(x + at, mask=real & kept, other=0.0).to(tl.float32)
            two = tl.load(y + at, mask=real & kept, other=0.0).to(tl.float32)
            away = one - two - shift  # log P1 - log P2
            one = tl.exp(one - x_norm)
            two = tl.exp(two - y_norm)
            target_part = smoothing / vocabulary + tl.where(at == target, 1 - smoothing, 0.0)
            of_x = one - target_part + half * (one * (away + 1 - there) - two)
            of_y = two - target_part + half * (two * (1 - away - back) - one)
            tl.store(x + at, tl.where(kept, of_x, 0.0).to(first.dtype.element_ty), mask=real)
            tl.store(y + at, tl.where(kept, of_y, 0.0).to(second.dtype.element_ty), mask=real)
