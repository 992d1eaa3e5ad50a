"""Learning rates: pure functions of the optimizer step, never of the clock."""

from __future__ import annotations

import math
from collections.abc import Callable

from saccade.config.schema import Schedule, Train
from saccade.data.batching.batches import Rows, batches_in_epoch
from saccade.data.store.streaming import Streamed
from saccade.data.worlds.episodes import Episodes
from saccade.errors import SaccadeError

Rate = Callable[[int], float]


def schedule_from(settings: Schedule, *, dim: int, total: int | None) -> Rate:
    """The learning rate of step 1, 2, ... as a function; step 0 is defined as step 1.

    `dim` is the width that `warmup` divides by; `total` is where `linear` and `cosine` arrive at the floor.
    """
    if settings.is_by_width:
        return lambda step: warmup(step, lr=settings.lr, dim=dim, steps=settings.warmup)
    if not settings.ends:
        return lambda step: settings.lr * rise(step, settings.warmup)
    if total is None:
        raise SaccadeError(
            f'train.schedule.kind = "{settings.kind}" must know its last step, but train.steps is not set; '
            'set train.steps=N (the minutes may still end the run earlier) or use train.schedule.kind="warmup"'
        )
    shape = {"linear": linear, "cosine": cosine}[settings.kind]
    return lambda step: shape(step, lr=settings.lr, floor=settings.floor, steps=settings.warmup, total=total)


def total_steps(settings: Train, store: Rows | Streamed | Episodes, *, world: int) -> int | None:
    """Where `linear` and `cosine` end: at the last step, or with the last epoch if that comes first."""
    if settings.epochs is None or not settings.schedule.ends:
        return settings.steps
    if isinstance(store, Streamed):
        raise SaccadeError(
            f'how long an epoch of a stream is nobody knows, but train.schedule.kind = "{settings.schedule.kind}" ends '
            "with the last one; set train.steps in the place of train.epochs"
        )
    assert not isinstance(store, Episodes), "a recipe that plays has no epochs"
    batches = batches_in_epoch(store, batch_tokens=settings.batch_tokens, seed=settings.seed)
    steps = math.ceil(settings.epochs * batches / (world * settings.accumulate))
    return steps if settings.steps is None else min(steps, settings.steps)


def warmup(step: int, *, lr: float, dim: int, steps: int) -> float:
    """lr * D^-0.5 * min(step^-0.5, step * warmup^-1.5) (Vaswani et al. 2017, equation 3)."""
    step = max(step, 1)
    rising = step * steps**-1.5 if steps else math.inf
    return lr * dim**-0.5 * min(step**-0.5, rising)


def linear(step: int, *, lr: float, floor: float, steps: int, total: int) -> float:
    """Rises to `lr` in `steps`, then falls in a straight line to `floor` at `total`."""
    return floor + (lr - floor) * (1 - gone(step, steps, total)) if step > steps else lr * rise(step, steps)


def cosine(step: int, *, lr: float, floor: float, steps: int, total: int) -> float:
    """Rises to `lr` in `steps`, then falls as half a cosine to `floor` at `total` (Loshchilov and Hutter 2017)."""
    if step <= steps:
        return lr * rise(step, steps)
    return floor + (lr - floor) * 0.5 * (1 + math.cos(math.pi * gone(step, steps, total)))


def rise(step: int, steps: int) -> float:
    return min(1.0, max(step, 1) / steps) if steps else 1.0


def gone(step: int, steps: int, total: int) -> float:
    """The share of the way from the peak to the last step that lies behind; a run may end before its peak."""
    return min(1.0, (step - steps) / max(1, total - steps))
