"""Merging subword tokens to words: attention to a word is the sum, attention from a word the mean over its tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Groups = Sequence[Sequence[int]]  # token indices of each word
SPACE = "␣"
CONTINUATION_PREFIX = "##"  # marks a non-initial subword in WordPiece vocabularies


def merge_tokens(weights: NDArray, *, rows: Groups, columns: Groups) -> NDArray:
    """Merge token maps (H, T, S) to word maps: the sum over the columns of a word, the mean over its rows."""
    summed = np.stack([weights[:, :, list(group)].sum(2) for group in columns], 2)
    return np.stack([summed[:, list(group)].mean(1) for group in rows], 1)


def merge_labels(labels: Sequence[str], groups: Groups) -> list[str]:
    """Join the token labels of each word without space marks; a word that is only spaces stays visible."""
    words = []
    for group in groups:
        tokens = [labels[i] if i == group[0] else labels[i].removeprefix(CONTINUATION_PREFIX) for i in group]
        words.append("".join(tokens).strip(SPACE) or SPACE)
    return words
