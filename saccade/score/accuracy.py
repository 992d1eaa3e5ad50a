"""How often an output is exactly right, whole or token by token."""

from collections.abc import Sequence

import numpy as np

from saccade.score.bleu import Score, check_pairs


def exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Percent of outputs that are their reference, letter by letter."""
    return Score(100 * float(right(hypotheses, references).mean()), "exact|case:mixed|nrefs:1")


def token_accuracy(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Percent of the references' words that stand at the same place in the output; words are parted by spaces."""
    check_pairs(hypotheses, references)
    hits = total = 0
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        words = reference.split()
        total += len(words)
        hits += sum(a == b for a, b in zip(hypothesis.split(), words, strict=False))
    return Score(100 * hits / max(total, 1), "tokens|tok:space|case:mixed|nrefs:1")


def right(hypotheses: Sequence[str], references: Sequence[str]) -> np.ndarray:
    """(N,) True where the output is its reference."""
    check_pairs(hypotheses, references)
    return np.array([a == b for a, b in zip(hypotheses, references, strict=True)])
