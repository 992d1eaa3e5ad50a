"""What a ladder came to: a row for each rung, with intervals, cost, and the score at each length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, stdev
from typing import Any

import numpy as np

from saccade.errors import SaccadeError
from saccade.ladder.ground import Ground
from saccade.ladder.rungs import Rung
from saccade.score.statistics import Difference, paired_bootstrap, score_of, statistics

BINS = 8  # of lengths, at most
SAMPLES = 1000  # of the bootstrap


@dataclass(frozen=True)
class Tried:
    """One run on the test pairs."""

    hypotheses: list[str]
    scores: dict[str, float]
    signature: str  # of BLEU
    parameters: int
    seconds: float | None  # of training
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
    """One rung; where it has several seeds, their mean."""

    rung: str
    group: str
    about: str
    recipe: str
    seeds: int
    score: float
    spread: float | None  # standard deviation over the seeds
    against: str  # the rung that it is compared with; none for the first
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
    diverged: list[str]  # runs whose loss was no longer a number

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def results(
    ground: Ground, rungs: Sequence[Rung], tried: Mapping[str, Sequence[Tried]], *, diverged: Sequence[str] = ()
) -> Ladder:
    """The rows of all rungs, each compared with the rung that it names, or else with the one before it."""
    rungs = [rung for rung in rungs if tried[rung.name]]
    if not rungs:
        raise SaccadeError(f"no rung could be trained: {', '.join(diverged)} diverged; try train.schedule.lr=0.001")
    references = [target for _, target in ground.test]
    numbers = {
        rung.name: [statistics(ground.metric, run.hypotheses, references) for run in tried[rung.name]] for rung in rungs
    }
    groups = by_length(ground.lengths())
    rows = []
    for i, rung in enumerate(rungs):
        other = rung.against if rung.against in numbers else rungs[i - 1].name if i else ""
        change = None
        if other:
            pair = [numbers[other], numbers[rung.name]]
            change = paired_bootstrap(pair, score_of(ground.metric), samples=SAMPLES)[1]
        rows.append(_row(rung, tried[rung.name], numbers[rung.name], (other, change), ground.metric, groups))
    return Ladder(
        size=ground.size,
        data=ground.about,
        metric=ground.metric,
        signature=tried[rungs[0].name][0].signature,
        unit=ground.unit,
        sentences=len(references),
        bins=[_bin(group, ground.lengths()) for group in groups],
        rows=rows,
        diverged=list(diverged),
    )


def by_length(lengths: Sequence[int], bins: int = BINS) -> list[np.ndarray]:
    """Which sentences belong together: about as many in each group, and those of one length in the same."""
    values = np.array(lengths)
    edges = np.unique(np.quantile(values, np.linspace(0, 1, bins + 1)[1:], method="higher"))
    places = np.searchsorted(edges, values)
    return [found for place in range(len(edges)) if len(found := np.flatnonzero(places == place))]


def _bin(group: np.ndarray, lengths: Sequence[int]) -> Bin:
    inside = [lengths[i] for i in group]
    return Bin(min(inside), max(inside), len(inside), fmean(inside))


def _row(
    rung: Rung,
    runs: Sequence[Tried],
    numbers: Sequence[np.ndarray],
    compared: tuple[str, Difference | None],
    metric: str,
    groups: Sequence[np.ndarray],
) -> Row:
    score = score_of(metric)
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
