"""One thread for each model: it takes what is waiting, decodes what belongs together at once, and goes on with streams.

Nothing waits on purpose while a single client asks. Where several do, their requests pile up while the model is busy,
and the next batch has all of them.
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
from saccade.serve.limits import Limits, Pace, Refused
from saccade.serve.metrics import Metrics

QUIET = 0.001  # seconds without a new request after which a batch begins, where there was a batch of several before
LONGEST = 0.01  # seconds that the first request of such a batch waits at most

Outputs = list[list[Hypothesis]]
Tell = Callable[[str | Exception | None], None]  # a piece of text, what went wrong, or that it was the last one


@dataclass(eq=False)
class Texts:
    """Texts of one request; those with the same settings are decoded together, unless they are drawn with a seed."""

    texts: Sequence[str]
    decoding: Decoding
    future: Future[Outputs] = field(default_factory=Future)

    def joins(self, other: "Job") -> bool:
        return isinstance(other, Texts) and not self.decoding.sample and self.decoding == other.decoding


@dataclass(eq=False)
class Call:
    """Anything else that is asked of the model."""

    make: Callable[[], Any]
    future: Future[Any] = field(default_factory=Future)

    def joins(self, other: "Job") -> bool:
        return False


Job = Texts | Call


@dataclass(eq=False)
class Stream:
    """An output that is told piece by piece, until it ends or nobody listens."""

    pieces: Generator[str, None, None]
    tell: Tell
    until: float  # by the clock of time.monotonic
    left: bool = False


class Worker:
    """All work of one model is done in one thread: it needs no locks, and batches are as large as they can be."""

    def __init__(self, name: str, predictor: Predictor, *, limits: Limits, metrics: Metrics) -> None:
        self.name, self.predictor, self.limits, self.metrics = name, predictor, limits, metrics
        self.change = threading.Condition()
        self.waiting: deque[Job] = deque()
        self.streams: list[Stream] = []
        self.pace, self.before = Pace(), 1  # requests of the batch before
        self.stopping = False
        self.thread = threading.Thread(target=self._work, name=f"model {name}", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        """Ends the thread when everything that waits is answered."""
        with self.change:
            self.stopping = True
            self.change.notify()
        self.thread.join(self.limits.seconds)

    def candidates(self, texts: Sequence[str], decoding: Decoding) -> Future[Outputs]:
        """The outputs of each text, sooner or later."""
        job = Texts(texts, decoding)
        self._add(job)
        return job.future

    def call(self, make: Callable[[], Any]) -> Future[Any]:
        """What a function gives that uses the model."""
        job = Call(make)
        self._add(job)
        return job.future

    def stream(self, text: str, decoding: Decoding, tell: Tell) -> Stream:
        """Tells an output in pieces, in the thread of the worker, from now on."""
        made = Stream(self._pieces(text, decoding), tell, time.monotonic() + self.limits.seconds)
        with self.change:
            if self.stopping or len(self.streams) >= self.limits.streams:
                raise self._full(len(self.streams), "streams are being sent")
            self.streams.append(made)
            self.change.notify()
        return made

    # ---- inside

    def _add(self, job: Job) -> None:
        with self.change:
            if self.stopping or len(self.waiting) >= self.limits.queue:
                raise self._full(len(self.waiting), "requests are waiting")
            self.waiting.append(job)
            self.metrics.gauge("saccade_waiting_requests", len(self.waiting), {"model": self.name})
            self.change.notify()

    def _full(self, count: int, what: str) -> Refused:
        if self.stopping:
            return Refused(503, "the server is shutting down; ask again later", {"retry-after": "5"})
        seconds = max(1, math.ceil(count * self.pace.seconds))
        message = f"{count} {what} for model '{self.name}', which is all that it takes; ask again in {seconds} s"
        return Refused(429, message, {"retry-after": str(seconds)})

    def _work(self) -> None:
        # Streams take turns, and each is a generator inside its own inference mode: all stay within this one.
        with torch.inference_mode():
            while (group := self._take()) is not None:
                begin = time.perf_counter()
                if group:
                    self._answer(group)
                    self.pace.note((time.perf_counter() - begin) / len(group))
                for stream in list(self.streams):
                    self._go_on(stream)

    def _take(self) -> list[Job] | None:
        """The requests that are next, none where only streams go on; None at the end."""
        with self.change:
            self.change.wait_for(lambda: self.waiting or self.streams or self.stopping)
            if not self.waiting:
                return [] if self.streams else None
            if self.before > 1 and not self.streams:
                self._gather()
            group = [self.waiting.popleft()]
            if group[0].joins(group[0]):
                self._fill(group)
            self.before = len(group)
            self.metrics.gauge("saccade_waiting_requests", len(self.waiting), {"model": self.name})
        return [job for job in group if job.future.set_running_or_notify_cancel()]

    def _gather(self) -> None:
        """Waits for as long as requests go on coming in, for a few milliseconds at most."""
        end, count = time.monotonic() + LONGEST, 0
        while count < len(self.waiting) < self.limits.batch and time.monotonic() < end:
            count = len(self.waiting)
            self.change.wait(QUIET)

    def _fill(self, group: list[Job]) -> None:
        """Takes what can be decoded together with the first one; the others keep their places."""
        room = self.limits.batch - len(group[0].texts) if isinstance(group[0], Texts) else 0
        left: list[Job] = []
        for job in self.waiting:
            if isinstance(job, Texts) and group[0].joins(job) and len(job.texts) <= room:
                room -= len(job.texts)
                group.append(job)
            else:
                left.append(job)
        self.waiting = deque(left)

    def _answer(self, jobs: Sequence[Job]) -> None:
        """Every job gets its own outputs, or its own error: one that fails is found by halves."""
        if isinstance(jobs[0], Call):
            settle(jobs[0].future, jobs[0].make)
            return
        asked = [job for job in jobs if isinstance(job, Texts)]
        texts = [text for job in asked for text in job.texts]
        try:
            found = iter(self.predictor.candidates(texts, decoding=asked[0].decoding))
        except Exception as error:
            if len(asked) == 1:
                asked[0].future.set_exception(error)
                return
            for half in (asked[: len(asked) // 2], asked[len(asked) // 2 :]):
                self._answer(half)
            return
        for job in asked:
            job.future.set_result([next(found) for _ in job.texts])
        self.metrics.observe("saccade_batch_texts", len(texts), {"model": self.name})
        self.metrics.count_engines(self.predictor.engines, self.name)

    def _pieces(self, text: str, decoding: Decoding) -> Generator[str, None, None]:
        yield from self.predictor.write(text, decoding=decoding)

    def _go_on(self, stream: Stream) -> None:
        """One more piece; a stream that has ended, failed or lost its listener goes away."""
        said: str | Exception | None
        try:
            if time.monotonic() > stream.until:
                raise Refused(503, too_late(self.limits.seconds))
            said = None if stream.left else next(stream.pieces, None)
        except Exception as error:
            said = error
        if said is None or isinstance(said, Exception):
            stream.pieces.close()  # now and in this thread, not when somebody tidies up
            with self.change:
                self.streams.remove(stream)
        if not stream.left and said != "":
            stream.tell(said)


def settle(future: Future[Any], make: Callable[[], Any]) -> None:
    """Leaves what a function gives or raises in a future."""
    try:
        made = make()
    except Exception as error:
        future.set_exception(error)
    else:
        future.set_result(made)


def too_late(seconds: float) -> str:
    return f"no answer within {seconds:g} s; ask for less, or again when fewer others do"
