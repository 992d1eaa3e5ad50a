"""The order of an epoch, which follows from a seed."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np


class Weighted(Protocol):
    """Rows of several corpora, one corpus after the other."""

    parts: list[int]  # rows of each corpus
    weights: list[float]  # passes over each in one epoch

    def __len__(self) -> int: ...


def epoch_order(store: Weighted, *, seed: int, epoch: int) -> np.ndarray:
    """All rows of an epoch, shuffled; a corpus of weight 2.3 occurs twice, and a random 30% of it once more."""
    generator = np.random.default_rng([seed, epoch])
    kind = _row_type(len(store))
    extra = [round(count * (weight % 1)) for count, weight in zip(store.parts, store.weights, strict=True)]
    whole = [count * int(weight) for count, weight in zip(store.parts, store.weights, strict=True)]
    order = np.empty(max(1, sum(whole) + sum(extra)), dtype=kind)
    first = place = 0
    for count, repeated, more in zip(store.parts, whole, extra, strict=True):
        for _ in range(repeated // count if count else 0):
            order[place : place + count] = np.arange(first, first + count, dtype=kind)
            place += count
        if more:
            rows = np.arange(first, first + count, dtype=kind)
            generator.shuffle(rows)
            order[place : place + more] = rows[:more]
            place += more
        first += count
    if not place:  # tiny weights of tiny corpora: an epoch has at least one row
        order[0] = generator.integers(len(store))
    generator.shuffle(order)
    return order


def _row_type(count: int) -> type[np.unsignedinteger[Any]]:
    return np.uint32 if count < 2**32 else np.uint64
