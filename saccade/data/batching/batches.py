"""Batches of rows of similar length within a token budget, in an order that is determined by a seed.

An epoch is a permutation of all rows. It is split into pools of equal size; the rows of a pool are sorted by length and
split into batches, and these are shuffled. Memory holds the permutation (4 bytes a row) and the plan of one pool.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from saccade.allocation import check_allocation
from saccade.data.batching.batch import Batch, Field, pad_flat
from saccade.errors import SaccadeError

StreamState = dict[str, Any]  # position in a stream of batches, as saved in checkpoints (JSON)
POOL_SIZE = 2**17  # rows sorted together; more rows mean less padding and a less random order


class Rows:
    """A data set of numbered rows of token ids with one or more sides: pairs, chunks of documents, corrupted spans, ...

    Subclasses implement `get_lengths` and `gather`.
    """

    name: str  # identifies the rows; compared when a run resumes
    sides: tuple[str, ...]  # names of the batch fields, such as source and target
    corpus_sizes: list[int]  # number of rows of each corpus; the rows of a corpus are consecutive
    weights: list[float]  # passes over each corpus in one epoch
    num_variants: int  # tokenizations (with other BPE dropout) that epochs alternate between
    num_bytes: int  # UTF-8 bytes of the text of the last side

    def __len__(self) -> int:
        return sum(self.corpus_sizes)

    def select_epoch(self, seed: int, epoch: int) -> Rows:
        """Return the rows of one epoch: the same in each, unless a subclass samples them anew."""
        return self

    def get_lengths(self, rows: np.ndarray, *, side: int, variant: int = 0) -> np.ndarray:
        """Return the number of tokens of each of these rows on one side."""
        raise NotImplementedError

    def gather(self, rows: np.ndarray, *, side: int, variant: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens of these rows on one side, concatenated, and the length of each row."""
        raise NotImplementedError

    def collate(self, rows: np.ndarray, *, side: int, variant: int = 0) -> Field:
        """Return one side of these rows as a batch field."""
        return pad_flat(*self.gather(rows, side=side, variant=variant))

    def open_batches(
        self, *, batch_tokens: int, seed: int, rank: int = 0, world: int = 1, micro_batches: int | None = None
    ) -> BatchStream:
        """Open the endless stream of training batches; their order does not depend on the micro-batches of a step."""
        return BatchStream(self, batch_tokens=batch_tokens, seed=seed, rank=rank, world=world)


@dataclass(frozen=True)
class BatchPlan:
    """The batches of a pool: batch i has rows[bounds[i] : bounds[i + 1]]; they are used in the order of `order`."""

    rows: np.ndarray
    bounds: np.ndarray
    real_tokens: np.ndarray  # number of tokens of each batch, all sides together
    padded_tokens: np.ndarray  # the same with padding
    order: np.ndarray

    def get_rows(self, number: int) -> np.ndarray:
        first = self.order[number]
        return self.rows[self.bounds[first] : self.bounds[first + 1]]


class BatchStream:
    """Endless stream of training batches over epochs, whose position can be saved and restored.

    All ranks go through the same stream in groups of `world` batches, and each rank takes one batch of every group. A
    saved position is the end of a group, so it holds for all ranks. A row longer than the budget is a batch by itself.
    """

    def __init__(self, rows: Rows, *, batch_tokens: int, seed: int, rank: int = 0, world: int = 1) -> None:
        self._rows = rows
        self._budget, self._seed = batch_tokens, seed
        self._rank, self._world = rank, world
        self._seek(epoch=0, pool=0, batch=0)
        self._token_counts = {"real": 0, "padded": 0}

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        group = [self._advance() for _ in range(self._world)]
        variant, rows = group[self._rank]
        return collate_batch(self._rows, rows, variant=variant)

    @property
    def epoch(self) -> float:
        """Number of epochs so far, with the fraction of the current one."""
        return self._epoch + self._rows_done / len(self._order)

    @property
    def padding_ratio(self) -> float:
        """Share of padding in all batches so far, all sides together."""
        return 1 - self._token_counts["real"] / self._token_counts["padded"] if self._token_counts["padded"] else 0.0

    def state(self) -> StreamState:
        """Return the position in the stream, for a checkpoint."""
        place = {"epoch": self._epoch, "pool": self._pool, "batch": self._batch}
        return {**place, **self._token_counts, "made_for": self._get_dependencies()}

    def restore(self, state: StreamState) -> None:
        """Go to a saved position, without building the batches before it."""
        saved, current = state["made_for"], self._get_dependencies()
        changed = [f"{name} was {saved[name]}, is {current[name]}" for name in current if saved[name] != current[name]]
        if changed:
            raise SaccadeError(
                f"cannot resume at the saved position in the data: {'; '.join(changed)}; start a new run"
            )
        self._seek(epoch=state["epoch"], pool=state["pool"], batch=state["batch"])
        self._token_counts = {name: state[name] for name in self._token_counts}

    def _get_dependencies(self) -> dict[str, Any]:
        """Return what a saved position depends on; restoring it under other values is an error."""
        data = {"data": self._rows.name, "weights": self._rows.weights}
        return {**data, "batch_tokens": self._budget, "seed": self._seed}

    def _seek(self, *, epoch: int, pool: int, batch: int) -> None:
        self._epoch, self._pool, self._batch = epoch, pool, batch
        self._order = np.empty(0)  # frees the old permutation before the new one is allocated
        self._rows = self._rows.select_epoch(self._seed, epoch)
        self._order = shuffle_rows(self._rows, seed=self._seed, epoch=epoch)
        self._pools = get_pool_bounds(len(self._order))
        self._plan = self._plan_pool()
        done = sum(len(self._plan.get_rows(i)) for i in range(batch))
        self._rows_done = int(self._pools[pool]) + done  # in this epoch

    def _plan_pool(self) -> BatchPlan:
        rows = self._order[self._pools[self._pool] : self._pools[self._pool + 1]]
        generator = np.random.default_rng([self._seed, self._epoch, self._pool])
        return plan_batches(self._rows, rows, budget=self._budget, variant=self._variant, generator=generator)

    @property
    def _variant(self) -> int:
        return self._epoch % self._rows.num_variants

    def _advance(self) -> tuple[int, np.ndarray]:
        if self._batch == len(self._plan.order):
            if self._pool + 2 < len(self._pools):
                self._pool, self._batch = self._pool + 1, 0
                self._plan = self._plan_pool()
            else:
                self._seek(epoch=self._epoch + 1, pool=0, batch=0)
        first = self._plan.order[self._batch]
        rows = self._plan.get_rows(self._batch)
        self._batch += 1
        self._rows_done += len(rows)
        self._token_counts["real"] += int(self._plan.real_tokens[first])
        self._token_counts["padded"] += int(self._plan.padded_tokens[first])
        return self._variant, rows


def iter_validation_batches(data: Rows, *, batch_tokens: int) -> Iterator[Batch]:
    """Yield batches with every row once, the shortest rows of each pool first."""
    for first in range(0, len(data), POOL_SIZE):
        pool = plan_batches(data, np.arange(first, min(first + POOL_SIZE, len(data))), budget=batch_tokens)
        for number in range(len(pool.order)):
            yield collate_batch(data, pool.get_rows(number))


def collate_batch(data: Rows, rows: np.ndarray, *, variant: int = 0) -> Batch:
    """Build the batch of these rows."""
    fields = {name: data.collate(rows, side=side, variant=variant) for side, name in enumerate(data.sides)}
    return Batch(fields)


def get_pool_bounds(num_rows: int) -> np.ndarray:
    """Return the bounds of the pools of an epoch, which are of nearly equal size."""
    return np.linspace(0, num_rows, -(-num_rows // POOL_SIZE) + 1).astype(np.int64)


def count_batches(data: Rows, *, batch_tokens: int, seed: int) -> int:
    """Count the batches of the first epoch."""
    data = data.select_epoch(seed, 0)
    order = shuffle_rows(data, seed=seed, epoch=0)
    pools = itertools.pairwise(get_pool_bounds(len(order)))
    return sum(len(plan_batches(data, order[first:last], budget=batch_tokens).order) for first, last in pools)


def plan_batches(
    data: Rows, rows: np.ndarray, *, budget: int, variant: int = 0, generator: np.random.Generator | None = None
) -> BatchPlan:
    """Split rows into batches of similar length with at most `budget` positions: number of rows x longest side."""
    sides = [data.get_lengths(rows, side=side, variant=variant) for side in range(len(data.sides))]
    order = sort_by_length(sides[0], sides[-1])
    rows, sides = rows[order], [side[order] for side in sides]
    bounds = _split_by_budget(np.maximum.reduce(sides), budget)
    starts, sizes = bounds[:-1], np.diff(bounds)
    widths = np.sum([np.maximum.reduceat(side, starts) for side in sides], axis=0)
    real = np.sum([np.add.reduceat(side, starts) for side in sides], axis=0)
    shuffled = np.arange(len(sizes)) if generator is None else generator.permutation(len(sizes))
    return BatchPlan(rows, bounds, real, widths * sizes, shuffled)


def sort_by_length(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return the order of rows by their longer side, then by the difference of both sides.

    The difference rises and falls in turn, so that neighbours are similar on both sides. The sort is stable: equal rows
    keep their (shuffled) order.
    """
    longer, difference = np.maximum(source, target), source - target
    return np.lexsort((np.where(longer % 2 == 0, difference, -difference), longer))


def _split_by_budget(lengths: np.ndarray, budget: int) -> np.ndarray:
    """Return the bounds of consecutive batches, each with as many rows as fit into the budget, at least one."""
    bounds = [0]
    while bounds[-1] < len(lengths):
        first = bounds[-1]
        max_rows = max(1, budget // int(lengths[first]))
        window = np.maximum.accumulate(lengths[first : first + max_rows])
        fits = window * np.arange(1, len(window) + 1) <= budget
        bounds.append(first + max(1, int(fits.sum())))  # rows x longest never falls, so those that fit come first
    return np.array(bounds, dtype=np.int64)


def shuffle_rows(data: Rows, *, seed: int, epoch: int) -> np.ndarray:
    """Return the rows of an epoch in random order; weight 2.3 repeats a corpus twice and 30% of it once more."""
    generator = np.random.default_rng([seed, epoch])
    dtype = _get_row_dtype(len(data))
    extra = [round(count * (weight % 1)) for count, weight in zip(data.corpus_sizes, data.weights, strict=True)]
    whole = [count * int(weight) for count, weight in zip(data.corpus_sizes, data.weights, strict=True)]
    total = max(1, sum(whole) + sum(extra))
    check_allocation(total * np.dtype(dtype).itemsize, f"an epoch of {total:,} rows", "lower the weight of data.train")
    order = np.empty(total, dtype=dtype)
    first = filled = 0
    for count, repeated, more in zip(data.corpus_sizes, whole, extra, strict=True):
        for _ in range(repeated // count if count else 0):
            order[filled : filled + count] = np.arange(first, first + count, dtype=dtype)
            filled += count
        if more:
            rows = np.arange(first, first + count, dtype=dtype)
            generator.shuffle(rows)
            order[filled : filled + more] = rows[:more]
            filled += more
        first += count
    if not filled:  # tiny weights of tiny corpora: an epoch has at least one row
        order[0] = generator.integers(len(data))
    generator.shuffle(order)
    return order


def _get_row_dtype(count: int) -> type[np.unsignedinteger[Any]]:
    return np.uint32 if count < 2**32 else np.uint64
