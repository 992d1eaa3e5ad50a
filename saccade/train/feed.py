"""Batches on their way from the data to the device, with the position in the data that belongs to each."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F

from saccade.data.batch import Batch, Tokens
from saccade.data.tokenizers import PAD

AHEAD = 4  # batches prepared while the GPU works


class Stream(Protocol):
    """An endless iterator of batches whose position can be saved and restored."""

    def __iter__(self) -> Iterator[Batch]: ...
    def __next__(self) -> Batch: ...
    def state(self) -> dict[str, Any]: ...
    def restore(self, state: dict[str, Any]) -> None: ...
    @property
    def epoch(self) -> float: ...
    @property
    def padding(self) -> float: ...


class Item(NamedTuple):
    batch: Batch
    state: dict[str, Any]  # of the stream, after this batch
    epoch: float


class Feed:
    """Takes batches from a stream; on CUDA a thread prepares and copies them ahead of their use."""

    def __init__(self, stream: Stream, *, device: torch.device, widen: bool = False) -> None:
        self.stream, self.device, self.widen = stream, device, widen
        self.state, self.epoch = stream.state(), stream.epoch
        self.waited = 0.0  # seconds the loop stood still for data
        self._items: queue.Queue[Item | BaseException] = queue.Queue(maxsize=AHEAD)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True) if device.type == "cuda" else None
        if self._thread is not None:
            self._thread.start()

    def take(self) -> Batch:
        """The next batch; `state` and `epoch` are then those after it."""
        start = time.perf_counter()
        item = self._make() if self._thread is None else self._items.get()
        self.waited += time.perf_counter() - start
        if isinstance(item, BaseException):
            raise item
        self.state, self.epoch = item.state, item.epoch
        return item.batch

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _make(self) -> Item:
        batch = next(self.stream)
        batch = widened(batch) if self.widen else batch
        if self.device.type == "cuda":
            batch = batch.pin_memory()
        return Item(batch.to(self.device, non_blocking=True), self.stream.state(), self.stream.epoch)

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
    if all(min(tokens.ids.shape) > 1 for tokens in batch.fields.values()):
        return batch
    return Batch({name: _widened(tokens) for name, tokens in batch.fields.items()}, batch.counts)


def _widened(tokens: Tokens) -> Tokens:
    rows, columns = (max(0, 2 - length) for length in tokens.ids.shape)
    more = (0, columns, 0, rows)
    return Tokens(F.pad(tokens.ids, more, value=PAD), F.pad(tokens.mask, more, value=False))
