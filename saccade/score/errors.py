"""How much of a reference an output gets wrong: the share of its words, or of its letters."""

from collections.abc import Hashable, Sequence

import numpy as np

from saccade.score.bleu import Score, check_pairs

ERRORS = ("wer", "cer")


def edits(hypothesis: Sequence[Hashable], reference: Sequence[Hashable]) -> int:
    """The fewest words that must be replaced, left out or put in to make one of the other (Wagner and Fischer 1974).

    The table of all beginnings of both is gone through row by row.
    """
    places = np.arange(len(hypothesis) + 1)
    numbers: dict[Hashable, int] = {}
    ours, theirs = ([numbers.setdefault(word, len(numbers)) for word in words] for words in (hypothesis, reference))
    given, above = np.array(ours, dtype=np.int64), places
    for row, wanted in enumerate(theirs, 1):
        corner, over = above[:-1] + (given != wanted), above[1:] + 1
        best = np.concatenate(([row], np.minimum(corner, over)))
        above = np.minimum.accumulate(best - places) + places  # or one more than what stands to the left
    return int(above[-1])


def error_rate(
    hypotheses: Sequence[str], references: Sequence[str], *, unit: str = "wer", lowercase: bool = False
) -> Score:
    """Percent of the references' words ("wer") or characters ("cer") that must be changed; it may be over 100."""
    counts = error_statistics(hypotheses, references, unit=unit, lowercase=lowercase).sum(axis=0)
    case = "lc" if lowercase else "mixed"
    return Score(error_of(counts), f"{unit}|edits of all sentences|case:{case}|tok:spaces|nrefs:1")


def error_statistics(
    hypotheses: Sequence[str], references: Sequence[str], *, unit: str, lowercase: bool = False
) -> np.ndarray:
    """(N, 2): for each sentence the changes, and the length of the reference."""
    check_pairs(hypotheses, references)
    rows = []
    for pair in zip(hypotheses, references, strict=True):
        ours, theirs = (split(text.lower() if lowercase else text, unit) for text in pair)
        rows.append((edits(ours, theirs), len(theirs)))
    return np.array(rows, dtype=np.int64)


def split(text: str, unit: str) -> Sequence[str]:
    """Words, or characters with one space between words."""
    words = text.split()
    return words if unit == "wer" else " ".join(words)


def error_of(statistics: np.ndarray) -> float:
    """The rate of summed statistics (2,); where nothing was to be said, all that was said is wrong."""
    changes, length = (int(number) for number in statistics)
    return 100 * changes / length if length else 100.0 * min(changes, 1)
