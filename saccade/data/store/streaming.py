"""Batches from a stream of documents that are tokenized block by block and never stored.

The documents of a block are in memory; they are split into rows and shuffled like those of a store. While one block is
in use, a thread prepares the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from saccade.config.schema import Recipe
from saccade.data.batching.batch import Batch
from saccade.data.batching.batches import Rows, StreamState, collate_batch, plan_batches, shuffle_rows
from saccade.data.store.arrays import DroppedRows, Store
from saccade.data.tokenization.encode import MAX_UINT16_IDS, EncodingCounts, TextEncoder
from saccade.errors import SaccadeError

MAX_BLOCK_CHARACTERS = 50_000_000  # a block of long documents has fewer of them


class InMemoryStore(Store):
    """Tokenized documents in memory instead of in the cache."""

    def __init__(self, ids: Sequence[Sequence[int]], *, name: str, id_bound: int) -> None:
        self.name, self.sides, self.num_variants, self.num_bytes = name, ("target",), 1, 0
        self.dropped = DroppedRows(len(ids), (), ())
        self.corpus_sizes, self.weights = [len(ids)], [1.0]
        lengths = np.fromiter(map(len, ids), dtype=np.int64, count=len(ids))
        self.max_tokens = int(lengths.max())
        dtype = np.uint16 if id_bound <= MAX_UINT16_IDS else np.uint32
        self._tokens = [[np.concatenate([np.asarray(row, dtype=dtype) for row in ids])]]
        self._offsets = [[np.concatenate(([0], np.cumsum(lengths)))]]


@dataclass(frozen=True)
class DocumentStream:
    """A stream of documents, and how a block of them becomes rows."""

    open_documents: Callable[[], Iterator[Any]]  # yields line number and text, from the start in each call
    encoder: TextEncoder
    build_rows: Callable[[Store], Rows]
    buffer: int  # maximum number of documents of a block
    name: str  # identifies documents, tokenizer and settings; compared when a run resumes

    def open_batches(self, *, batch_tokens: int, seed: int, rank: int = 0, world: int = 1) -> DocumentBatchStream:
        """Open the endless stream of training batches."""
        return DocumentBatchStream(self, batch_tokens=batch_tokens, seed=seed, rank=rank, world=world)


class DocumentBlock:
    """The batches of some documents; their rows and order are determined by seed and epoch."""

    def __init__(
        self, documents: Sequence[Any], stream: DocumentStream, *, budget: int, seed: Sequence[int], epoch: int
    ) -> None:
        self.num_documents = len(documents)
        [ids] = stream.encoder.encode_block(list(documents), 0, EncodingCounts())
        self._batches: list[np.ndarray] = []
        if not ids:
            return
        block_seed = int(np.random.default_rng(seed).integers(2**31))  # another one for each block
        store = InMemoryStore(ids, name=stream.name, id_bound=stream.encoder.id_bound)
        self._rows = stream.build_rows(store).select_epoch(block_seed, epoch)
        order = shuffle_rows(self._rows, seed=block_seed, epoch=epoch)
        plan = plan_batches(self._rows, order, budget=budget, generator=np.random.default_rng([block_seed, epoch]))
        self._batches = [plan.get_rows(number) for number in range(len(plan.order))]

    def __len__(self) -> int:
        return len(self._batches)

    def get_batch(self, number: int) -> Batch:
        return collate_batch(self._rows, self._batches[number])


class DocumentBatchStream:
    """Endless stream of training batches over epochs of the documents, whose position can be saved and restored.

    To restore it, the documents before it are read again, but not tokenized. Ranks share it like a BatchStream.
    """

    depends_on_weights = False

    def __init__(self, stream: DocumentStream, *, batch_tokens: int, seed: int, rank: int = 0, world: int = 1) -> None:
        self._stream, self._budget, self._seed = stream, batch_tokens, seed
        self._rank, self._world = rank, world
        self._ahead = ThreadPoolExecutor(max_workers=1, thread_name_prefix="documents")
        self._seek(epoch=0, document=0, batch=0)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        group = [self._advance() for _ in range(self._world)]
        block, number = group[self._rank]
        return block.get_batch(number)

    @property
    def epoch(self) -> float:
        """Number of complete epochs; the fraction of the current one is unknown."""
        ended = self._batch == len(self._block) and not self._next.result().num_documents
        return float(self._epoch + ended)

    def state(self) -> StreamState:
        """Return the position in the stream, for a checkpoint; `pool` is the number of documents before the block."""
        return {
            "epoch": self._epoch,
            "pool": self._document,
            "batch": self._batch,
            "made_for": self._get_dependencies(),
        }

    def restore(self, state: StreamState) -> None:
        saved, current = state["made_for"], self._get_dependencies()
        changed = [
            f"{name} was {saved.get(name)}, is {current[name]}" for name in current if saved.get(name) != current[name]
        ]
        if changed:
            raise SaccadeError(
                f"cannot resume at the saved position in the data: {'; '.join(changed)}; start a new run"
            )
        self._seek(epoch=state["epoch"], document=state["pool"], batch=state["batch"])

    def _get_dependencies(self) -> dict[str, Any]:
        return {"data": self._stream.name, "batch_tokens": self._budget, "seed": self._seed}

    def _seek(self, *, epoch: int, document: int, batch: int) -> None:
        """Open the documents, skip some of them, and prepare the block that starts there."""
        self._epoch, self._document, self._batch = epoch, document, batch
        documents = self._stream.open_documents()
        for _ in islice(documents, document):
            pass
        self._documents = documents
        self._block = self._read_block(documents, epoch, document)
        if not self._block.num_documents and not document:
            raise SaccadeError("there is no document in data.train; expected at least one; are the files empty?")
        self._prefetch()

    def _prefetch(self) -> None:
        start = self._document + self._block.num_documents
        self._next: Future[DocumentBlock] = self._ahead.submit(self._read_block, self._documents, self._epoch, start)

    def _read_block(self, documents: Iterator[Any], epoch: int, document: int) -> DocumentBlock:
        block, characters = list[Any](), 0
        for row in documents:
            block.append(row)
            characters += len(row[1])
            if len(block) >= self._stream.buffer or characters >= MAX_BLOCK_CHARACTERS:
                break
        return DocumentBlock(block, self._stream, budget=self._budget, seed=(self._seed, document), epoch=epoch)

    def _advance(self) -> tuple[DocumentBlock, int]:
        restarts = 0
        while self._batch == len(self._block):
            following = self._next.result()
            if following.num_documents:
                self._document += self._block.num_documents
                self._block, self._batch = following, 0
                self._prefetch()
            else:
                restarts += 1
                self._seek(epoch=self._epoch + 1, document=0, batch=0)
            if restarts > 1:
                raise SaccadeError("no document of data.train has any text; look at the files and at data.columns")
        self._batch += 1
        return self._block, self._batch - 1


def interleave(corpora: Sequence[Callable[[], Iterator[Any]]]) -> Iterator[Any]:
    """Yield one document of each corpus in turn, until all are exhausted."""
    active = [open_rows() for open_rows in corpora]
    while active:
        for rows in list(active):
            row = next(rows, None)
            if row is None:
                active.remove(rows)
            else:
                yield row


def validate_stream(recipe: Recipe) -> None:
    """Refuse settings that a stream does not support."""
    data = recipe.data
    unsupported = {
        f'task = "{recipe.task.name}", which learns from pairs': not recipe.task.learns_from_documents,
        f"data.valid = {data.valid} as a share; name files for it": data.valid_share > 0,
        "a weight of a corpus": any(corpus.weight != 1.0 for corpus in data.train),
        f"tokenizer.dropout = {recipe.tokenizer.dropout}": bool(recipe.tokenizer.dropout),
    }
    for setting, is_set in unsupported.items():
        if is_set:
            raise SaccadeError(f"data.stream = true does not go with {setting}; change one of them")
