"""Numbers of single sentences that add up, and the score of any sum of them."""

from collections.abc import Callable, Sequence
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
