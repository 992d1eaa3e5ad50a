"""Word and character error rates."""

from collections.abc import Hashable, Sequence

import numpy as np

from saccade.config.metric import Predictions, Score, SumMetric
from saccade.score.metrics.bleu import check_pairs


def edit_distance(hypothesis: Sequence[Hashable], reference: Sequence[Hashable]) -> int:
    """Return the least number of substitutions, deletions and insertions (Wagner and Fischer 1974).

    The dynamic-programming table is computed row by row.
    """
    columns = np.arange(len(hypothesis) + 1)
    ids: dict[Hashable, int] = {}
    ours, theirs = ([ids.setdefault(word, len(ids)) for word in words] for words in (hypothesis, reference))
    tokens, row_above = np.array(ours, dtype=np.int64), columns
    for row, token in enumerate(theirs, 1):
        substituted, deleted = row_above[:-1] + (tokens != token), row_above[1:] + 1
        best = np.concatenate(([row], np.minimum(substituted, deleted)))
        row_above = np.minimum.accumulate(best - columns) + columns  # insertion: one more than the left neighbour
    return int(row_above[-1])


def error_rate(
    hypotheses: Sequence[str], references: Sequence[str], *, unit: str = "wer", lowercase: bool = False
) -> Score:
    """Percentage of the references' words ("wer") or characters ("cer") that must be edited; may exceed 100."""
    counts = error_statistics(hypotheses, references, unit=unit, lowercase=lowercase).sum(axis=0)
    case = "lc" if lowercase else "mixed"
    return Score(compute_error_rate(counts), f"{unit}|edits of all sentences|case:{case}|tok:spaces|nrefs:1")


def error_statistics(
    hypotheses: Sequence[str], references: Sequence[str], *, unit: str, lowercase: bool = False
) -> np.ndarray:
    """Return (N, 2) per sentence: edits, and length of the reference."""
    check_pairs(hypotheses, references)
    rows = []
    for pair in zip(hypotheses, references, strict=True):
        ours, theirs = (split_units(text.lower() if lowercase else text, unit) for text in pair)
        rows.append((edit_distance(ours, theirs), len(theirs)))
    return np.array(rows, dtype=np.int64)


def split_units(text: str, unit: str) -> Sequence[str]:
    """Split into words, or into characters with one space between words."""
    words = text.split()
    return words if unit == "wer" else " ".join(words)


def compute_error_rate(statistics: np.ndarray) -> float:
    """Compute the rate from summed statistics (2,); with empty references it is 0 or 100."""
    changes, length = (int(number) for number in statistics)
    return 100 * changes / length if length else 100.0 * min(changes, 1)


class ErrorRate(SumMetric):
    higher_is_better = False

    def score(self, predictions: Predictions) -> Score:
        return error_rate(predictions.outputs, predictions.references, unit=self.name, lowercase=predictions.lowercase)

    def compute_statistics(self, predictions: Predictions) -> np.ndarray:
        return error_statistics(
            predictions.outputs, predictions.references, unit=self.name, lowercase=predictions.lowercase
        )

    def compute_from_sums(self, sums: np.ndarray) -> float:
        return compute_error_rate(sums)


class WordErrorRate(ErrorRate):
    name = "wer"
    title = "WER %"
    order = 5


class CharacterErrorRate(ErrorRate):
    name = "cer"
    title = "CER %"
    order = 6


METRICS = (WordErrorRate(), CharacterErrorRate())
ERROR_METRICS = tuple(metric.name for metric in METRICS)
