"""The results of a ladder: a row for each rung with scores, confidence intervals, cost, and the score by length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any

import numpy as np

from saccade.config.metric import Predictions, SumMetric
from saccade.errors import SaccadeError
from saccade.ladder.data import LadderData
from saccade.ladder.rungs import Rung
from saccade.score.statistics import Difference, compute_statistics, get_additive_metric, paired_bootstrap

MAX_BINS = 8  # of source lengths
BOOTSTRAP_SAMPLES = 1000


@dataclass(frozen=True)
class RunResult:
    """Outputs and scores of one run on the test pairs."""

    hypotheses: list[str]
    scores: dict[str, float]
    signature: str  # of BLEU
    parameters: int
    seconds: float | None  # training time
    sentences_per_second: float


@dataclass(frozen=True)
class Bin:
    """Test pairs of similar length."""

    shortest: int
    longest: int
    sentences: int
    mean: float


@dataclass(frozen=True)
class Row:
    """The result of one rung; the mean over its seeds."""

    rung: str
    group: str
    about: str
    recipe: str
    seeds: int
    score: float
    spread: float | None  # standard deviation over the seeds
    against: str  # the rung that it is compared with; "" for the first
    difference: Difference | None
    parameters: int
    seconds: float | None
    sentences_per_second: float
    scores: dict[str, float]
    by_length: list[float]  # the score in each bin


@dataclass(frozen=True)
class Ladder:
    size: str
    data: str
    metric: str
    signature: str  # of BLEU
    unit: str  # of the lengths
    sentences: int
    bins: list[Bin]
    rows: list[Row]
    diverged: list[str]  # runs whose loss became NaN or infinite

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def build_ladder(
    data: LadderData, rungs: Sequence[Rung], runs: Mapping[str, Sequence[RunResult]], *, diverged: Sequence[str] = ()
) -> Ladder:
    """Build the rows of all rungs, each compared with its `against` rung, or else with the previous one."""
    rungs = [rung for rung in rungs if runs[rung.name]]
    if not rungs:
        raise SaccadeError(f"no rung could be trained: {', '.join(diverged)} diverged; try train.schedule.lr=0.001")
    references = [target for _, target in data.test]
    metric = get_additive_metric(data.metric)
    numbers = {
        rung.name: [compute_statistics(metric, Predictions(run.hypotheses, references)) for run in runs[rung.name]]
        for rung in rungs
    }
    groups = group_by_length(data.count_lengths())
    rows = []
    for i, rung in enumerate(rungs):
        other = rung.against if rung.against in numbers else rungs[i - 1].name if i else ""
        change = None
        if other:
            pair = [numbers[other], numbers[rung.name]]
            change = paired_bootstrap(pair, metric.compute_from_sums, samples=BOOTSTRAP_SAMPLES)[1]
        rows.append(_build_row(rung, runs[rung.name], numbers[rung.name], (other, change), metric, groups))
    return Ladder(
        size=data.size,
        data=data.about,
        metric=data.metric,
        signature=runs[rungs[0].name][0].signature,
        unit=data.unit,
        sentences=len(references),
        bins=[_build_bin(group, data.count_lengths()) for group in groups],
        rows=rows,
        diverged=list(diverged),
    )


def group_by_length(lengths: Sequence[int], bins: int = MAX_BINS) -> list[np.ndarray]:
    """Group sentence indices into bins of about equal size; sentences of the same length share a bin."""
    values = np.array(lengths)
    edges = np.unique(np.quantile(values, np.linspace(0, 1, bins + 1)[1:], method="higher"))
    places = np.searchsorted(edges, values)
    return [found for place in range(len(edges)) if len(found := np.flatnonzero(places == place))]


def _build_bin(group: np.ndarray, lengths: Sequence[int]) -> Bin:
    inside = [lengths[i] for i in group]
    return Bin(min(inside), max(inside), len(inside), fmean(inside))


def _build_row(
    rung: Rung,
    runs: Sequence[RunResult],
    numbers: Sequence[np.ndarray],
    compared: tuple[str, Difference | None],
    metric: SumMetric,
    groups: Sequence[np.ndarray],
) -> Row:
    score = metric.compute_from_sums
    values = [score(each.sum(0)) for each in numbers]
    seconds = [run.seconds for run in runs if run.seconds is not None]
    return Row(
        rung=rung.name,
        group=rung.group,
        about=rung.about,
        recipe=rung.recipe,
        seeds=len(runs),
        score=fmean(values),
        spread=stdev(values) if len(values) > 1 else None,
        against=compared[0],
        difference=compared[1],
        parameters=runs[0].parameters,
        seconds=fmean(seconds) if seconds else None,
        sentences_per_second=fmean(run.sentences_per_second for run in runs),
        scores={name: fmean(run.scores[name] for run in runs) for name in runs[0].scores},
        by_length=[fmean(score(each[group].sum(0)) for each in numbers) for group in groups],
    )
