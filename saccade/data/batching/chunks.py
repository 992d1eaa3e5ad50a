"""Documents split into chunks of at most a given number of tokens, at other places in each epoch.

Each chunk is a row of its own, so attention never crosses documents and positions start at 0; batches have rows of
similar length, and training can pack them. With `cross_documents`, all documents are concatenated in random order and
split into full rows, as for GPT-2.
"""

from __future__ import annotations

import numpy as np

from saccade.data.batching.batches import Rows, shuffle_rows
from saccade.data.store.arrays import Store

SIDE = 0  # documents have one side


class DocumentChunks(Rows):
    """The chunks of a store of documents in one epoch.

    The first chunk of a document has `first_length` tokens (default: `length`), the others `length`.
    Without `keep_end`, the END of each document is left out.
    """

    def __init__(
        self,
        store: Store,
        *,
        length: int,
        cross_documents: bool,
        variant: int = 0,
        first_length: int | None = None,
        documents: np.ndarray | None = None,
        keep_end: bool = True,
    ) -> None:
        self.store, self.length, self._variant = store, length, variant
        self.cross_documents, self.keep_end = cross_documents, keep_end
        # Saved in checkpoints and compared when a run resumes: the text must not change.
        self.name = f"{store.name} in {'crossing ' if cross_documents else ''}rows of {length}"
        self.sides, self.num_variants, self.num_bytes = store.sides, store.num_variants, store.num_bytes
        self.max_tokens = min(store.max_tokens, length)
        self._first_length = first_length or length
        self._documents = np.arange(len(store)) if documents is None else documents
        lengths = self._get_document_lengths(self._documents)
        if cross_documents:
            self._document_ends = np.cumsum(lengths)  # in the concatenation of all documents
            self.corpus_sizes: list[int] = self._count_chunks(self._document_ends[-1:]).tolist()
            self.weights = [1.0]
        else:
            counts = np.where(lengths <= length, 1, self._count_chunks(lengths))
            self._first_chunks = np.concatenate(([0], np.cumsum(counts)))  # number of the first chunk of each document
            bounds = self._first_chunks[np.concatenate(([0], np.cumsum(store.corpus_sizes)))]
            self.corpus_sizes = np.diff(bounds).tolist()
            self.weights = store.weights

    def select_epoch(self, seed: int, epoch: int) -> DocumentChunks:
        """Return the chunks of one epoch: with another first length, and other order if documents are concatenated."""
        generator = np.random.default_rng([seed, epoch, 1])
        documents = shuffle_rows(self.store, seed=seed, epoch=epoch) if self.cross_documents else None
        first_length = int(generator.integers(1, self.length + 1))
        return DocumentChunks(
            self.store, length=self.length, cross_documents=self.cross_documents, variant=epoch % self.num_variants,
            first_length=first_length, documents=documents, keep_end=self.keep_end,
        )  # fmt: skip

    def get_lengths(self, rows: np.ndarray, *, side: int, variant: int = 0) -> np.ndarray:
        """Return the number of tokens of these chunks; the variant is that of the epoch."""
        _, starts, ends = self._find_bounds(rows)
        return ends - starts

    def gather(self, rows: np.ndarray, *, side: int, variant: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens of these chunks, concatenated, and their lengths."""
        documents, starts, ends = self._find_bounds(rows)
        lengths = ends - starts
        row_ends = np.cumsum(lengths)
        offsets = np.arange(row_ends[-1] if len(row_ends) else 0) + np.repeat(starts - (row_ends - lengths), lengths)
        if not self.cross_documents:
            return self._get_tokens(np.repeat(documents, lengths), offsets), lengths
        index = np.searchsorted(self._document_ends, offsets, side="right")
        document_starts = np.where(index > 0, self._document_ends[index - 1], 0)
        return self._get_tokens(self._documents[index], offsets - document_starts), lengths

    def get_offsets(self, rows: np.ndarray) -> np.ndarray:
        """Return the offset in its document at which each of these chunks starts."""
        return self._find_bounds(rows)[1]

    def _get_document_lengths(self, documents: np.ndarray) -> np.ndarray:
        lengths: np.ndarray = self.store.get_lengths(documents, side=SIDE, variant=self._variant) - (not self.keep_end)
        return lengths

    def _get_tokens(self, documents: np.ndarray, offsets: np.ndarray) -> np.ndarray:
        return self.store.gather_tokens(documents, offsets, side=SIDE, variant=self._variant)

    def _count_chunks(self, tokens: np.ndarray) -> np.ndarray:
        """Count the chunks of documents with these numbers of tokens, each longer than one chunk."""
        rest: np.ndarray = np.maximum(tokens - self._first_length, 0)
        return 1 + -(-rest // self.length)

    def _find_bounds(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the document of each chunk, and where in it the chunk starts and ends."""
        rows = rows.astype(np.int64)
        if self.cross_documents:
            documents, number, total = np.zeros_like(rows), rows, np.full_like(rows, self._document_ends[-1])
        else:
            documents = np.searchsorted(self._first_chunks, rows, side="right") - 1
            number, total = rows - self._first_chunks[documents], self._get_document_lengths(documents)
        whole = (total <= self.length) & (not self.cross_documents)
        ends = np.where(whole, total, np.minimum(total, self._first_length + number * self.length))
        starts = np.where(number == 0, 0, self._first_length + (number - 1) * self.length)
        return documents, starts, ends
