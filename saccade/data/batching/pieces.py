"""Documents of any length as rows of at most so many tokens, cut anew in each epoch.

Attention never crosses documents and positions begin anew in each, as each piece of one is a row of its own; batches
put rows of like length together, and training packs them. With `cross`, documents stand one behind the other in a
shuffled order, and all of that is cut into full rows, as GPT-2 was trained.
"""

from __future__ import annotations

import numpy as np

from saccade.data.batching.batches import Rows, epoch_order
from saccade.data.store.arrays import Store

SIDE = 0  # the only one


class Pieces(Rows):
    """The pieces of one epoch, with everything that batches ask of a store; `cut` tokens are in a document's first.

    Without `ends`, documents have no END.
    """

    def __init__(
        self,
        store: Store,
        *,
        length: int,
        cross: bool,
        variant: int = 0,
        cut: int | None = None,
        documents: np.ndarray | None = None,
        ends: bool = True,
    ) -> None:
        self.store, self.length, self.cross, self.ends, self._variant = store, length, cross, ends, variant
        self.name = f"{store.name} in {'crossing ' if cross else ''}rows of {length}"
        self.sides, self.variants, self.bytes = store.sides, store.variants, store.bytes
        self.longest = min(store.longest, length)
        self._cut = cut or length
        self._documents = np.arange(len(store)) if documents is None else documents
        lengths = self._lengths(self._documents)
        if cross:
            self._ends = np.cumsum(lengths)  # where each document ends in the row of all of them
            self.parts: list[int] = self._count(self._ends[-1:]).tolist()
            self.weights = [1.0]
        else:
            counts = np.where(lengths <= length, 1, self._count(lengths))
            self._firsts = np.concatenate(([0], np.cumsum(counts)))  # the number of each document's first piece
            bounds = self._firsts[np.concatenate(([0], np.cumsum(store.parts)))]
            self.parts = np.diff(bounds).tolist()
            self.weights = store.weights

    def in_epoch(self, seed: int, epoch: int) -> Pieces:
        """Cut at other places, and with `cross` in another order, in each epoch."""
        generator = np.random.default_rng([seed, epoch, 1])
        documents = epoch_order(self.store, seed=seed, epoch=epoch) if self.cross else None
        cut = int(generator.integers(1, self.length + 1))
        return Pieces(
            self.store, length=self.length, cross=self.cross, variant=epoch % self.variants, cut=cut,
            documents=documents, ends=self.ends,
        )  # fmt: skip

    def lengths(self, rows: np.ndarray, *, side: int, variant: int = 0) -> np.ndarray:
        """Tokens of these pieces; the variant is that of the epoch."""
        _, begins, ends = self._bounds(rows)
        return ends - begins

    def gather(self, rows: np.ndarray, *, side: int, variant: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of these pieces, one piece after the other, and their lengths."""
        documents, begins, ends = self._bounds(rows)
        lengths = ends - begins
        behind = np.cumsum(lengths)
        inside = np.arange(behind[-1] if len(behind) else 0) + np.repeat(begins - (behind - lengths), lengths)
        if not self.cross:
            return self._tokens(np.repeat(documents, lengths), inside), lengths
        where = np.searchsorted(self._ends, inside, side="right")
        before = np.where(where > 0, self._ends[where - 1], 0)
        return self._tokens(self._documents[where], inside - before), lengths

    def begins(self, rows: np.ndarray) -> np.ndarray:
        """Where in its document each of these pieces begins."""
        return self._bounds(rows)[1]

    # ---- inside

    def _lengths(self, documents: np.ndarray) -> np.ndarray:
        lengths: np.ndarray = self.store.lengths(documents, side=SIDE, variant=self._variant) - (not self.ends)
        return lengths

    def _tokens(self, documents: np.ndarray, inside: np.ndarray) -> np.ndarray:
        return self.store.tokens(documents, inside, side=SIDE, variant=self._variant)

    def _count(self, tokens: np.ndarray) -> np.ndarray:
        """Pieces of so many tokens: the first of `cut`, then full ones."""
        more: np.ndarray = np.maximum(tokens - self._cut, 0)
        return 1 + -(-more // self.length)

    def _bounds(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The document of each piece, and where in it the piece begins and ends."""
        rows = rows.astype(np.int64)
        if self.cross:
            documents, number, total = np.zeros_like(rows), rows, np.full_like(rows, self._ends[-1])
        else:
            documents = np.searchsorted(self._firsts, rows, side="right") - 1
            number, total = rows - self._firsts[documents], self._lengths(documents)
        whole = (total <= self.length) & (not self.cross)
        ends = np.where(whole, total, np.minimum(total, self._cut + number * self.length))
        begins = np.where(number == 0, 0, self._cut + (number - 1) * self.length)
        return documents, begins, ends
