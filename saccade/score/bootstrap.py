"""Is one system better than another, or was it the choice of sentences? Paired bootstrap (Koehn 2004)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np


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
