"""Exact match, of whole outputs and of characters."""

from collections.abc import Sequence

import numpy as np

from saccade.score.metrics.bleu import Score, check_pairs


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
