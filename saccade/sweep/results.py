"""The results of a sweep: a row for each configuration with its mean score over seeds, best first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from saccade.config.load import parse_value
from saccade.config.schema import Recipe
from saccade.display import Tabular
from saccade.score.compare import read_training_minutes
from saccade.score.statistics import get_half_width
from saccade.sweep.grid import shorten_keys
from saccade.sweep.schedule import Group
from saccade.sweep.trials import FAILED, FINISHED, PRUNED, Trial

STATES = (FINISHED, PRUNED, FAILED)  # in the order of the table


@dataclass(frozen=True)
class SweepRow:
    """One configuration; means are taken over its seeds."""

    values: dict[str, Any]  # by key of the recipe
    score: float | None  # mean validation score; None if no seed has one
    half_width: float | None  # of the 95% interval of that mean; None for a single seed
    scores: list[float]  # of each seed
    steps: int
    minutes: float
    state: str  # finished, pruned or failed
    reason: str  # why a trial has failed, or when it was pruned
    runs: list[str]

    @property
    def low(self) -> float | None:
        return None if self.score is None or self.half_width is None else self.score - self.half_width

    @property
    def high(self) -> float | None:
        return None if self.score is None or self.half_width is None else self.score + self.half_width


@dataclass(frozen=True)
class Sweep(Tabular):
    """The table of a sweep, best first."""

    name: str
    folder: str
    recipe: str
    metric: str
    higher_is_better: bool
    seeds: int
    rows: list[SweepRow]
    log_keys: list[str]  # keys whose values belong on a logarithmic axis

    @property
    def best(self) -> SweepRow:
        """The configuration with the best mean validation score."""
        return self.rows[0]

    @property
    def keys(self) -> list[str]:
        return [*self.rows[0].values]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_records(self) -> list[dict[str, Any]]:
        """Return a row for each configuration."""
        return [
            {
                **row.values,
                self.metric: row.score,
                "low": row.low,
                "high": row.high,
                "seeds": len(row.scores),
                "steps": row.steps,
                "minutes": row.minutes,
                "state": row.state,
                "reason": row.reason,
            }
            for row in self.rows
        ]

    def list_as_good(self) -> list[SweepRow]:
        """The finished rows whose intervals overlap with that of the best one."""
        best, others = self.best, [row for row in self.rows[1:] if row.state == FINISHED]
        if best.low is None or best.high is None:
            return []
        bounds = [(row, row.low, row.high) for row in others]
        return [
            row
            for row, low, high in bounds
            if low is not None and high is not None and low <= best.high and high >= best.low
        ]


def build_row(group: Group, failures: Mapping[str, str]) -> SweepRow:
    """Build the row of a configuration from its runs."""
    trials = group.trials
    reasons = [failures[trial.run.name] for trial in trials if trial.run.name in failures]
    known = [(trial, score) for trial in trials if (score := get_result(trial, group)) is not None]
    scores, steps = [score for _, score in known], [trial.count_steps() for trial in trials]
    state, reason = FINISHED, ""
    if group.refusal or reasons or len(scores) < len(trials):
        state, reason = FAILED, group.refusal or (reasons[0] if reasons else "no validation score")
        if len(trials) > 1 and reasons:
            reason = f"{len(reasons)} of {len(trials)} seeds: {reason}"
    elif group.pruned_step is not None:
        state, reason = PRUNED, f"worse half at step {group.pruned_step:,}"
    minutes = [read_training_minutes(trial.run) or 0.0 for trial in trials]
    return SweepRow(
        values={key: parse_value(value) for key, value in group.configuration.values},
        score=fmean(scores) if scores else None,
        half_width=get_half_width(scores),
        scores=scores,
        steps=round(fmean(steps)) if steps else 0,
        minutes=round(fmean(minutes), 3) if minutes else 0.0,
        state=state,
        reason=reason,
        runs=[trial.run.name for trial in trials],
    )


def get_result(trial: Trial, group: Group) -> float | None:
    """The score of a finished trial, or of a pruned one at the step where it was stopped."""
    if group.pruned_step is not None:
        return trial.get_score(group.pruned_step)
    return trial.get_score() if trial.is_finished else None


def rank_rows(rows: Sequence[SweepRow], *, higher_is_better: bool) -> list[SweepRow]:
    """Finished rows by score, then pruned ones, those first that were trained longer, then those that have failed."""
    sign = -1 if higher_is_better else 1

    def get_rank(row: SweepRow) -> tuple[int, int, float]:
        steps = -row.steps if row.state == PRUNED else 0
        return STATES.index(row.state), steps, float("inf") if row.score is None else sign * row.score

    return sorted(rows, key=get_rank)


def build_sweep(
    folder: Path,
    groups: Sequence[Group],
    failures: Mapping[str, str],
    *,
    recipe: Recipe,
    seeds: int,
    log_keys: Sequence[str],
) -> Sweep:
    """Build the table of a sweep."""
    rows, metric = [build_row(group, failures) for group in groups], recipe.metric
    return Sweep(
        name=folder.name,
        folder=str(folder),
        recipe=recipe.name,
        metric=metric.name,
        higher_is_better=metric.higher_is_better,
        seeds=seeds,
        rows=rank_rows(rows, higher_is_better=metric.higher_is_better),
        log_keys=list(log_keys),
    )


def get_titles(sweep: Sweep) -> list[str]:
    """Short names of the keys, as titles of columns."""
    return [*shorten_keys(sweep.keys).values()]
