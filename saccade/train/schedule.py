"""Learning rate schedules: functions of the optimizer step alone."""

from __future__ import annotations

import math
from collections.abc import Callable

from saccade.config.schema import Schedule, Train
from saccade.config.training import OwnSchedule
from saccade.data.batching.batches import Rows, count_batches
from saccade.data.store.streaming import DocumentStream
from saccade.errors import SaccadeError

LearningRateFn = Callable[[int], float]


def build_schedule(
    settings: Schedule | OwnSchedule, *, dim: int, total: int | None, by_time: bool = False
) -> LearningRateFn:
    """Build the learning rate as a function of the step, counted from 1 (step 0 counts as step 1).

    `dim` is the model width of the inverse-square-root schedule; `total` is the step at which `linear` and `cosine`
    reach the floor. A schedule of the user's own is called with the step and `total`, which is None if it is unknown.
    With `by_time`, `total` may be unknown at first: then the rate stays at its peak after warmup.
    """
    if isinstance(settings, OwnSchedule):
        own, options = settings.maker, settings.settings()
        return lambda step: settings.lr * own(max(step, 1), total, **options)
    if settings.scales_with_width:
        return lambda step: inverse_sqrt_lr(step, lr=settings.lr, dim=dim, steps=settings.warmup_steps)
    if not settings.decays_to_end:
        return lambda step: settings.lr * get_warmup_fraction(step, settings.warmup_steps)
    if total is None and by_time:
        return lambda step: settings.lr * get_warmup_fraction(step, settings.warmup_steps)
    if total is None:
        raise SaccadeError(
            f'train.schedule.kind = "{settings.kind}" needs the number of steps, but train.steps is not set; '
            'set train.steps=N or train.minutes=N, or use train.schedule.kind="warmup"'
        )
    decay = {"linear": linear_lr, "cosine": cosine_lr}[settings.kind]
    return lambda step: decay(step, lr=settings.lr, floor=settings.min_lr, steps=settings.warmup_steps, total=total)


def compute_total_steps(settings: Train, store: Rows | DocumentStream) -> int | None:
    """Number of steps of a schedule that decays to a floor: `train.steps`, or those of all epochs if that is fewer."""
    if settings.epochs is None or not settings.schedule.decays_to_end:
        return settings.steps
    if isinstance(store, DocumentStream):
        raise SaccadeError(
            f'the length of an epoch of a stream is unknown, but train.schedule.kind = "{settings.schedule.kind}" ends '
            "with the last one; set train.steps instead of train.epochs"
        )
    batches = count_batches(store, batch_tokens=settings.batch_tokens, seed=settings.seed)
    steps = math.ceil(settings.epochs * batches / settings.accumulate)
    return steps if settings.steps is None else min(steps, settings.steps)


def inverse_sqrt_lr(step: int, *, lr: float, dim: int, steps: int) -> float:
    """lr * D^-0.5 * min(step^-0.5, step * warmup^-1.5) (Vaswani et al. 2017, equation 3)."""
    step = max(step, 1)
    rising = step * steps**-1.5 if steps else math.inf
    return lr * dim**-0.5 * min(step**-0.5, rising)


def linear_lr(step: int, *, lr: float, floor: float, steps: int, total: int) -> float:
    """Linear warmup to `lr` in `steps`, then linear decay to `floor` at `total`."""
    return (
        floor + (lr - floor) * (1 - get_decay_fraction(step, steps, total))
        if step > steps
        else lr * get_warmup_fraction(step, steps)
    )


def cosine_lr(step: int, *, lr: float, floor: float, steps: int, total: int) -> float:
    """Linear warmup to `lr` in `steps`, then cosine decay to `floor` at `total` (Loshchilov and Hutter 2017)."""
    if step <= steps:
        return lr * get_warmup_fraction(step, steps)
    return floor + (lr - floor) * 0.5 * (1 + math.cos(math.pi * get_decay_fraction(step, steps, total)))


def get_warmup_fraction(step: int, steps: int) -> float:
    return min(1.0, max(step, 1) / steps) if steps else 1.0


def get_decay_fraction(step: int, steps: int, total: int) -> float:
    """Progress from the end of warmup (0) to the last step (1); a run may end before its warmup does."""
    return min(1.0, (step - steps) / max(1, total - steps))
