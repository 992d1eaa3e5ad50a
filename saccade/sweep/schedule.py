"""Which trials are trained, in which order and how far: all of a grid, or with successive halving."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from saccade.config.schema import Recipe
from saccade.errors import SaccadeError
from saccade.sweep.grid import Configuration
from saccade.sweep.trials import Trial
from saccade.sweep.workers import Pool

RUNG_SHARES = (1 / 4, 1 / 2)  # of train.steps, after which the worse half is stopped


@dataclass(eq=False)
class Group:
    """The trials of one configuration, which differ in their seed."""

    configuration: Configuration
    trials: list[Trial]
    pruned_step: int | None = None  # at which it was stopped
    refusal: str = ""  # why the recipe refuses its values, where only a search found that out

    def get_mean(self, step: float = math.inf) -> float | None:
        """Mean validation score of all trials at a step, or at their end; None if one has not come so far."""
        reached = [trial.is_finished or trial.count_steps() >= step for trial in self.trials]
        scores = [trial.get_score(step) for trial in self.trials]
        known = [score for score in scores if score is not None]
        return fmean(known) if all(reached) and known and len(known) == len(scores) else None


@dataclass
class Halving:
    """Successive halving (Jamieson and Talwalkar 2016): at each of some steps the worse half is stopped.

    Trials with the same score as the last one that goes on go on too, so that metrics that begin at 0 stop nobody.
    """

    rungs: Sequence[int]
    higher_is_better: bool

    def select(self, groups: Sequence[Group], step: int) -> list[Group]:
        """Return the groups that go on, and mark the others as pruned."""
        scored = [(mean, group) for group in groups if (mean := group.get_mean(step)) is not None]
        sign = -1 if self.higher_is_better else 1
        ranked = sorted((sign * mean for mean, _ in scored))
        if not ranked:
            return []
        limit = ranked[math.ceil(len(ranked) / 2) - 1]
        for mean, group in scored:
            group.pruned_step = step if sign * mean > limit else None
        return [group for _, group in scored if group.pruned_step is None]


def choose_rungs(recipes: Sequence[Recipe]) -> list[int]:
    """The steps at which trials are compared: validations after a quarter and after half of the training."""
    settings = {(recipe.train.steps, recipe.train.valid_every) for recipe in recipes}
    if len(settings) > 1:
        raise SaccadeError(
            "--prune compares trials at the same step; leave train.steps and train.valid_every out of the grid, or "
            "leave out --prune"
        )
    [(steps, every)] = settings
    if steps is None:
        raise SaccadeError("--prune needs the number of steps; set train.steps, or leave out --prune")
    rungs = sorted({math.ceil(steps * share / every) * every for share in RUNG_SHARES})
    rungs = [step for step in rungs if step < steps]
    if not rungs:
        raise SaccadeError(
            f"--prune needs a validation before the end: train.steps is {steps} and train.valid_every is {every}; set "
            f"train.valid_every={max(1, steps // 4)}, or leave out --prune"
        )
    return rungs


def train_grid(pool: Pool, groups: Sequence[Group], halving: Halving | None) -> None:
    """Train all trials, seed by seed; with halving, rung by rung those that are left."""
    left = list(groups)
    for step in halving.rungs if halving else ():
        pool.train(order_trials(left), until=step)
        if halving and len(left) > 1:
            before, left = left, halving.select(left, step)
            report_pruned(pool, before)
    pool.train(order_trials(left))


def report_pruned(pool: Pool, groups: Sequence[Group]) -> None:
    for group in groups:
        if group.pruned_step is not None:
            pool.progress.prune(group.configuration, len(group.trials), group.pruned_step)


def order_trials(groups: Sequence[Group]) -> list[Trial]:
    """The first seed of all configurations, then the second: scores of all are there early."""
    seeds = max((len(group.trials) for group in groups), default=0)
    return [group.trials[i] for i in range(seeds) for group in groups if i < len(group.trials)]
