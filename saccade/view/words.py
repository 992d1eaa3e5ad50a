"""Pieces of words put together: a word is looked at as much as all of its pieces, and looks as they do on average."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Groups = Sequence[Sequence[int]]  # the numbers of the tokens that make up each word
SPACE = "␣"
GOES_ON = "##"  # how some vocabularies mark a piece that is not the first of its word


def join(weights: NDArray, *, rows: Groups, columns: Groups) -> NDArray:
    """Maps (H, T, S) of tokens as maps of words: the sum over the columns of a word, the mean over its rows."""
    summed = np.stack([weights[:, :, list(group)].sum(2) for group in columns], 2)
    return np.stack([summed[:, list(group)].mean(1) for group in rows], 1)


def join_labels(labels: Sequence[str], groups: Groups) -> list[str]:
    """The words as they are read; one of nothing but spaces stays visible."""
    words = []
    for group in groups:
        pieces = [labels[i] if i == group[0] else labels[i].removeprefix(GOES_ON) for i in group]
        words.append("".join(pieces).strip(SPACE) or SPACE)
    return words
