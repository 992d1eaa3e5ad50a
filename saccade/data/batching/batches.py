"""Batches by token budget, of rows of like length, in an order that follows from a seed.

An epoch is one shuffled order of all rows. It is cut into pools of equal size; a pool is sorted by length and cut into
batches, and its batches are shuffled. So memory holds the order (4 bytes a pair) and one pool, whatever the corpus.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from saccade.data.batching.batch import Batch, Ground, Media, Tokens, rectangle
from saccade.errors import SaccadeError

StreamState = dict[str, Any]  # a place in a stream of batches, as JSON
POOL = 2**17  # rows sorted at a time; more rows make less padding and a less random order


class Rows:
    """What batches are made of: pairs, chunks of documents, these with spans hidden or with parts that follow.

    Rows are numbered, and each has token ids on one or more sides.
    """

    name: str  # what decides the rows
    sides: tuple[str, ...]  # the fields of a batch
    parts: list[int]  # rows of each corpus, one corpus after the other
    weights: list[float]  # passes over each corpus in one epoch
    variants: int  # tokenizations that epochs alternate between
    bytes: int  # of the text of the last side, in UTF-8

    def __len__(self) -> int:
        return sum(self.parts)

    def in_epoch(self, seed: int, epoch: int) -> Rows:
        """The rows of an epoch; the same in each, unless a subclass cuts or changes them anew."""
        return self

    def lengths(self, rows: np.ndarray, *, side: int, variant: int = 0) -> np.ndarray:
        """The number of tokens of these rows on one side."""
        raise NotImplementedError

    def gather(self, rows: np.ndarray, *, side: int, variant: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of these rows on one side, one row after the other, and the lengths of the rows."""
        raise NotImplementedError

    def collate(self, rows: np.ndarray, *, side: int, variant: int = 0) -> Tokens | Media | Ground:
        """One side of these rows as a field of a batch."""
        return rectangle(*self.gather(rows, side=side, variant=variant))

    def open_batches(self, *, batch_tokens: int, seed: int, rank: int = 0, world: int = 1) -> BatchStream:
        """The endless stream of batches to train on."""
        return BatchStream(self, batch_tokens=batch_tokens, seed=seed, rank=rank, world=world)


@dataclass(frozen=True)
class Plan:
    """The batches of a pool: batch i has the rows[bounds[i] : bounds[i + 1]]."""

    rows: np.ndarray
    bounds: np.ndarray
    real: np.ndarray  # tokens of each batch, all sides
    padded: np.ndarray  # the same with padding
    order: np.ndarray  # of the batches

    def batch(self, number: int) -> np.ndarray:
        first = self.order[number]
        return self.rows[self.bounds[first] : self.bounds[first + 1]]


class BatchStream:
    """An endless stream of batches over epochs, whose place can be saved and found again.

    All ranks walk through one stream in groups of `world` batches, and each takes its own out of every group. A place
    is always the end of a group, so it is the same for all ranks. A pair longer than the budget is a batch alone.
    """

    def __init__(self, store: Rows, *, batch_tokens: int, seed: int, rank: int = 0, world: int = 1) -> None:
        self._store = store
        self._budget, self._seed = batch_tokens, seed
        self._rank, self._world = rank, world
        self._go(epoch=0, pool=0, batch=0)
        self._seen = {"real": 0, "padded": 0}

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        group = [self._advance() for _ in range(self._world)]
        variant, rows = group[self._rank]
        return assemble(self._store, rows, variant=variant)

    @property
    def epoch(self) -> float:
        """Epochs gone by, with the share of the current one."""
        return self._epoch + self._done / len(self._order)

    @property
    def padding(self) -> float:
        """The share of padding in all batches so far, both sides counted."""
        return 1 - self._seen["real"] / self._seen["padded"] if self._seen["padded"] else 0.0

    def state(self) -> StreamState:
        """The place in the stream, as JSON."""
        place = {"epoch": self._epoch, "pool": self._pool, "batch": self._batch}
        return {**place, **self._seen, "made_for": self._made_for()}

    def restore(self, state: StreamState) -> None:
        """Goes to a place; the batches before it are not made again."""
        made_for, ours = state["made_for"], self._made_for()
        changed = [f"{name} was {made_for[name]}, is {ours[name]}" for name in ours if made_for[name] != ours[name]]
        if changed:
            raise SaccadeError(f"the place in the data cannot be found again: {'; '.join(changed)}; start a new run")
        self._go(epoch=state["epoch"], pool=state["pool"], batch=state["batch"])
        self._seen = {name: state[name] for name in self._seen}

    def _made_for(self) -> dict[str, Any]:
        """What must be the same for a place to mean the same."""
        data = {"data": self._store.name, "weights": self._store.weights}
        return {**data, "batch_tokens": self._budget, "seed": self._seed}

    def _go(self, *, epoch: int, pool: int, batch: int) -> None:
        self._epoch, self._pool, self._batch = epoch, pool, batch
        self._order = np.empty(0)  # the order before goes first: two at a time would take twice the memory
        self._store = self._store.in_epoch(self._seed, epoch)
        self._order = epoch_order(self._store, seed=self._seed, epoch=epoch)
        self._pools = pool_bounds(len(self._order))
        self._plan = self._make_plan()
        self._done = int(self._pools[pool]) + sum(len(self._plan.batch(i)) for i in range(batch))  # rows of this epoch

    def _make_plan(self) -> Plan:
        rows = self._order[self._pools[self._pool] : self._pools[self._pool + 1]]
        generator = np.random.default_rng([self._seed, self._epoch, self._pool])
        return plan(self._store, rows, budget=self._budget, variant=self._variant, generator=generator)

    @property
    def _variant(self) -> int:
        return self._epoch % self._store.variants

    def _advance(self) -> tuple[int, np.ndarray]:
        if self._batch == len(self._plan.order):
            if self._pool + 2 < len(self._pools):
                self._pool, self._batch = self._pool + 1, 0
                self._plan = self._make_plan()
            else:
                self._go(epoch=self._epoch + 1, pool=0, batch=0)
        first = self._plan.order[self._batch]
        rows = self._plan.batch(self._batch)
        self._batch += 1
        self._done += len(rows)
        self._seen["real"] += int(self._plan.real[first])
        self._seen["padded"] += int(self._plan.padded[first])
        return self._variant, rows


def valid_batches(store: Rows, *, batch_tokens: int) -> Iterator[Batch]:
    """Every pair once, the shortest first (in every pool, where there are many pairs)."""
    for first in range(0, len(store), POOL):
        pool = plan(store, np.arange(first, min(first + POOL, len(store))), budget=batch_tokens)
        for number in range(len(pool.order)):
            yield assemble(store, pool.batch(number))


def assemble(store: Rows, rows: np.ndarray, *, variant: int = 0) -> Batch:
    """The batch of these rows."""
    fields = {name: store.collate(rows, side=side, variant=variant) for side, name in enumerate(store.sides)}
    return Batch(fields)


def pool_bounds(rows: int) -> np.ndarray:
    """Where the pools of an epoch begin and end."""
    return np.linspace(0, rows, -(-rows // POOL) + 1).astype(np.int64)


def batches_in_epoch(store: Rows, *, batch_tokens: int, seed: int) -> int:
    """How many batches the first epoch of a stream has."""
    store = store.in_epoch(seed, 0)
    order = epoch_order(store, seed=seed, epoch=0)
    pools = itertools.pairwise(pool_bounds(len(order)))
    return sum(len(plan(store, order[first:last], budget=batch_tokens).order) for first, last in pools)


def plan(
    store: Rows, rows: np.ndarray, *, budget: int, variant: int = 0, generator: np.random.Generator | None = None
) -> Plan:
    """Cuts rows into batches of like length within the budget: rows x longest side."""
    sides = [store.lengths(rows, side=side, variant=variant) for side in range(len(store.sides))]
    order = by_length(sides[0], sides[-1])
    rows, sides = rows[order], [side[order] for side in sides]
    bounds = _cut(np.maximum.reduce(sides), budget)
    starts, sizes = bounds[:-1], np.diff(bounds)
    widths = np.sum([np.maximum.reduceat(side, starts) for side in sides], axis=0)
    real = np.sum([np.add.reduceat(side, starts) for side in sides], axis=0)
    shuffled = np.arange(len(sizes)) if generator is None else generator.permutation(len(sizes))
    return Plan(rows, bounds, real, widths * sizes, shuffled)


def by_length(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Rows by their longer side, then by the difference of both, to and fro: neighbours are alike on both sides.

    Equal rows stay in the (shuffled) order that they had.
    """
    longer, difference = np.maximum(source, target), source - target
    return np.lexsort((np.where(longer % 2 == 0, difference, -difference), longer))


def _cut(lengths: np.ndarray, budget: int) -> np.ndarray:
    """Bounds of consecutive batches, as many rows in each as rows x longest <= budget allows, but at least one."""
    bounds = [0]
    while bounds[-1] < len(lengths):
        first = bounds[-1]
        most = max(1, budget // int(lengths[first]))
        window = np.maximum.accumulate(lengths[first : first + most])
        fits = window * np.arange(1, len(window) + 1) <= budget
        bounds.append(first + max(1, int(fits.sum())))  # the product only grows, so the fitting ones come first
    return np.array(bounds, dtype=np.int64)


def epoch_order(store: Rows, *, seed: int, epoch: int) -> np.ndarray:
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
