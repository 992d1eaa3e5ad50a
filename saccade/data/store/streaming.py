"""Documents that are never stored: tokenised as they come, block by block, and forgotten.

A block is as many documents as are in memory at once. They are shuffled and cut into rows as those of a store are, so
that whatever learns from files learns from a stream as well. While one block is in use, a thread makes the next one.
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
from saccade.data.batching.batches import Rows, StreamState, assemble, epoch_order, plan
from saccade.data.store.arrays import Dropped, Store
from saccade.data.tokenization.encode import SMALL, Encoder, Tally
from saccade.errors import SaccadeError

LETTERS = 50_000_000  # a block of long documents ends earlier


class Held(Store):
    """Tokenised documents in memory, in place of an entry of the cache."""

    def __init__(self, ids: Sequence[Sequence[int]], *, name: str, largest: int) -> None:
        self.name, self.sides, self.variants, self.bytes = name, ("target",), 1, 0
        self.dropped = Dropped(len(ids), (), ())
        self.parts, self.weights = [len(ids)], [1.0]
        lengths = np.fromiter(map(len, ids), dtype=np.int64, count=len(ids))
        self.longest = int(lengths.max())
        kind = np.uint16 if largest <= SMALL else np.uint32
        self._tokens = [[np.concatenate([np.asarray(row, dtype=kind) for row in ids])]]
        self._offsets = [[np.concatenate(([0], np.cumsum(lengths)))]]


@dataclass(frozen=True)
class Streamed:
    """Documents, and how a block of them becomes rows."""

    documents: Callable[[], Iterator[Any]]  # line number and text, from the beginning each time
    encoder: Encoder
    in_rows: Callable[[Store], Rows]
    buffer: int  # documents of a block
    name: str  # what a place in the stream depends on

    def open_batches(self, *, batch_tokens: int, seed: int, rank: int = 0, world: int = 1) -> StreamedBatches:
        """The endless stream of batches to train on."""
        return StreamedBatches(self, batch_tokens=batch_tokens, seed=seed, rank=rank, world=world)


class Block:
    """The batches of some documents, cut and in an order that follow from a seed and the pass."""

    def __init__(
        self, read: Sequence[Any], streamed: Streamed, *, budget: int, seed: Sequence[int], epoch: int
    ) -> None:
        self.documents = len(read)
        [ids] = streamed.encoder.plain(list(read), 0, Tally())
        self._batches: list[np.ndarray] = []
        if not ids:
            return
        drawn = int(np.random.default_rng(seed).integers(2**31))  # each block is cut and shuffled in its own way
        held = Held(ids, name=streamed.name, largest=streamed.encoder.largest)
        self._rows = streamed.in_rows(held).in_epoch(drawn, epoch)
        order = epoch_order(self._rows, seed=drawn, epoch=epoch)
        made = plan(self._rows, order, budget=budget, generator=np.random.default_rng([drawn, epoch]))
        self._batches = [made.batch(number) for number in range(len(made.order))]

    def __len__(self) -> int:
        return len(self._batches)

    def batch(self, number: int) -> Batch:
        return assemble(self._rows, self._batches[number])


class StreamedBatches:
    """An endless stream of batches over passes through the documents, whose place can be saved and found again.

    To find it, the documents before it are read once more, but not tokenised. Ranks share it as they do a BatchStream.
    """

    def __init__(self, streamed: Streamed, *, batch_tokens: int, seed: int, rank: int = 0, world: int = 1) -> None:
        self._streamed, self._budget, self._seed = streamed, batch_tokens, seed
        self._rank, self._world = rank, world
        self._ahead = ThreadPoolExecutor(max_workers=1, thread_name_prefix="documents")
        self._go(epoch=0, document=0, batch=0)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        group = [self._advance() for _ in range(self._world)]
        block, number = group[self._rank]
        return block.batch(number)

    @property
    def epoch(self) -> float:
        """Passes through all documents; how far the current one is nobody knows."""
        ended = self._batch == len(self._block) and not self._next.result().documents
        return float(self._epoch + ended)

    def state(self) -> StreamState:
        """The place in the stream, as JSON; `pool` counts the documents before the current block."""
        return {"epoch": self._epoch, "pool": self._document, "batch": self._batch, "made_for": self._made_for()}

    def restore(self, state: StreamState) -> None:
        made_for, ours = state["made_for"], self._made_for()
        changed = [
            f"{name} was {made_for.get(name)}, is {ours[name]}" for name in ours if made_for.get(name) != ours[name]
        ]
        if changed:
            raise SaccadeError(f"the place in the data cannot be found again: {'; '.join(changed)}; start a new run")
        self._go(epoch=state["epoch"], document=state["pool"], batch=state["batch"])

    def _made_for(self) -> dict[str, Any]:
        return {"data": self._streamed.name, "batch_tokens": self._budget, "seed": self._seed}

    def _go(self, *, epoch: int, document: int, batch: int) -> None:
        """Opens the documents anew, passes by some of them, and makes the block that begins there."""
        self._epoch, self._document, self._batch = epoch, document, batch
        documents = self._streamed.documents()
        for _ in islice(documents, document):
            pass
        self._documents = documents
        self._block = self._make(documents, epoch, document)
        if not self._block.documents and not document:
            raise SaccadeError("there is no document in data.train; expected at least one; are the files empty?")
        self._ask()

    def _ask(self) -> None:
        behind = self._document + self._block.documents
        self._next: Future[Block] = self._ahead.submit(self._make, self._documents, self._epoch, behind)

    def _make(self, documents: Iterator[Any], epoch: int, document: int) -> Block:
        read, letters = list[Any](), 0
        for row in documents:
            read.append(row)
            letters += len(row[1])
            if len(read) >= self._streamed.buffer or letters >= LETTERS:
                break
        return Block(read, self._streamed, budget=self._budget, seed=(self._seed, document), epoch=epoch)

    def _advance(self) -> tuple[Block, int]:
        passes = 0
        while self._batch == len(self._block):
            following = self._next.result()
            if following.documents:
                self._document += self._block.documents
                self._block, self._batch = following, 0
                self._ask()
            else:
                passes += 1
                self._go(epoch=self._epoch + 1, document=0, batch=0)
            if passes > 1:
                raise SaccadeError("no document of data.train has any text; look at the files and at data.columns")
        self._batch += 1
        return self._block, self._batch - 1


def in_turn(corpora: Sequence[Callable[[], Iterator[Any]]]) -> Iterator[Any]:
    """A document of each corpus in turn, until all are at their end."""
    left = [rows() for rows in corpora]
    while left:
        for rows in list(left):
            found = next(rows, None)
            if found is None:
                left.remove(rows)
            else:
                yield found


def check_stream(recipe: Recipe) -> None:
    """What a stream cannot give."""
    data = recipe.data
    against = {
        f'task = "{recipe.task.name}", which learns from pairs': not recipe.task.learns_from_documents,
        f"data.valid = {data.valid} as a share; name files for it": data.valid_share > 0,
        "a weight of a corpus": any(corpus.weight != 1.0 for corpus in data.train),
        f"tokenizer.dropout = {recipe.tokenizer.dropout}": bool(recipe.tokenizer.dropout),
    }
    for what, found in against.items():
        if found:
            raise SaccadeError(f"data.stream = true does not go with {what}; change one of them")
