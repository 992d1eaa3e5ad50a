"""Numbers of single sentences that add up, and the score of any sum of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from saccade.score.accuracy import letters_right, right
from saccade.score.bleu import bleu_of, bleu_statistics
from saccade.score.captions import caption_statistics
from saccade.score.errors import ERRORS, error_of, error_statistics
from saccade.score.labels import scores_of, statistics_of


def statistics(
    metric: str, hypotheses: Sequence[str], references: Sequence[Any], labels: str | None = None
) -> np.ndarray:
    """(N, n): one row for each sentence, by "bleu", "accuracy", "letters", "wer" or "cer"; of labels, for all scores.

    Where a reference is a list of texts, each of them is right.
    """
    if labels is not None:
        return statistics_of(labels, hypotheses, references)
    if references and not isinstance(references[0], str):
        return caption_statistics(metric, hypotheses, references)
    if metric in ERRORS:
        return error_statistics(hypotheses, references, unit=metric)
    if metric == "bleu":
        return bleu_statistics(hypotheses, references)
    if metric == "letters":
        return letters_right(hypotheses, references)
    hits = right(hypotheses, references)
    return np.stack([hits, np.ones_like(hits)], axis=1).astype(np.int64)


def score_of(metric: str, labels: str | None = None) -> Callable[[np.ndarray], float]:
    """What makes a score of summed statistics (n,)."""
    if labels is not None:
        made: Callable[[np.ndarray], float] = scores_of(labels)[metric]
        return made
    if metric in ERRORS:
        return error_of
    return bleu_of if metric in ("bleu", "bleu-4") else _percent


def _percent(statistics: np.ndarray) -> float:
    """The first number as a share of the second; all of nothing is right."""
    return 100 * float(statistics[0]) / float(statistics[1]) if statistics[1] else 100.0


# ---- Is one system better than another, or was it the choice of sentences? Paired bootstrap (Koehn 2004).


@dataclass(frozen=True)
class Difference:
    """A score minus that of the baseline, with the interval that holds 95% of the samples."""

    value: float
    low: float
    high: float
    p_value: float


def paired_bootstrap(
    systems: Sequence[Sequence[np.ndarray]],
    score: Callable[[np.ndarray], float],
    *,
    samples: int = 1000,
    seed: int = 1,
) -> list[Difference]:
    """Each system against the first, on the same samples of sentences.

    A system is one or more runs, each with statistics (N, n) that add up over sentences; `score` makes a number of
    their sum, and the score of a system is the mean over its runs.
    """
    rng, n = np.random.default_rng(seed), len(systems[0][0])
    drawn = rng.multinomial(n, np.full(n, 1 / n), size=samples)  # how often each sentence is in each sample
    sampled = [np.mean([[score(row) for row in drawn @ run] for run in runs], axis=0) for runs in systems]
    whole = [float(np.mean([score(run.sum(0)) for run in runs])) for runs in systems]
    return [_difference(whole[i] - whole[0], sampled[i] - sampled[0]) for i in range(len(systems))]


def _difference(value: float, sampled: np.ndarray) -> Difference:
    """p is two-sided: how often samples stray from their mean at least as far as the difference itself is from 0.

    That is the test of sacrebleu (after Riezler and Maxwell 2005), which counts the observed one as a sample too.
    """
    low, high = np.percentile(sampled, [2.5, 97.5])
    far = np.count_nonzero(np.abs(sampled - sampled.mean()) >= abs(value))
    return Difference(value, float(low), float(high), float((far + 1) / (len(sampled) + 1)))
