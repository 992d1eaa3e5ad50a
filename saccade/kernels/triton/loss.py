"""Triton kernels of the cross-entropy loss: compute the losses of a chunk of logits and overwrite these with gradients.

A program processes one row of any vocabulary size, with one pass for its statistics in float32 and one for the
gradients. `compute_loss_rows_reference` in layers/losses/cross_entropy.py is the reference. Import only where Triton is
installed.
"""

from typing import Any, no_type_check

import triton
import triton.language as tl
from torch import Tensor

LOG2E = tl.constexpr(1.4426950408889634)  # exp(x) = 2^(x log2 e)
LOWEST_LOGIT = tl.constexpr(-1e30)  # lower than every logit, but finite, which avoids NaN in differences
GROUP = 8  # consecutive entries that a thread reads at once
BLOCK, WARPS = 8192, 16  # vocabulary entries per iteration and warps of a program, tuned on an H200


def compute_loss_rows(
    logits: Tensor, targets: Tensor, keep: Tensor, values: Tensor, settings: Any, needs_gradients: bool
) -> None:
    """Write the losses of each row to `values`, and overwrite the logits (P, R, V) with gradients if needed."""
    passes, rows, vocabulary = logits.shape
    if not rows:
        return
    smoothing, kl_weight = settings
    smoothed, nll, kl = values
    block = min(triton.next_power_of_2(vocabulary), BLOCK)
    if passes == 1:
        kl.zero_()
        _single_pass_kernel[(rows,)](
            logits, logits.stride(1), targets, keep, smoothed, nll, smoothing,
            vocabulary=vocabulary, has_smoothing=smoothing > 0, needs_gradients=needs_gradients, block=block,
            group=min(block, GROUP),
            num_warps=WARPS,
        )  # fmt: skip
    else:
        first, second = logits
        _two_pass_kernel[(rows,)](
            first, second, logits.stride(1), targets, keep, smoothed, nll, kl, smoothing, kl_weight,
            vocabulary=vocabulary, needs_gradients=needs_gradients, block=block, num_warps=WARPS,
        )  # fmt: skip


# no_type_check: Triton parses the source of these functions, which a runtime type checker would wrap.
# do_not_specialize_on_alignment: chunks start at different alignments, which should not trigger recompilation.


@triton.jit
@no_type_check
def _update_groups(top, total, value, block: tl.constexpr, group: tl.constexpr):
    """Update the maximum and the sum of exponentials of each group of entries with one more block."""
    value = tl.reshape(value, (block // group, group))
    new_top = tl.maximum(top, tl.max(value, 1))
    part = tl.exp2(value * LOG2E - (new_top * LOG2E)[:, None])
    return new_top, total * tl.exp2((top - new_top) * LOG2E) + tl.sum(part, 1)


@triton.jit
@no_type_check
def _compute_statistics(
    x, vocabulary: tl.constexpr, has_smoothing: tl.constexpr, block: tl.constexpr, group: tl.constexpr
):
    """The logsumexp of a row, and the sum of its values.

    Each thread keeps its own maximum and sum, so that threads are reduced once at the end instead of at every block.
    """
    top = tl.full([block // group], LOWEST_LOGIT, tl.float32)
    total = tl.zeros([block // group], tl.float32)
    added = tl.zeros([block], tl.float32)
    whole: tl.constexpr = vocabulary // block * block
    for start in range(0, whole, block):
        value = tl.load(x + start + tl.arange(0, block)).to(tl.float32)
        if has_smoothing:
            added += value
        top, total = _update_groups(top, total, value, block, group)
    if whole < vocabulary:
        at = whole + tl.arange(0, block)
        value = tl.load(x + at, mask=at < vocabulary, other=-float("inf")).to(tl.float32)
        if has_smoothing:
            added += tl.where(at < vocabulary, value, 0.0)
        top, total = _update_groups(top, total, value, block, group)
    max_logit = tl.max(top, 0)
    return max_logit + tl.log(tl.sum(total * tl.exp2((top - max_logit) * LOG2E), 0)), tl.sum(added, 0)


@triton.jit(do_not_specialize_on_alignment=["targets", "keep", "smoothed", "nll"])
@no_type_check
def _single_pass_kernel(  # noqa: PLR0913
    logits, stride, targets, keep, smoothed, nll, smoothing,
    vocabulary: tl.constexpr, has_smoothing: tl.constexpr, needs_gradients: tl.constexpr, block: tl.constexpr,
    group: tl.constexpr,
):  # fmt: skip
    """Losses and gradients of one row; masks and comparisons are kept out of the loops."""
    row = tl.program_id(0)
    x = logits + row.to(tl.int64) * stride
    whole: tl.constexpr = vocabulary // block * block
    if tl.load(keep + row) != 0:
        target = tl.load(targets + row)
        target_logit = tl.load(x + target).to(tl.float32)  # before it is overwritten
        logsumexp, added = _compute_statistics(x, vocabulary, has_smoothing, block, group)
        loss = logsumexp - target_logit
        tl.store(nll + row, loss)
        tl.store(smoothed + row, (1 - smoothing) * loss + smoothing * (logsumexp - added / vocabulary))
        if needs_gradients:
            shift = logsumexp * LOG2E
            each = smoothing / vocabulary
            for start in range(0, whole, block):
                at = start + tl.arange(0, block)
                gradient = tl.exp2(tl.load(x + at).to(tl.float32) * LOG2E - shift)
                if has_smoothing:
                    gradient -= each
                tl.store(x + at, gradient.to(logits.dtype.element_ty))
            if whole < vocabulary:
                at = whole + tl.arange(0, block)
                value = tl.load(x + at, mask=at < vocabulary, other=0.0).to(tl.float32)
                gradient = tl.exp2(value * LOG2E - shift) - each
                tl.store(x + at, gradient.to(logits.dtype.element_ty), mask=at < vocabulary)
            tl.debug_barrier()  # the gradient of the target overwrites the one that the loop has stored
            gradient = tl.exp2(target_logit * LOG2E - shift) - each - (1 - smoothing)
            tl.store(x + target, gradient.to(logits.dtype.element_ty))
    else:
        tl.store(nll + row, 0.0)
        tl.store(smoothed + row, 0.0)
        if needs_gradients:
            for start in range(0, vocabulary, block):
                at = start + tl.arange(0, block)
                tl.store(x + at, tl.zeros([block], logits.dtype.element_ty), mask=at < vocabulary)


@triton.jit
@no_type_check
def _update_statistics(top, total, weighted, value, log_ratio):
    """Update maximum, sum of exponentials and sum weighted by `log_ratio` (both elementwise) with one more block."""
    new_top = tl.maximum(top, tl.max(value, 0))
    rescale = tl.exp(top - new_top)
    part = tl.exp(value - new_top)
    return new_top, total * rescale + part, weighted * rescale + part * log_ratio


@triton.jit(do_not_specialize_on_alignment=["targets", "keep", "smoothed", "nll", "kl"])
@no_type_check
def _two_pass_kernel(  # noqa: PLR0913
    first, second, stride, targets, keep, smoothed, nll, kl, smoothing, kl_weight,
    vocabulary: tl.constexpr, needs_gradients: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    x = first + row.to(tl.int64) * stride
    y = second + row.to(tl.int64) * stride
    kept = tl.load(keep + row) != 0
    target = tl.load(targets + row)
    target_logit = tl.load(x + target, mask=kept, other=0.0).to(tl.float32)
    target_logit += tl.load(y + target, mask=kept, other=0.0).to(tl.float32)
    x_top = -float("inf")
    y_top = -float("inf")
    x_total = tl.zeros([block], tl.float32)
    y_total = tl.zeros([block], tl.float32)
    x_weighted = tl.zeros([block], tl.float32)  # sum of exp(x) (x - y), scaled like the total
    y_weighted = tl.zeros([block], tl.float32)
    added = tl.zeros([block], tl.float32)
    for start in range(0, vocabulary, block):
        at = start + tl.arange(0, block)
        real = at < vocabulary
        one = tl.load(x + at, mask=real & kept, other=0.0).to(tl.float32)
        two = tl.load(y + at, mask=real & kept, other=0.0).to(tl.float32)
        added += one + two
        log_ratio = one - two
        one = tl.where(real, one, -float("inf"))
        two = tl.where(real, two, -float("inf"))
        x_top, x_total, x_weighted = _update_statistics(x_top, x_total, x_weighted, one, log_ratio)
        y_top, y_total, y_weighted = _update_statistics(y_top, y_total, y_weighted, two, log_ratio)
    x_sum, y_sum = tl.sum(x_total, 0), tl.sum(y_total, 0)
    x_logsumexp = x_top + tl.log(x_sum)
    y_logsumexp = y_top + tl.log(y_sum)
    shift = x_logsumexp - y_logsumexp
    forward_kl = tl.sum(x_weighted, 0) / x_sum - shift  # KL(P1 || P2)
    backward_kl = shift - tl.sum(y_weighted, 0) / y_sum
    loss = x_logsumexp + y_logsumexp - target_logit
    spread = x_logsumexp + y_logsumexp - tl.sum(added, 0) / vocabulary
    tl.store(nll + row, tl.where(kept, loss, 0.0))
    tl.store(smoothed + row, tl.where(kept, (1 - smoothing) * loss + smoothing * spread, 0.0))
    tl.store(kl + row, tl.where(kept, (forward_kl + backward_kl) / 2, 0.0))
    if needs_gradients:
        half = kl_weight / 2
        for start in range(0, vocabulary, block):
            at = start + tl.arange(0, block)
            real = at < vocabulary
            one = tl.load(x + at, mask=real & kept, other=0.0).to(tl.float32)
            two = tl.load(y + at, mask=real & kept, other=0.0).to(tl.float32)
            log_ratio = one - two - shift  # log P1 - log P2
            one = tl.exp(one - x_logsumexp)
            two = tl.exp(two - y_logsumexp)
            target_part = smoothing / vocabulary + tl.where(at == target, 1 - smoothing, 0.0)
            grad_x = one - target_part + half * (one * (log_ratio + 1 - forward_kl) - two)
            grad_y = two - target_part + half * (two * (1 - log_ratio - backward_kl) - one)
            tl.store(x + at, tl.where(kept, grad_x, 0.0).to(first.dtype.element_ty), mask=real)
            tl.store(y + at, tl.where(kept, grad_y, 0.0).to(second.dtype.element_ty), mask=real)
