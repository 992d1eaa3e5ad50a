"""Exact match, of whole outputs and of characters."""

from collections.abc import Sequence

import numpy as np

from saccade.config.metric import Predictions, Score, SumMetric
from saccade.score.metrics.bleu import check_pairs


def exact_match(hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False) -> Score:
    """Percentage of outputs that equal their reference."""
    if lowercase:
        hypotheses, references = ([text.lower() for text in texts] for texts in (hypotheses, references))
    case = "lc" if lowercase else "mixed"
    return Score(100 * float(find_exact_matches(hypotheses, references).mean()), f"exact|case:{case}|nrefs:1")


def find_exact_matches(hypotheses: Sequence[str], references: Sequence[str]) -> np.ndarray:
    """Return (N,) bool, True where the output equals its reference."""
    check_pairs(hypotheses, references)
    return np.array([a == b for a, b in zip(hypotheses, references, strict=True)])


def count_correct_characters(hypotheses: Sequence[str], references: Sequence[str]) -> np.ndarray:
    """Return (N, 2): characters equal to the reference's at their position, and the longer of both lengths."""
    check_pairs(hypotheses, references)
    rows = [
        (sum(a == b for a, b in zip(output, reference, strict=False)), max(len(output), len(reference)))
        for output, reference in zip(hypotheses, references, strict=True)
    ]
    return np.array(rows, dtype=np.int64)


def compute_percentage(sums: np.ndarray) -> float:
    """Return the first statistic as a percentage of the second; 100 if both are 0."""
    return 100 * float(sums[0]) / float(sums[1]) if sums[1] else 100.0


class ExactMatch(SumMetric):
    name = "accuracy"
    title = "accuracy %"
    is_default = is_validated = True
    order = 4

    def score(self, predictions: Predictions) -> Score:
        return exact_match(predictions.outputs, predictions.references, lowercase=predictions.lowercase)

    def compute_statistics(self, predictions: Predictions) -> np.ndarray:
        folded = predictions.fold_case()
        matches = find_exact_matches(folded.outputs, folded.references)
        return np.stack([matches, np.ones_like(matches)], axis=1).astype(np.int64)

    def compute_from_sums(self, sums: np.ndarray) -> float:
        return compute_percentage(sums)


class Letters(SumMetric):
    name = "letters"
    title = "letters %"
    signature = "letters in the right position, relative to the longer of output and reference"
    order = 7

    def compute_statistics(self, predictions: Predictions) -> np.ndarray:
        folded = predictions.fold_case()
        return count_correct_characters(folded.outputs, folded.references)

    def compute_from_sums(self, sums: np.ndarray) -> float:
        return compute_percentage(sums)


METRICS = (ExactMatch(), Letters())
