"""The speed of the first steps: how long training will take, and how many steps fit into `train.minutes`."""

from __future__ import annotations

import math
import time
from datetime import timedelta
from typing import Any

import numpy as np
import torch

from saccade.config.schema import Train
from saccade.data.batching.batches import Rows, count_batches
from saccade.train.schedule import build_schedule
from saccade.train.session import Session

ANNOUNCE_STEPS, ANNOUNCE_SECONDS = 5, 10.0  # expected time is printed after so many steps, or seconds
BUDGET_STEPS, BUDGET_SHARE = 20, 0.1  # `minutes` become steps after so many steps, or this share of the time
MIN_ANNOUNCED_SECONDS = 20.0  # shorter trainings are not announced
LONG_SECONDS = 86_400.0  # from here on a smaller recipe is suggested
FLOPS_PER_WEIGHT = 6  # of a training step, for each token: two in the forward pass, four in the backward pass
MIN_FLOPS = 1e16  # of a training whose time is estimated before it begins; fewer take no day on any CPU


class Pace:
    """Measures the time of a step, without validation and checkpoints.

    The first step compiles and allocates: it counts only if it takes so long that nobody would wait for a second one.
    """

    def __init__(self, s: Session) -> None:
        self.first_step = s.progress.step  # first of the steps that count
        self.start = get_training_time(s)
        self.is_first = True  # whether no step is done yet that could count
        self.announced = False

    def update(self, s: Session) -> None:
        """Note that a step is done; announce the expected time and fix the number of steps once it is known."""
        if self.announced and not needs_steps(s):
            return
        seconds, steps = get_training_time(s) - self.start, s.progress.step - self.first_step
        share = 60 * (s.recipe.train.minutes or math.inf) * BUDGET_SHARE
        if self.is_first and seconds < min(ANNOUNCE_SECONDS, share):
            synchronize(s.device)
            self.is_first = False
            self.first_step, self.start = s.progress.step, get_training_time(s)
            return
        if needs_steps(s) and s.ranks.any_rank(steps >= BUDGET_STEPS or seconds >= share, s.device):
            fix_steps(s, self.measure(s, steps))
            self.announced = True
        elif not self.announced and (steps >= ANNOUNCE_STEPS or seconds >= ANNOUNCE_SECONDS):
            announce(s, self.measure(s, steps))
            self.announced = True

    def measure(self, s: Session, steps: int) -> float:
        """Return the seconds of a step."""
        synchronize(s.device)
        return (get_training_time(s) - self.start) / steps


def get_training_time(s: Session) -> float:
    """A clock that stands still during validation and while checkpoints are written."""
    return time.perf_counter() - s.excluded_seconds


def needs_steps(s: Session) -> bool:
    """Whether `train.minutes` is set and has not become a number of steps yet."""
    return s.recipe.train.minutes is not None and s.progress.planned_minutes != s.recipe.train.minutes


def fix_steps(s: Session, seconds_per_step: float) -> None:
    """Turn what is left of `train.minutes` into steps, the same in all processes; the schedule ends with them."""
    minutes = s.recipe.train.minutes or 0.0
    left = 60 * minutes - (s.update_seconds() - s.excluded_seconds)
    steps = s.progress.step + max(0, int(left / seconds_per_step))
    s.progress.planned_steps, s.progress.planned_minutes = s.ranks.broadcast(steps), minutes
    s.log.print_line(
        f"{s.progress.planned_steps:,} steps fit into train.minutes={minutes:g}, at "
        f"{seconds_per_step:.3g} s a step; training ends with that step"
    )
    adopt_planned_steps(s)


def adopt_planned_steps(s: Session) -> None:
    """Let schedule and progress bar end at the planned step, unless `train.steps` or `train.epochs` end before."""
    if s.progress.planned_steps is None or needs_steps(s):
        return
    s.total_steps = min(s.progress.planned_steps, s.total_steps or s.progress.planned_steps)
    s.learning_rate = build_schedule(s.recipe.train.schedule, dim=s.model.dim, total=s.total_steps)
    s.log.set_total(s.total_steps)


def announce(s: Session, seconds_per_step: float) -> None:
    """Say how long training will take; where that is days, name a recipe that takes less."""
    steps = s.total_steps
    if steps is None or (left := (steps - s.progress.step) * seconds_per_step) < MIN_ANNOUNCED_SECONDS:
        return
    s.log.print_line(
        f"expected time for {steps:,} steps: {format_time(left)} and validation, at {seconds_per_step:.3g} s a step"
    )
    if left >= LONG_SECONDS:
        s.log.print_line(f"note: that is days; {suggest_less(s)}")


def suggest_less(s: Session) -> str:
    """Name what takes less time."""
    small = s.recipe.task.small_recipe
    hint = f"the recipe {small} is made for small data and a CPU; " if small and small != s.recipe.name else ""
    return f"{hint}--tiny trains a small model on synthetic data, train.minutes=60 for an hour"


def warn_of_days(s: Session, data: Any) -> str:
    """Return a line, before the first step, if training takes days on this CPU however fast it computes; or none.

    A step takes at least its matrix products: 6 FLOPs for each token and weight (Kaplan et al. 2020). `data` is what is
    trained on.
    """
    steps = s.total_steps
    if s.device.type != "cpu" or steps is None or s.recipe.train.minutes is not None or s.recipe.reader.medium:
        return ""
    batches = s.recipe.train.accumulate * (steps - s.progress.step)
    flops = FLOPS_PER_WEIGHT * batches * count_weights(s.model)  # for each token of a batch
    if flops * s.recipe.train.batch_tokens < MIN_FLOPS:
        return ""
    seconds = flops * count_batch_tokens(s.recipe.train, data) / measure_matmul_flops()
    if seconds < LONG_SECONDS:
        return ""
    return f"note: {steps:,} steps take at least {format_time(seconds)} on this CPU; {suggest_less(s)}"


def count_batch_tokens(settings: Train, data: Any) -> float:
    """Return the mean number of tokens on one side of a batch; a small data set does not fill batches."""
    if not isinstance(data, Rows):  # a stream
        return settings.batch_tokens
    rows = np.arange(len(data))
    sides = [float(data.get_lengths(rows, side=side).sum()) for side in range(len(data.sides))]
    return sum(sides) / len(sides) / count_batches(data, batch_tokens=settings.batch_tokens, seed=settings.seed)


def count_weights(model: torch.nn.Module) -> int:
    """Count the trained weights that each token is multiplied by: of matrices, without embeddings and experts."""
    skipped = {id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    return sum(
        parameter.numel()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and parameter.dim() == 2 and id(parameter) not in skipped and "expert" not in name
    )


def measure_matmul_flops(*, size: int = 768, seconds: float = 0.2) -> float:
    """Return the FLOP/s of the CPU in large matrix products in float32, the fastest of several."""
    a, b, times = torch.randn(size, size), torch.randn(size, size), list[float]()
    out = a @ b
    while sum(times) < seconds or len(times) < 3:
        begin = time.perf_counter()
        torch.mm(a, b, out=out)
        times.append(time.perf_counter() - begin)
    return 2 * size**3 / min(times)


def format_time(seconds: float) -> str:
    """`45 s`, `12 min`, `3 h 20 min` or `6.2 days`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    if seconds < LONG_SECONDS:
        hours, minutes = divmod(timedelta(seconds=seconds) // timedelta(minutes=1), 60)
        return f"{hours} h {minutes} min"
    return f"{seconds / LONG_SECONDS:.1f} days"


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
