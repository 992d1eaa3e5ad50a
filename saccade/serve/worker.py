"""One worker thread per model, with dynamic batching: it decodes all compatible waiting requests as one batch.

Requests of a single client never wait for a batch to fill. Requests of several clients queue up while the model is
busy, and the next batch takes all of them. Streams advance by one chunk between batches.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import torch

from saccade.config.schema import Decoding
from saccade.predict.outputs import Hypothesis
from saccade.predict.predictors.predictor import Predictor
from saccade.serve.limits import Limits, MovingAverage, RequestError
from saccade.serve.metrics import Metrics

# After a batch of several requests, the next one waits for more until none has arrived for BATCH_IDLE_SECONDS, but not
# longer than MAX_BATCH_WAIT_SECONDS.
BATCH_IDLE_SECONDS = 0.001
MAX_BATCH_WAIT_SECONDS = 0.01

Outputs = list[list[Hypothesis]]
ChunkCallback = Callable[[str | Exception | None], None]  # gets each chunk of text, an exception, or None at the end


@dataclass(eq=False)
class DecodingJob:
    """The inputs of one request; jobs with equal decoding settings share a batch, unless they sample."""

    inputs: Sequence[str]
    decoding: Decoding
    future: Future[Outputs] = field(default_factory=Future)

    def can_join(self, other: "Job") -> bool:
        return isinstance(other, DecodingJob) and not self.decoding.sample and self.decoding == other.decoding


@dataclass(eq=False)
class FunctionJob:
    """A function that uses the model, such as the computation of attention weights."""

    function: Callable[[], Any]
    future: Future[Any] = field(default_factory=Future)

    def can_join(self, other: "Job") -> bool:
        return False


Job = DecodingJob | FunctionJob


@dataclass(eq=False)
class Stream:
    """An output that is generated in chunks until it ends, fails, times out or is cancelled."""

    chunks: Generator[str, None, None]
    callback: ChunkCallback
    deadline: float  # of time.monotonic
    cancelled: bool = False


class Worker:
    """Runs a model in a thread of its own, so that it needs no locks and can batch requests of all clients."""

    def __init__(self, name: str, predictor: Predictor, *, limits: Limits, metrics: Metrics) -> None:
        self.name, self.predictor, self.limits, self.metrics = name, predictor, limits, metrics
        self.condition = threading.Condition()
        self.waiting: deque[Job] = deque()
        self.streams: list[Stream] = []
        self.request_seconds, self.last_batch_requests = MovingAverage(), 1
        self.stopping = False
        self.thread = threading.Thread(target=self._work, name=f"model {name}", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        """Stop the thread after all waiting jobs are done."""
        with self.condition:
            self.stopping = True
            self.condition.notify()
        self.thread.join(self.limits.timeout)

    def submit(self, inputs: Sequence[str], decoding: Decoding) -> Future[Outputs]:
        """Queue inputs for decoding; the future returns the hypotheses of each."""
        job = DecodingJob(inputs, decoding)
        self._add(job)
        return job.future

    def submit_function(self, function: Callable[[], Any]) -> Future[Any]:
        """Queue a function that uses the model; the future returns its result."""
        job = FunctionJob(function)
        self._add(job)
        return job.future

    def start_stream(self, text: str, decoding: Decoding, callback: ChunkCallback) -> Stream:
        """Start to generate an output in chunks; `callback` is called with each in the thread of the worker."""
        stream = Stream(self._generate_chunks(text, decoding), callback, time.monotonic() + self.limits.timeout)
        with self.condition:
            if self.stopping or len(self.streams) >= self.limits.max_streams:
                raise self._build_overload_error(len(self.streams), "streams are being sent")
            self.streams.append(stream)
            self.condition.notify()
        return stream

    def _add(self, job: Job) -> None:
        with self.condition:
            if self.stopping or len(self.waiting) >= self.limits.max_queue:
                raise self._build_overload_error(len(self.waiting), "requests are waiting")
            self.waiting.append(job)
            self.metrics.waiting_requests.labels(self.name).set(len(self.waiting))
            self.condition.notify()

    def _build_overload_error(self, count: int, what: str) -> RequestError:
        if self.stopping:
            return RequestError(503, "the server is shutting down; try again later", {"retry-after": "5"})
        seconds = max(1, math.ceil(count * self.request_seconds.value))
        message = f"{count} {what} for model '{self.name}', which is the maximum; try again in {seconds} s"
        return RequestError(429, message, {"retry-after": str(seconds)})

    def _work(self) -> None:
        # Streams are interleaved generators that enter and leave inference mode in turn; the mode around them all
        # keeps it on.
        with torch.inference_mode():
            while (batch := self._take_batch()) is not None:
                start = time.perf_counter()
                if batch:
                    self._process(batch)
                    self.request_seconds.update((time.perf_counter() - start) / len(batch))
                for stream in list(self.streams):
                    self._advance(stream)

    def _take_batch(self) -> list[Job] | None:
        """Wait for and take the next batch of jobs: empty if there are only streams, None when the worker stops."""
        with self.condition:
            self.condition.wait_for(lambda: self.waiting or self.streams or self.stopping)
            if not self.waiting:
                return [] if self.streams else None
            if self.last_batch_requests > 1 and not self.streams:
                self._wait_for_more()
            batch = [self.waiting.popleft()]
            if batch[0].can_join(batch[0]):
                self._add_compatible(batch)
            self.last_batch_requests = len(batch)
            self.metrics.waiting_requests.labels(self.name).set(len(self.waiting))
        return [job for job in batch if job.future.set_running_or_notify_cancel()]

    def _wait_for_more(self) -> None:
        """Wait while requests keep arriving, for MAX_BATCH_WAIT_SECONDS at most."""
        end, count = time.monotonic() + MAX_BATCH_WAIT_SECONDS, 0
        while count < len(self.waiting) < self.limits.max_batch and time.monotonic() < end:
            count = len(self.waiting)
            self.condition.wait(BATCH_IDLE_SECONDS)

    def _add_compatible(self, batch: list[Job]) -> None:
        """Move the waiting jobs that can be decoded with the first one to the batch; the others keep their order."""
        capacity = self.limits.max_batch - len(batch[0].inputs) if isinstance(batch[0], DecodingJob) else 0
        remaining: list[Job] = []
        for job in self.waiting:
            if isinstance(job, DecodingJob) and batch[0].can_join(job) and len(job.inputs) <= capacity:
                capacity -= len(job.inputs)
                batch.append(job)
            else:
                remaining.append(job)
        self.waiting = deque(remaining)

    def _process(self, jobs: Sequence[Job]) -> None:
        """Decode a batch of jobs; if it fails, bisect it, so that only the invalid jobs get the error."""
        if isinstance(jobs[0], FunctionJob):
            run_into_future(jobs[0].future, jobs[0].function)
            return
        batch = [job for job in jobs if isinstance(job, DecodingJob)]
        inputs = [text for job in batch for text in job.inputs]
        try:
            outputs = iter(self.predictor.candidates(inputs, decoding=batch[0].decoding))
        except Exception as error:
            if len(batch) == 1:
                batch[0].future.set_exception(error)
                return
            for half in (batch[: len(batch) // 2], batch[len(batch) // 2 :]):
                self._process(half)
            return
        # Counted before the results are out, so that a client that has its answer finds it in the metrics.
        self.metrics.batch_texts.labels(self.name).observe(len(inputs))
        self.metrics.count_engines(self.predictor.engines, self.name)
        for job in batch:
            job.future.set_result([next(outputs) for _ in job.inputs])

    def _generate_chunks(self, text: str, decoding: Decoding) -> Generator[str, None, None]:
        yield from self.predictor.write(text, decoding=decoding)

    def _advance(self, stream: Stream) -> None:
        """Generate the next chunk of a stream; remove the stream if it has ended, failed or was cancelled."""
        chunk: str | Exception | None
        try:
            if time.monotonic() > stream.deadline:
                raise RequestError(503, format_timeout_message(self.limits.timeout))
            chunk = None if stream.cancelled else next(stream.chunks, None)
        except Exception as error:
            chunk = error
        if chunk is None or isinstance(chunk, Exception):
            stream.chunks.close()  # in this thread, not in that of the garbage collector
            with self.condition:
                self.streams.remove(stream)
        if not stream.cancelled and chunk != "":
            stream.callback(chunk)


def run_into_future(future: Future[Any], function: Callable[[], Any]) -> None:
    """Call a function and store its result or exception in a future."""
    try:
        result = function()
    except Exception as error:
        future.set_exception(error)
    else:
        future.set_result(result)


def format_timeout_message(seconds: float) -> str:
    return f"no result within {seconds:g} s; send less, or try again when the server is less busy"
