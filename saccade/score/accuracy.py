"""How often an output is exactly right."""

from collections.abc import Sequence

import numpy as np

from saccade.score.bleu import Score, check_pairs


def exact_match(hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False) -> Score:
    """Percent of outputs that are their reference, letter by letter."""
    if lowercase:
        hypotheses, references = ([text.lower() for text in texts] for texts in (hypotheses, references))
    case = "lc" if lowercase else "mixed"
    return Score(100 * float(right(hypotheses, references).mean()), f"exact|case:{case}|nrefs:1")


def right(hypotheses: Sequence[str], references: Sequence[str]) -> np.ndarray:
    """(N,) True where the output is its reference."""
    check_pairs(hypotheses, references)
    return np.array([a == b for a, b in zip(hypotheses, references, strict=True)])


def letters_right(hypotheses: Sequence[str], references: Sequence[str]) -> np.ndarray:
    """(N, 2): letters that stand at their place, and how many there are in the longer of output and reference."""
    check_pairs(hypotheses, references)
    rows = [
        (sum(a == b for a, b in zip(output, reference, strict=False)), max(len(output), len(reference)))
        for output, reference in zip(hypotheses, references, strict=True)
    ]
    return np.array(rows, dtype=np.int64)
