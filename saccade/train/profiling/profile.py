"""Profiles the first steps of a run; later steps have no overhead, and the trained weights are the same.

Phases: warmup; "plain" steps that are timed as a whole; steps whose parts are timed; steps under torch's profiler.
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

from saccade.train.batches.prefetch import Prefetcher

PARTS = ("data", "forward", "backward", "optimizer")
STEP_COUNTS = {"warm": 10, "plain": 10, "parts": 5, "traced": 3}  # steps of each phase, in this order
WARM_ON_GPU = 100  # warmup steps on a GPU: new batch shapes are compiled or captured
MIN_STEPS = 3  # of a profile: one of each phase except warmup
NO_OP: AbstractContextManager[None] = nullcontext()
Timestamp = float | torch.cuda.Event


class PlainSteps(NamedTuple):
    """Totals of the steps that were timed as a whole."""

    steps: int
    seconds: float
    rows: int
    tokens: Counter[str]  # real tokens, by field


class ProfileResult(NamedTuple):
    steps: Counter[str]  # number of steps of each phase
    plain: PlainSteps
    data_wait: float  # seconds that a plain step waited for data
    parts: dict[str, float]  # seconds of all timed steps by part, and of the whole "step"
    trace: profile


class StepProfiler:
    """Times or traces the first steps of this process, by phase."""

    def __init__(self, enabled: bool, *, prefetcher: Prefetcher, device: torch.device) -> None:
        self.enabled, self.prefetcher, self.device = enabled, prefetcher, device
        self.phases: list[str] = []
        self.steps_done = 0
        self.phase = ""  # of the current step
        self.data_wait = 0.0  # seconds that plain steps waited for data
        self.parts: dict[str, float] = defaultdict(float)
        self.trace: profile | None = None
        self._tracing = False
        self._spans: list[tuple[str, Timestamp, Timestamp]] = []
        self._sizes: list[tuple[int, Counter[str]]] = []  # rows and tokens of each plain step

    def plan(self, *, steps_left: int | None) -> None:
        """Plan the phase of each step, given the number of steps of the run if it is known."""
        if self.enabled:
            os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # silences the messages of torch's profiler
            self.phases = plan_phases(
                steps_left, warm=WARM_ON_GPU if self.device.type == "cuda" else STEP_COUNTS["warm"]
            )
            # One cycle is recorded, so acc_events changes nothing but that torch 2.11 does not warn of lost events.
            self.trace = profile(activities=get_activities(self.device), acc_events=True) if self.phases else None

    @property
    def steps_needed(self) -> int:
        """Number of steps that a profile needs."""
        return len(self.phases) or MIN_STEPS

    @property
    def needs_eager(self) -> bool:
        """Whether this step must run eagerly, not as a CUDA graph, so that its parts can be timed."""
        return self.phase in ("parts", "traced")

    def profile_step(self) -> AbstractContextManager[None]:
        """Context manager around an optimizer step."""
        return self._step(self.phases[self.steps_done]) if self.steps_done < len(self.phases) else NO_OP

    def profile_part(self, name: str) -> AbstractContextManager[None]:
        """Context manager around a part of a step, one of PARTS."""
        if self.phase == "parts":
            return self._time(name)
        if self.phase == "traced":
            return record_function(name)
        return self._time_data_wait() if self.phase == "plain" and name == "data" else NO_OP

    def get_result(self) -> ProfileResult | None:
        """Return the result once, after the last profiled step; None otherwise."""
        if self.trace is None or self.steps_done < len(self.phases):
            return None
        steps = Counter(self.phases)
        result = ProfileResult(steps, self._plain, self.data_wait / steps["plain"], self.parts, self.trace)
        self.enabled, self.trace = False, None
        return result

    def close(self) -> None:
        """Stop the trace if training ended during it."""
        if self._tracing and self.trace is not None:
            self.trace.stop()

    @contextmanager
    def _step(self, phase: str) -> Iterator[None]:
        if self.steps_done == 0 or self.phases[self.steps_done - 1] != phase:
            self._begin_phase(phase)
        self.phase = phase
        rows, tokens = self.prefetcher.rows, self.prefetcher.tokens.copy()
        with self._time("step") if phase in ("plain", "parts") else NO_OP:
            yield
        if phase == "plain":
            self._sizes.append((self.prefetcher.rows - rows, self.prefetcher.tokens - tokens))
        self.phase = ""
        self.steps_done += 1
        if self.steps_done == len(self.phases) or self.phases[self.steps_done] != phase:
            self._end_phase(phase)

    def _begin_phase(self, phase: str) -> None:
        """Called before the first step of a phase."""
        synchronize(self.device)
        if phase == "traced" and self.trace is not None:
            self.trace.start()
            self._tracing = True

    def _end_phase(self, phase: str) -> None:
        """Called after the last step of a phase."""
        synchronize(self.device)
        if phase == "plain":
            durations = [compute_seconds(begin, end) for _, begin, end in self._spans]
            self._plain = drop_outliers(durations, self._sizes)
        elif phase == "parts":
            for name, begin, end in self._spans:
                self.parts[name] += compute_seconds(begin, end)
        elif phase == "traced" and self.trace is not None:
            self.trace.stop()
            self._tracing = False
        self._spans.clear()

    @contextmanager
    def _time_data_wait(self) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.data_wait += time.perf_counter() - begin

    @contextmanager
    def _time(self, name: str) -> Iterator[None]:
        begin = record_timestamp(self.device)
        yield
        self._spans.append((name, begin, record_timestamp(self.device)))


def drop_outliers(durations: list[float], sizes: list[tuple[int, Counter[str]]]) -> PlainSteps:
    """Sum up steps without those longer than twice the median, which compile or capture a graph."""
    median = statistics.median(durations)
    kept = [(seconds, *load) for seconds, load in zip(durations, sizes, strict=True) if seconds <= 2 * median]
    tokens: Counter[str] = Counter()
    for _, _, count in kept:
        tokens.update(count)
    return PlainSteps(len(kept), sum(seconds for seconds, *_ in kept), sum(rows for _, rows, _ in kept), tokens)


def plan_phases(steps_left: int | None, *, warm: int = STEP_COUNTS["warm"]) -> list[str]:
    """Return the phase of each profiled step; a short run has fewer of each, one of fewer than three steps none."""
    counts = {**STEP_COUNTS, "warm": warm}
    if steps_left is not None and steps_left < sum(counts.values()):
        warm = max(0, steps_left - MIN_STEPS) // 3
        counts = {phase: min((steps_left - warm) // MIN_STEPS, most) for phase, most in STEP_COUNTS.items()} | {
            "warm": warm
        }
    return [phase for phase, count in counts.items() for _ in range(count)]


def get_activities(device: torch.device) -> list[ProfilerActivity]:
    return [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device.type == "cuda")


def record_timestamp(device: torch.device) -> Timestamp:
    """Record the current time, on CUDA as an event on the device, which does not synchronize."""
    if device.type == "cuda":
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event
    synchronize(device)
    return time.perf_counter()


def compute_seconds(begin: Timestamp, end: Timestamp) -> float:
    if isinstance(begin, float) and isinstance(end, float):
        return end - begin
    return begin.elapsed_time(end) / 1000  # type: ignore[union-attr, arg-type]  # both are CUDA events


def synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
