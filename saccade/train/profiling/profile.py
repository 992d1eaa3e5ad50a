"""Where the time of a training step goes: some steps of a run are watched, all others pay nothing.

After some steps to warm up come steps that run as ever and are only timed as a whole; then steps whose parts are timed;
then steps under torch's profiler. The weights that come out are the same as without it.
"""

from __future__ import annotations

import os
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from saccade.train.batches.feed import Feed

PARTS = ("data", "forward", "backward", "optimizer")
STEPS = {"warm": 10, "plain": 10, "parts": 5, "traced": 3}  # steps of each kind, in this order
WARM_ON_GPU = 100  # steps: many shapes of batches are compiled or captured when they come for the first time
FEWEST = 3  # steps, one of each kind but the first
NOTHING: AbstractContextManager[None] = nullcontext()
Moment = float | torch.cuda.Event


class Plain(NamedTuple):
    """Steps that ran as ever."""

    steps: int
    seconds: float
    rows: int
    tokens: Counter[str]  # real ones, by field


class Findings(NamedTuple):
    steps: Counter[str]  # how many of each kind
    plain: Plain
    waited: float  # seconds for data in a plain step
    parts: dict[str, float]  # seconds of the timed steps by part, and of the whole "step"
    trace: profile


class Watch:
    """Watches the first steps of this process one after the other, each by what it is there for."""

    def __init__(self, on: bool, *, feed: Feed, device: torch.device) -> None:
        self.on, self.feed, self.device = on, feed, device
        self.kinds: list[str] = []
        self.taken = 0  # steps of these
        self.phase = ""  # of the step that runs
        self.waited = 0.0  # seconds for data
        self.parts: dict[str, float] = defaultdict(float)
        self.trace: profile | None = None
        self._tracing = False
        self._spans: list[tuple[str, Moment, Moment]] = []
        self._loads: list[tuple[int, Counter[str]]] = []  # rows and tokens of each plain step

    def begin(self, *, left: int | None) -> None:
        """Plans what to watch, given how many steps the run will still take, where that is known."""
        if self.on:
            os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # or torch's profiler tells that it starts and stops
            self.kinds = kinds_of_steps(left, warm=WARM_ON_GPU if self.device.type == "cuda" else STEPS["warm"])
            self.trace = profile(activities=activities(self.device)) if self.kinds else None

    @property
    def wanted(self) -> int:
        """Steps that a profile takes."""
        return len(self.kinds) or FEWEST

    @property
    def apart(self) -> bool:
        """Whether the parts of this step must run one by one, not as one captured graph."""
        return self.phase in ("parts", "traced")

    def step(self) -> AbstractContextManager[None]:
        """Around an optimizer step."""
        return self._step(self.kinds[self.taken]) if self.taken < len(self.kinds) else NOTHING

    def part(self, name: str) -> AbstractContextManager[None]:
        """Around a part of a step, one of PARTS."""
        if self.phase == "parts":
            return self._timed(name)
        if self.phase == "traced":
            return record_function(name)
        return self._waiting() if self.phase == "plain" and name == "data" else NOTHING

    def findings(self) -> Findings | None:
        """What was found, once, when the last watched step is done."""
        if self.trace is None or self.taken < len(self.kinds):
            return None
        steps = Counter(self.kinds)
        found = Findings(steps, self._plain, self.waited / steps["plain"], self.parts, self.trace)
        self.on, self.trace = False, None
        return found

    def close(self) -> None:
        """Ends a trace that the end of training has cut off."""
        if self._tracing and self.trace is not None:
            self.trace.stop()

    @contextmanager
    def _step(self, kind: str) -> Iterator[None]:
        if self.taken == 0 or self.kinds[self.taken - 1] != kind:
            self._begin(kind)
        self.phase = kind
        rows, tokens = self.feed.rows, self.feed.tokens.copy()
        with self._timed("step") if kind in ("plain", "parts") else NOTHING:
            yield
        if kind == "plain":
            self._loads.append((self.feed.rows - rows, self.feed.tokens - tokens))
        self.phase = ""
        self.taken += 1
        if self.taken == len(self.kinds) or self.kinds[self.taken] != kind:
            self._end(kind)

    def _begin(self, kind: str) -> None:
        """Before the first step of a kind."""
        synchronize(self.device)
        if kind == "traced" and self.trace is not None:
            self.trace.start()
            self._tracing = True

    def _end(self, kind: str) -> None:
        """After the last step of a kind."""
        synchronize(self.device)
        if kind == "plain":
            took = [seconds_between(begin, end) for _, begin, end in self._spans]
            self._plain = usual(took, self._loads)
        elif kind == "parts":
            for name, begin, end in self._spans:
                self.parts[name] += seconds_between(begin, end)
        elif kind == "traced" and self.trace is not None:
            self.trace.stop()
            self._tracing = False
        self._spans.clear()

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.waited += time.perf_counter() - begin

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        begin = moment(self.device)
        yield
        self._spans.append((name, begin, moment(self.device)))


def usual(took: list[float], loads: list[tuple[int, Counter[str]]]) -> Plain:
    """The steps without those that took more than twice as long as most: they compile, or capture a graph."""
    middle = statistics.median(took)
    kept = [(seconds, *load) for seconds, load in zip(took, loads, strict=True) if seconds <= 2 * middle]
    tokens: Counter[str] = Counter()
    for _, _, count in kept:
        tokens.update(count)
    return Plain(len(kept), sum(seconds for seconds, *_ in kept), sum(rows for _, rows, _ in kept), tokens)


def kinds_of_steps(left: int | None, *, warm: int = STEPS["warm"]) -> list[str]:
    """What each watched step is there for; a short run has fewer of each kind, one of less than three steps none."""
    counts = {**STEPS, "warm": warm}
    if left is not None and left < sum(counts.values()):
        warm = max(0, left - FEWEST) // 3
        counts = {kind: min((left - warm) // FEWEST, most) for kind, most in STEPS.items()} | {"warm": warm}
    return [kind for kind, count in counts.items() for _ in range(count)]


def activities(device: torch.device) -> list[ProfilerActivity]:
    return [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device.type == "cuda")


def moment(device: torch.device) -> Moment:
    """Now, by the clock of the device where it has one of its own: then nothing has to wait for it."""
    if device.type == "cuda":
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event
    synchronize(device)
    return time.perf_counter()


def seconds_between(begin: Moment, end: Moment) -> float:
    if isinstance(begin, float) and isinstance(end, float):
        return end - begin
    return begin.elapsed_time(end) / 1000  # type: ignore[union-attr, arg-type]  # both are of the same clock


def synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
