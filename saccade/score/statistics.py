"""Statistics of metrics per example, and the paired bootstrap test."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from saccade.config.metric import TEXT, Predictions, SumMetric, list_metrics
from saccade.config.plugins import Kinds
from saccade.errors import SaccadeError


def get_additive_metric(name: str, outputs: str = TEXT, kinds: Kinds | None = None) -> SumMetric:
    """Return the metric of this name for this kind of outputs, if it follows from sums over examples."""
    found = {metric.name: metric for metric in list_additive_metrics(outputs, kinds)}
    if name not in found:
        raise SaccadeError(
            f"metric '{name}' has no statistics that add up over examples; expected one of {', '.join(found)}"
        )
    return found[name]


def list_additive_metrics(outputs: str, kinds: Kinds | None = None) -> list[SumMetric]:
    """Return the metrics of this kind of outputs that follow from sums over examples."""
    return [metric for metric in list_metrics(outputs, kinds) if isinstance(metric, SumMetric)]


def compute_statistics(metric: SumMetric, predictions: Predictions) -> np.ndarray:
    """Return (N, n) statistics per example, whose sums over examples give the score."""
    statistics = np.asarray(metric.compute_statistics(predictions))
    count = len(predictions.references)
    if statistics.ndim != 2 or len(statistics) != count:
        raise SaccadeError(
            f"compute_statistics of metric '{metric.name}' must give a row of numbers for each of {count} examples, "
            f"got an array of shape {statistics.shape}"
        )
    return statistics


# ---- Mean over seeds

# 97.5% quantiles of Student's t distribution for 1 to 30 degrees of freedom
T_QUANTILES = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


def get_half_width(values: Sequence[float]) -> float | None:
    """Half the width of the 95% confidence interval of a mean, by Student's t distribution; None for a single value.

    It assumes a normal distribution. Above 31 values, the quantile of 31 is used, which is at most 5% too large.
    """
    if len(values) < 2:
        return None
    quantile = T_QUANTILES[min(len(values) - 1, len(T_QUANTILES)) - 1]
    return float(quantile * np.std(values, ddof=1) / len(values) ** 0.5)


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
