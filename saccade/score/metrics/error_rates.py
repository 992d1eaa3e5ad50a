"""Word and character error rates."""

import re
from collections.abc import Hashable, Sequence

import numpy as np

from saccade.config.metric import Predictions, Score, SumMetric
from saccade.score.metrics.bleu import check_pairs

SPACES = re.compile(r"\s\s+")


def edit_distance(hypothesis: Sequence[Hashable], reference: Sequence[Hashable]) -> int:
    """Return the least number of substitutions, deletions and insertions (Wagner and Fischer 1974).

    A column of their table is one integer: bit i is the step between rows i and i + 1 (Myers 1999; Hyyrö 2003).
    """
    if not reference:
        return len(hypothesis)
    positions: dict[Hashable, int] = {}  # bit i: the token is reference[i]
    for i, token in enumerate(reference):
        positions[token] = positions.get(token, 0) | 1 << i
    full, last = (1 << len(reference)) - 1, len(reference) - 1
    up, down, distance = full, 0, len(reference)  # rows where a column goes up, or down, by 1; its last entry
    for token in hypothesis:
        match = positions.get(token, 0)
        free = (((match & up) + up) ^ up) | match | down  # diagonal steps without cost
        right_up, right_down = down | full & ~(free | up), free & up  # steps to the column on the right
        distance += (right_up >> last & 1) - (right_down >> last & 1)
        right_up, right_down = right_up << 1 | 1, right_down << 1  # row 0 always goes up
        up, down = full & (right_down | ~(free | right_up)), full & right_up & free
    return distance


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
    """Split into words or characters as jiwer does: words at U+0020, and at two or more white spaces of any kind."""
    if unit == "cer":
        return text.strip()
    return [word for word in SPACES.sub(" ", text).strip().split(" ") if word]


def compute_error_rate(statistics: np.ndarray) -> float:
    """Compute the rate from summed statistics (2,); if all references are empty, every inserted unit counts 100."""
    changes, length = (int(number) for number in statistics)
    return 100 * changes / max(length, 1)


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
