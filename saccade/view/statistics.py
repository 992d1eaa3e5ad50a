"""Three statistics of an attention head: entropy, attention distance and diagonality.

a_ij is the weight of column j in row i, of T rows and S columns, both counted from 0. Rows without any weight (fully
masked) are ignored.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

Maps = Float[np.ndarray, "H T S"]


def compute_statistics(weights: Maps) -> dict[str, list[float]]:
    """Compute all three statistics for each head."""
    values: dict[str, Any] = {
        "entropy": compute_entropy(weights),
        "distance": compute_distance(weights),
        "diagonal": compute_diagonality(weights),
    }
    return {name: [round(float(value), 6) for value in heads] for name, heads in values.items()}


def compute_entropy(weights: Maps) -> Float[np.ndarray, " H"]:
    """Compute the mean entropy of the rows, - sum_j a_ij log2 a_ij, in bits: 0 for one position, log2 S if uniform."""
    logs = np.log2(np.where(weights > 0, weights, 1.0), dtype=np.float64)
    return _average_rows(-(weights * logs).sum(-1), weights)


def compute_distance(weights: Maps) -> Float[np.ndarray, " H"]:
    """Compute the mean attention distance of the rows, sum_j a_ij |j - i (S - 1) / (T - 1)|, in columns.

    In self-attention that is the distance to the query's own position; else the distance from the diagonal.
    """
    rows, columns = weights.shape[1:]
    diagonal = np.arange(rows) * (columns - 1) / max(rows - 1, 1)
    distances = np.abs(np.arange(columns) - diagonal[:, None])
    return _average_rows((weights * distances).sum(-1), weights)


def compute_diagonality(weights: Maps) -> Float[np.ndarray, " H"]:
    """Compute the correlation of i and j when (i, j) has the probability a_ij / sum a.

    1: monotonic along the diagonal; -1: along the antidiagonal; 0: uncorrelated, or a single row or column.
    """
    probs = weights / np.maximum(weights.sum((1, 2), keepdims=True, dtype=np.float64), 1e-12)
    i, j = (_center_positions(probs.sum(axis)) for axis in (2, 1))  # positions minus their mean
    covariance = np.einsum("hts,ht,hs->h", probs, i, j)
    deviations = np.sqrt(np.einsum("hts,ht->h", probs, i**2) * np.einsum("hts,hs->h", probs, j**2))
    return np.where(deviations > 1e-9, covariance / np.maximum(deviations, 1e-9), 0.0)


def _center_positions(probs: Float[np.ndarray, "H N"]) -> Float[np.ndarray, "H N"]:
    positions = np.arange(probs.shape[1], dtype=np.float64)
    return positions - (probs * positions).sum(1, keepdims=True)


def _average_rows(values: Float[np.ndarray, "H T"], weights: Maps) -> Float[np.ndarray, " H"]:
    counts = weights.sum(-1) > 0
    return (values * counts).sum(1) / np.maximum(counts.sum(1), 1)
