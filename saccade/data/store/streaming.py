"""Batches from a stream of documents that are tokenized block by block and never stored.

The documents of a block are in memory; they are split into rows and shuffled like those of a store. While one block is
in use, a thread prepares the next one.

A training step of G micro-batches has G lanes: lane m reads its own share of the files, and its batches are micro-batch
m of each step. A process reads and tokenizes only the lanes of its micro-batches, and which batches a step has depends
on the seed and on G, but not on the number of processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import numpy as np

from saccade.config.schema import Recipe
from saccade.data.batching.batch import Batch
from saccade.data.batching.batches import Rows, StreamState, collate_batch, plan_batches, shuffle_rows
from saccade.data.sources.ranges import Share
from saccade.data.store.arrays import DroppedRows, Store
from saccade.data.tokenization.encode import MAX_UINT16_IDS, EncodingCounts, TextEncoder
from saccade.errors import SaccadeError

MAX_BLOCK_CHARACTERS = 50_000_000  # a block of long documents has fewer of them
LANE_START: StreamState = {"epoch": 0, "pool": 0, "batch": 0, "place": None}


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


class Documents(Protocol):
    """An iterator of documents that knows where the next one begins."""

    def __iter__(self) -> Iterator[Any]: ...
    def __next__(self) -> Any: ...
    @property
    def place(self) -> Any: ...


class InterleavedDocuments:
    """Iterates over one document of each corpus in turn, until all are exhausted."""

    def __init__(self, corpora: Sequence[Documents], turn: int = 0) -> None:
        self.corpora, self.turn = corpora, turn

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        for _ in self.corpora:
            documents, self.turn = self.corpora[self.turn], (self.turn + 1) % len(self.corpora)
            if (document := next(documents, None)) is not None:
                return document
        raise StopIteration

    @property
    def place(self) -> dict[str, Any]:
        """Where the next documents of all corpora begin, as JSON."""
        return {"turn": self.turn, "corpora": [documents.place for documents in self.corpora]}


@dataclass(frozen=True)
class DocumentStream:
    """A stream of documents, and how a block of them becomes rows."""

    open_documents: Callable[..., Documents]  # of one `share`, from a `place` on; by default all, from the start
    encoder: TextEncoder
    build_rows: Callable[[Store], Rows]
    buffer: int  # maximum number of documents of the blocks of all lanes together
    name: str  # identifies documents, tokenizer and settings; compared when a run resumes
    hash_files: Callable[[], str] = str  # identifies what the shares of several lanes depend on

    def open_batches(
        self, *, batch_tokens: int, seed: int, rank: int = 0, world: int = 1, micro_batches: int | None = None
    ) -> DocumentBatchStream:
        """Open the endless stream of training batches; a step has `micro_batches`, a process every `world`-th of them.

        Without `micro_batches`, each process has one in a step, and all read one lane.
        """
        return DocumentBatchStream(
            self, batch_tokens=batch_tokens, seed=seed, rank=rank, world=world, micro_batches=micro_batches
        )


class DocumentBlock:
    """The batches of some documents; their rows and order are determined by seed and epoch."""

    def __init__(
        self, documents: Sequence[Any], stream: DocumentStream, *, budget: int, seed: Sequence[int], epoch: int
    ) -> None:
        self.num_documents = len(documents)
        self._batches: list[np.ndarray] = []
        [ids] = stream.encoder.encode_block(list(documents), 0, EncodingCounts())
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


class Lane:
    """Endless batches of one share of the documents, over epochs; a block has `buffer` documents of it."""

    def __init__(
        self, stream: DocumentStream, share: Share, state: StreamState, *, budget: int, seed: int, thread: Executor
    ) -> None:
        self.stream, self.share, self.budget, self.seed, self.thread = stream, share, budget, seed, thread
        self.buffer = math.ceil(stream.buffer / share.count)
        self.max_characters = math.ceil(MAX_BLOCK_CHARACTERS / share.count)
        self.block: DocumentBlock
        self.next: Future[tuple[DocumentBlock, Any]]
        self.epoch = self.document = self.batch = 0
        self._seek(**state)

    def advance(self) -> tuple[DocumentBlock, int]:
        """Go to the next batch; return its block and its number there."""
        restarts = 0
        while self.batch == len(self.block):
            following, place = self.next.result()
            if following.num_documents:
                self.document += self.block.num_documents
                self.block, self.place, self.batch = following, place, 0
                self._prefetch()
            else:
                restarts += 1
                self._seek(epoch=self.epoch + 1)
            if restarts > 1:
                raise SaccadeError("no document of data.train has any text; look at the files and at data.columns")
        self.batch += 1
        return self.block, self.batch - 1

    @property
    def completed_epochs(self) -> int:
        ended = self.batch == len(self.block) and not self.next.result()[0].num_documents
        return self.epoch + ended

    @property
    def state(self) -> StreamState:
        """The position as JSON; `pool` is the number of documents before the block, `place` where it begins."""
        return {"epoch": self.epoch, "pool": self.document, "batch": self.batch, "place": self.place}

    def _seek(self, *, epoch: int = 0, pool: int = 0, batch: int = 0, place: Any = None) -> None:
        """Open the documents at a place, and prepare the block that begins there."""
        self.epoch, self.document, self.batch = epoch, pool, batch
        self.documents = self.stream.open_documents(self.share, place)
        if place is None:
            for _ in islice(self.documents, pool):  # a run of 0.9 or earlier stored only their number
                pass
        self.block, self.place = self._read_block(epoch, pool)
        if not self.block.num_documents and not pool:
            raise self._build_empty_error()
        self._prefetch()

    def _build_empty_error(self) -> SaccadeError:
        if self.share.count == 1:
            return SaccadeError("there is no document in data.train; expected at least one; are the files empty?")
        return SaccadeError(
            f"data.train has no documents for micro-batch {self.share.number + 1} of {self.share.count}: expected at "
            f"least {self.share.count} documents, and many more; set data.stream=false for data as small as this"
        )

    def _prefetch(self) -> None:
        start = self.document + self.block.num_documents
        self.next = self.thread.submit(self._read_block, self.epoch, start)

    def _read_block(self, epoch: int, document: int) -> tuple[DocumentBlock, Any]:
        """Read and tokenize the next block; also return the place where it begins."""
        place, block, characters = self.documents.place, list[Any](), 0
        for row in self.documents:
            block.append(row)
            characters += len(row[1])
            if len(block) >= self.buffer or characters >= self.max_characters:
                break
        seed = (self.seed, document) if self.share.count == 1 else (self.seed, document, self.share.number)
        return DocumentBlock(block, self.stream, budget=self.budget, seed=seed, epoch=epoch), place


class DocumentBatchStream:
    """Endless stream of training batches over epochs of the documents, whose position can be saved and restored.

    A process takes the micro-batches rank, rank + world, ... of each step, one after the other.
    """

    def __init__(
        self,
        stream: DocumentStream,
        *,
        batch_tokens: int,
        seed: int,
        rank: int = 0,
        world: int = 1,
        micro_batches: int | None = None,
    ) -> None:
        self._stream, self._budget, self._seed = stream, batch_tokens, seed
        self._rank, self._world, self._group = rank, world, micro_batches or world
        assert self._group % self._world == 0, "the processes divide the micro-batches of a step"
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="documents")
        self._num_lanes, self._micro_batch, self._saved = micro_batches or 1, 0, StreamState()
        self._lanes: dict[int, Lane] = {}  # that are open

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        while True:
            number, self._micro_batch = self._micro_batch, (self._micro_batch + 1) % self._group
            if number % self._num_lanes not in self._own_lanes:
                continue
            block, batch = self._open_lane(number % self._num_lanes).advance()
            if number % self._world == self._rank:
                if self._num_lanes == 1 and number + self._world >= self._group:
                    self._finish_step()
                return block.get_batch(batch)

    @property
    def epoch(self) -> float:
        """Number of complete epochs of the slowest lane; the fraction of the current one is unknown."""
        waiting = [self._get_saved(number)["epoch"] for number in self._own_lanes if number not in self._lanes]
        return float(min([*waiting, *(lane.completed_epochs for lane in self._lanes.values())]))

    def state(self) -> StreamState:
        """Return the position in the stream, for a checkpoint: of all lanes of this process (see `merge_states`)."""
        made_for = {"made_for": self._get_dependencies()}
        opened = {number: lane.state for number, lane in self._lanes.items()}
        lanes = {str(number): opened.get(number, self._get_saved(number)) for number in self._own_lanes}
        if self._num_lanes == 1:
            return {**lanes["0"], **made_for}
        return {"lanes": lanes, "num_lanes": self._num_lanes, "files": self._stream.hash_files(), **made_for}

    def restore(self, state: StreamState) -> None:
        """Go to a saved position, also of another number of processes, without reading the documents before it."""
        saved, current = state["made_for"], self._get_dependencies()
        changed = [
            f"{name} was {saved.get(name)}, is {current[name]}" for name in current if saved.get(name) != current[name]
        ]
        if changed:
            raise SaccadeError(
                f"cannot resume at the saved position in the data: {'; '.join(changed)}; start a new run"
            )
        if state.get("files", self._stream.hash_files()) != self._stream.hash_files():
            raise SaccadeError(
                "cannot resume at the saved position in the data: the files of data.train have other names or sizes "
                "now; restore them, or start a new run"
            )
        num_lanes = state.get("num_lanes", 1)
        if num_lanes not in (1, self._group):
            raise SaccadeError(
                f"cannot resume at the saved position in the data: a step had {num_lanes} micro-batches, has "
                f"{self._group}; set it as before, or start a new run"
            )
        self._num_lanes, self._micro_batch, self._saved = num_lanes, 0, state
        self._lanes = {}

    def _get_dependencies(self) -> dict[str, Any]:
        return {"data": self._stream.name, "batch_tokens": self._budget, "seed": self._seed}

    @property
    def _own_lanes(self) -> range:
        """The lanes of this process; one lane is shared by all micro-batches."""
        return range(self._rank, self._group, self._world) if self._num_lanes > 1 else range(1)

    def _open_lane(self, number: int) -> Lane:
        """Return a lane, which is opened when its first batch is needed."""
        if number not in self._lanes:
            share, saved = Share(number, self._num_lanes), self._get_saved(number)
            self._lanes[number] = Lane(
                self._stream, share, saved, budget=self._budget, seed=self._seed, thread=self._thread
            )
        return self._lanes[number]

    def _get_saved(self, number: int) -> StreamState:
        """Return the position at which a lane is opened."""
        lane = self._saved if self._num_lanes == 1 else self._saved.get("lanes", {}).get(str(number), {})
        return {name: lane.get(name, start) for name, start in LANE_START.items()}

    def _finish_step(self) -> None:
        """Go to the end of the step, so that all processes have the same position in the lane that they share."""
        while self._micro_batch:
            self._open_lane(0).advance()
            self._micro_batch = (self._micro_batch + 1) % self._group


def merge_states(states: Sequence[StreamState]) -> StreamState:
    """Return the position of all processes, from which any number of them can go on: the lanes of all of them."""
    if "lanes" not in states[0]:
        return states[0]
    lanes = {number: lane for state in states for number, lane in state["lanes"].items()}
    return {**states[0], "lanes": dict(sorted(lanes.items(), key=lambda item: int(item[0])))}


def restart_epoch(state: StreamState) -> StreamState:
    """Return the position at the start of the epoch of a position, of stored rows or of a stream."""
    if "lanes" in state:
        return {**state, "lanes": {number: restart_epoch(lane) for number, lane in state["lanes"].items()}}
    return {**state, "pool": 0, "batch": 0, **({"place": None} if "place" in state else {})}


def get_epoch(state: StreamState) -> int:
    """Return the number of the epoch of a position, from 0; of several lanes the first."""
    lanes = state["lanes"].values() if "lanes" in state else [state]
    return min(int(lane["epoch"]) for lane in lanes)


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
