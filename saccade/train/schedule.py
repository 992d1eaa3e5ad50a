"""Learning rates: pure functions of the optimizer step, never of the clock."""

from __future__ import annotations

import math
from collections.abc import Callable

from saccade.config.schema import Schedule
from saccade.errors import SaccadeError

Rate = Callable[[int], float]


def schedule_from(settings: Schedule, *, dim: int, total: int | None) -> Rate:
    """The learning rate of step 1, 2, ... as a function; step 0 is defined as step 1.

    `dim` is the width that `warmup` divides by; `total` is where `linear` and `cosine` arrive at the floor.
    """
    if settings.kind == "warmup":
        return lambda step: warmup(step, lr=settings.lr, dim=dim, steps=settings.warmup)
    if settings.kind == "constant":
        return lambda step: settings.lr * rise(step, settings.warmup)
    if total is None:
        raise SaccadeError(
            f'train.schedule.kind = "{settings.kind}" must know its last step, but train.steps is not set; '
            'set train.steps=N (the minutes may still end the run earlier) or use train.schedule.kind="warmup"'
        )
    shape = linear if settings.kind == "linear" else cosine
    return lambda step: shape(step, lr=settings.lr, floor=settings.floor, steps=settings.warmup, total=total)


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
