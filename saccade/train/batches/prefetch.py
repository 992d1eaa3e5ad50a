"""Prefetches batches and copies them to the device, with the position in the data after each."""

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
from saccade.train.batches.pack import get_tensors

StreamState = dict[str, Any]  # position of a stream, serializable as JSON
BatchTransform = Callable[[Batch], Batch]  # packs or pads a batch on the host
PREFETCHED_BATCHES = 4  # batches prepared while the GPU works
POLL_SECONDS = 2e-4  # pause between two checks for a batch that is not ready


class Stream(Protocol):
    """An endless iterator of batches whose position can be saved and restored."""

    depends_on_weights: bool  # batches are made with the current weights, so not ahead of time

    def __iter__(self) -> Iterator[Batch]: ...
    def __next__(self) -> Batch: ...
    def state(self) -> StreamState: ...
    def restore(self, state: StreamState) -> None: ...
    @property
    def epoch(self) -> float: ...


class PrefetchedBatch(NamedTuple):
    batch: Batch
    untransformed: Batch  # the same on the host, neither packed nor padded to a static shape
    state: StreamState  # of the stream, after this batch
    epoch: float
    rows: int  # sequences of each field
    copy_done: torch.cuda.Event | None  # recorded when the copy to the device is done


class Prefetcher:
    """Takes batches from a stream; on CUDA a thread prepares and copies them ahead of their use."""

    def __init__(
        self,
        stream: Stream,
        *,
        device: torch.device,
        transform: BatchTransform | None = None,
        prefetch: bool = True,
    ) -> None:
        """With `prefetch` false, a batch is loaded only when it is requested."""
        self.stream, self.device, self.transform = stream, device, transform
        self.state, self.epoch = stream.state(), stream.epoch
        self.untransformed = Batch({})  # of the last batch, for `load_parts`
        self.wait_seconds = 0.0  # time that the device was idle for lack of data
        self.rows, self.tokens = 0, Counter[str]()  # returned so far: sequences, and real tokens by field
        self.padded_tokens = 0  # the same tokens with padding
        self._queue: queue.Queue[PrefetchedBatch | BaseException] = queue.Queue(maxsize=PREFETCHED_BATCHES)
        self._copy_stream: torch.cuda.Stream | None = None
        self._stop = threading.Event()
        prefetch = prefetch and device.type == "cuda"
        self._thread = threading.Thread(target=self._prefetch, daemon=True) if prefetch else None
        if self._thread is not None:
            self._thread.start()

    def next_batch(self) -> Batch:
        """Return the next batch; `state` and `epoch` become those after it."""
        start = time.perf_counter()
        if self._thread is None:
            item = self._load_next()
            self.wait_seconds += time.perf_counter() - start
        else:
            item = self._get_from_thread()
        self._wait_for_copy(item.batch, item.copy_done)
        self.state, self.epoch, self.untransformed = item.state, item.epoch, item.untransformed
        self.rows += item.rows
        self.tokens.update(item.batch.counts)
        self.padded_tokens += sum(field.num_positions for field in item.batch.fields.values())
        return item.batch

    def load_parts(self, untransformed: Batch, parts: int) -> list[Batch]:
        """Split a batch by rows into parts, and pack or pad each of them and copy it to the device."""
        split = map(self._transform, untransformed.split(parts))
        return [self._wait_for_copy(*self._copy_to_device(part)) for part in split]

    @property
    def padding(self) -> float:
        """Share of padding among all tokens so far, including the padding of packed rows."""
        return 1 - self.tokens.total() / self.padded_tokens if self.padded_tokens else 0.0

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _get_from_thread(self) -> PrefetchedBatch:
        """Return the next batch of the thread; waiting counts from when the device has finished its queued work."""
        idle = None
        while self._queue.empty():
            idle = time.perf_counter() if idle is None and self._is_device_idle() else idle
            time.sleep(POLL_SECONDS)
        item = self._queue.get()
        if idle is not None:
            self.wait_seconds += time.perf_counter() - idle
        if isinstance(item, BaseException):
            raise item
        return item

    def _wait_for_copy(self, batch: Batch, copy_done: torch.cuda.Event | None) -> Batch:
        """Make the current CUDA stream wait for the copy of a batch."""
        if copy_done is not None:
            current = torch.cuda.current_stream(self.device)
            current.wait_event(copy_done)
            for tensor in get_tensors(batch):
                tensor.record_stream(current)  # or its memory could be reused before this stream has read it
        return batch

    def _is_device_idle(self) -> bool:
        return torch.cuda.current_stream(self.device).query()

    def _load_next(self) -> PrefetchedBatch:
        untransformed = next(self.stream)
        rows = len(next(iter(untransformed.fields.values())).content)
        batch, copy_done = self._copy_to_device(self._transform(untransformed))
        return PrefetchedBatch(batch, untransformed, self.stream.state(), self.stream.epoch, rows, copy_done)

    def _transform(self, batch: Batch) -> Batch:
        return self.transform(batch) if self.transform else batch

    def _copy_to_device(self, batch: Batch) -> tuple[Batch, torch.cuda.Event | None]:
        """Copy a batch to the device; on CUDA asynchronously, from pinned memory on a stream of its own."""
        if self.device.type != "cuda":
            return batch.to(self.device), None
        if self._copy_stream is None:
            self._copy_stream = torch.cuda.Stream(self.device)
        with torch.cuda.stream(self._copy_stream):
            moved = batch.pin_memory().to(self.device, non_blocking=True)
        return moved, self._copy_stream.record_event()

    def _prefetch(self) -> None:
        while not self._stop.is_set():
            item: PrefetchedBatch | BaseException
            try:
                item = self._load_next()
            except BaseException as error:  # raised by `next_batch` in the training loop
                item = error
            while not self._stop.is_set():
                try:
                    self._queue.put(item, timeout=0.1)
                    break
                except queue.Full:
                    continue
            if isinstance(item, BaseException):
                return


def pad_to_two(batch: Batch) -> Batch:
    """Pad a batch to at least two rows and two columns: torch.compile would specialize on sizes of 1."""
    if all(min(field.mask.shape) > 1 for field in batch.fields.values()):
        return batch
    return Batch({name: _pad_field_to_two(field) for name, field in batch.fields.items()}, batch.counts)


def _pad_field_to_two(field: Any) -> Any:
    rows, columns = (max(0, 2 - length) for length in field.mask.shape)
    if isinstance(field, Media):  # always has more than one column
        more = (*(0, 0) * (field.values.dim() - 1), 0, rows)
        return type(field)(F.pad(field.values, more), F.pad(field.mask, (0, 0, 0, rows), value=False))
    more = (0, columns, 0, rows)
    return Tokens(F.pad(field.ids, more, value=PAD), F.pad(field.mask, more, value=False))
