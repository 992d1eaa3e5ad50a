"""Batches on their way from the data to the device, with the position in the data that belongs to each."""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F

from saccade.data.batching.batch import Batch, Media, Tokens
from saccade.data.tokenization.tokenizers import PAD
from saccade.train.batches.pack import tensors_of

StreamState = dict[str, Any]  # where a stream stands, as JSON
Shape = Callable[[Batch], Batch]  # brings batches into the form that training wants
AHEAD = 4  # batches prepared while the GPU works
GLANCE = 2e-4  # seconds between two looks for a batch that is not ready


class Stream(Protocol):
    """An endless iterator of batches whose position can be saved and restored."""

    def __iter__(self) -> Iterator[Batch]: ...
    def __next__(self) -> Batch: ...
    def state(self) -> StreamState: ...
    def restore(self, state: StreamState) -> None: ...
    @property
    def epoch(self) -> float: ...


class Item(NamedTuple):
    batch: Batch
    state: StreamState  # of the stream, after this batch
    epoch: float
    rows: int  # texts of each field
    copied: torch.cuda.Event | None  # when the batch is on the device


class Feed:
    """Takes batches from a stream; on CUDA a thread prepares and copies them ahead of their use."""

    def __init__(self, stream: Stream, *, device: torch.device, shape: Shape | None = None, ahead: bool = True) -> None:
        """Without `ahead`, a batch is made when it is asked for, and not earlier."""
        self.stream, self.device, self.shape = stream, device, shape
        self.state, self.epoch = stream.state(), stream.epoch
        self.waited = 0.0  # seconds the device stood still for data
        self.rows, self.tokens = 0, Counter[str]()  # taken so far, real tokens by field
        self.places = 0  # tokens with padding
        self._items: queue.Queue[Item | BaseException] = queue.Queue(maxsize=AHEAD)
        self._copies: torch.cuda.Stream | None = None
        self._stop = threading.Event()
        ahead = ahead and device.type == "cuda"
        self._thread = threading.Thread(target=self._run, daemon=True) if ahead else None
        if self._thread is not None:
            self._thread.start()

    def take(self) -> Batch:
        """The next batch; `state` and `epoch` are then those after it."""
        start = time.perf_counter()
        if self._thread is None:
            item = self._arrived(self._make())
            self.waited += time.perf_counter() - start
        else:
            item = self._taken()
        self.state, self.epoch = item.state, item.epoch
        self.rows += item.rows
        self.tokens.update(item.batch.counts)
        self.places += sum(field.places for field in item.batch.fields.values())
        return item.batch

    @property
    def padding(self) -> float:
        """The share of what was computed for nothing so far: padding, or what fills up packed rows."""
        return 1 - self.tokens.total() / self.places if self.places else 0.0

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _taken(self) -> Item:
        """The next item of the thread; waiting for it counts from when the device has done all it was given."""
        idle = None
        while self._items.empty():
            idle = time.perf_counter() if idle is None and self._idle() else idle
            time.sleep(GLANCE)
        item = self._items.get()
        if idle is not None:
            self.waited += time.perf_counter() - idle
        if isinstance(item, BaseException):
            raise item
        return self._arrived(item)

    def _arrived(self, item: Item) -> Item:
        """The work that is given to the device from now on waits for the copy."""
        if item.copied is not None:
            here = torch.cuda.current_stream(self.device)
            here.wait_event(item.copied)
            for tensor in tensors_of(item.batch):
                tensor.record_stream(here)  # its memory is not given away before the work that reads it is done
        return item

    def _idle(self) -> bool:
        return torch.cuda.current_stream(self.device).query()

    def _make(self) -> Item:
        batch = next(self.stream)
        rows = len(next(iter(batch.fields.values())).content)
        batch = self.shape(batch) if self.shape else batch
        batch, copied = self._copy(batch)
        return Item(batch, self.stream.state(), self.stream.epoch, rows, copied)

    def _copy(self, batch: Batch) -> tuple[Batch, torch.cuda.Event | None]:
        """To CUDA beside the work that goes on there: from pinned memory, on a stream of its own."""
        if self.device.type != "cuda":
            return batch.to(self.device), None
        if self._copies is None:
            self._copies = torch.cuda.Stream(self.device)
        with torch.cuda.stream(self._copies):
            moved = batch.pin_memory().to(self.device, non_blocking=True)
        return moved, self._copies.record_event()

    def _run(self) -> None:
        while not self._stop.is_set():
            item: Item | BaseException
            try:
                item = self._make()
            except BaseException as error:  # told to the loop, which raises it
                item = error
            while not self._stop.is_set():
                try:
                    self._items.put(item, timeout=0.1)
                    break
                except queue.Full:
                    continue
            if isinstance(item, BaseException):
                return


def widened(batch: Batch) -> Batch:
    """At least two rows and two columns, filled with padding: a compiled graph treats a length of one as special."""
    if all(min(field.mask.shape) > 1 for field in batch.fields.values()):
        return batch
    return Batch({name: _widened(field) for name, field in batch.fields.items()}, batch.counts)


def _widened(field: Any) -> Any:
    rows, columns = (max(0, 2 - length) for length in field.mask.shape)
    if isinstance(field, Media):  # of more than one column
        more = (*(0, 0) * (field.values.dim() - 1), 0, rows)
        return type(field)(F.pad(field.values, more), F.pad(field.mask, (0, 0, 0, rows), value=False))
    more = (0, columns, 0, rows)
    return Tokens(F.pad(field.ids, more, value=PAD), F.pad(field.mask, more, value=False))
