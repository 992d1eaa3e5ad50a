"""What kind of head it is, in three numbers: how sharp, how far, how diagonal it looks.

a_ij is the weight of column j in row i, of T rows and S columns, both counted from 0. A row that attends to nothing
does not count.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

Maps = Float[np.ndarray, "H T S"]


def statistics(weights: Maps) -> dict[str, list[float]]:
    """All three for each head."""
    numbers: dict[str, Any] = {
        "entropy": entropy(weights), "distance": distance(weights), "diagonal": diagonal(weights)
    }  # fmt: skip
    return {name: [round(float(value), 6) for value in values] for name, values in numbers.items()}


def entropy(weights: Maps) -> Float[np.ndarray, " H"]:
    """Mean over the rows of - sum_j a_ij log2 a_ij: 0 bits look at one place, log2 S at all alike."""
    logs = np.log2(np.where(weights > 0, weights, 1.0), dtype=np.float64)
    return _mean_of_rows(-(weights * logs).sum(-1), weights)


def distance(weights: Maps) -> Float[np.ndarray, " H"]:
    """Mean over the rows of sum_j a_ij |j - i (S - 1) / (T - 1)|, in columns.

    Where a text looks at itself, that is how far away it looks; else how far from the straight way through the other.
    """
    rows, columns = weights.shape[1:]
    way = np.arange(rows) * (columns - 1) / max(rows - 1, 1)
    away = np.abs(np.arange(columns) - way[:, None])
    return _mean_of_rows((weights * away).sum(-1), weights)


def diagonal(weights: Maps) -> Float[np.ndarray, " H"]:
    """The correlation of i and j when (i, j) is drawn with the probability a_ij / sum a.

    1: from first to last on a straight line; -1: backwards; 0: the row says nothing of the column, or there is but one.
    """
    share = weights / np.maximum(weights.sum((1, 2), keepdims=True, dtype=np.float64), 1e-12)
    i, j = (_centred(share.sum(axis)) for axis in (2, 1))  # each with its own mean as 0
    together = np.einsum("hts,ht,hs->h", share, i, j)
    spread = np.sqrt(np.einsum("hts,ht->h", share, i**2) * np.einsum("hts,hs->h", share, j**2))
    return np.where(spread > 1e-9, together / np.maximum(spread, 1e-9), 0.0)


def _centred(share: Float[np.ndarray, "H N"]) -> Float[np.ndarray, "H N"]:
    places = np.arange(share.shape[1], dtype=np.float64)
    return places - (share * places).sum(1, keepdims=True)


def _mean_of_rows(values: Float[np.ndarray, "H T"], weights: Maps) -> Float[np.ndarray, " H"]:
    counts = weights.sum(-1) > 0
    return (values * counts).sum(1) / np.maximum(counts.sum(1), 1)
