"""Sufficient statistics of metrics, and the paired bootstrap test."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from saccade.errors import SaccadeError
from saccade.score.labels import build_label_statistics, get_score_functions
from saccade.score.metrics.accuracy import count_correct_characters, find_exact_matches
from saccade.score.metrics.bleu import bleu_statistics, compute_bleu
from saccade.score.metrics.captions import caption_statistics
from saccade.score.metrics.error_rates import ERROR_METRICS, compute_error_rate, error_statistics


def compute_statistics(
    metric: str, hypotheses: Sequence[str], references: Sequence[Any], labels: str | None = None
) -> np.ndarray:
    """Return (N, n) additive statistics per sentence for a metric of `SCORE_FUNCTIONS`.

    For labels, those of all label scores. A reference may be a list of texts, each of which is correct: then the metric
    is "bleu-4" or "accuracy".
    """
    get_score_function(metric, labels)  # refuses an unknown metric
    if labels is not None:
        return build_label_statistics(labels, hypotheses, references)
    if references and not isinstance(references[0], str):
        return caption_statistics(metric, hypotheses, references)
    if metric in ERROR_METRICS:
        return error_statistics(hypotheses, references, unit=metric)
    if metric == "bleu":
        return bleu_statistics(hypotheses, references)
    if metric == "letters":
        return count_correct_characters(hypotheses, references)
    if metric in EXACT_MATCH_METRICS:
        matches = find_exact_matches(hypotheses, references)
        return np.stack([matches, np.ones_like(matches)], axis=1).astype(np.int64)
    raise SaccadeError(f"metric '{metric}' needs a list of references for each output, got one text; use bleu instead")


def get_score_function(metric: str, labels: str | None = None) -> Callable[[np.ndarray], float]:
    """Return the function from summed statistics (n,) to a score."""
    functions: dict[str, Callable[[np.ndarray], float]]
    functions = SCORE_FUNCTIONS if labels is None else get_score_functions(labels)
    if metric not in functions:
        raise SaccadeError(
            f"metric '{metric}' has no statistics that add up over examples; expected one of {', '.join(functions)}"
        )
    return functions[metric]


def _percent(statistics: np.ndarray) -> float:
    """Return the first statistic as a percentage of the second; 100 if both are 0."""
    return 100 * float(statistics[0]) / float(statistics[1]) if statistics[1] else 100.0


EXACT_MATCH_METRICS = ("accuracy", "success")  # an output counts if it equals the reference
SCORE_FUNCTIONS: dict[str, Callable[[np.ndarray], float]] = {
    **dict.fromkeys(("bleu", "bleu-4"), compute_bleu),
    **dict.fromkeys(ERROR_METRICS, compute_error_rate),
    **dict.fromkeys((*EXACT_MATCH_METRICS, "letters"), _percent),
}

# ---- Paired bootstrap (Koehn 2004): is one system better than another, or is it chance?


@dataclass(frozen=True)
class Difference:
    """A score minus that of the baseline, with its 95% confidence interval."""

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
    """Compare each system with the first, on the same samples of sentences.

    A system is one or more runs, each with statistics (N, n) that add up over sentences; `score` maps their sum to a
    score, and the score of a system is the mean over its runs.
    """
    rng, n = np.random.default_rng(seed), len(systems[0][0])
    sample_counts = rng.multinomial(n, np.full(n, 1 / n), size=samples)  # occurrences of each sentence in each sample
    sampled = [np.mean([[score(row) for row in sample_counts @ run] for run in runs], axis=0) for runs in systems]
    whole = [float(np.mean([score(run.sum(0)) for run in runs])) for runs in systems]
    return [_difference(whole[i] - whole[0], sampled[i] - sampled[0]) for i in range(len(systems))]


def _difference(value: float, sampled: np.ndarray) -> Difference:
    """Return the difference with a two-sided p-value.

    The p-value is the share of samples that deviate from their mean at least as much as the difference from 0. As in
    sacreBLEU (after Riezler and Maxwell 2005), the observed difference counts as a sample.
    """
    low, high = np.percentile(sampled, [2.5, 97.5])
    extreme = np.count_nonzero(np.abs(sampled - sampled.mean()) >= abs(value))
    return Difference(value, float(low), float(high), float((extreme + 1) / (len(sampled) + 1)))
