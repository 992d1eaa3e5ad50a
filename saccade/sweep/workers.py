"""Trains trials in several processes at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from saccade.config.load import dump
from saccade.processes import describe_end, start_module
from saccade.runs import get_state
from saccade.sweep.progress import Progress
from saccade.sweep.trials import FAILED, FINISHED, SweepState, Trial
from saccade.train.signals import InterruptHandler

POLL_SECONDS = 0.3
STOP_SECONDS = 2.0  # between two signals to a process that is to stop
END_SECONDS = 10.0  # that an idle process has to end before it is killed
LOGS = "logs"  # folder of a sweep with what its trainings print


class SweepInterrupted(KeyboardInterrupt):
    """A sweep was interrupted; its trainings have saved checkpoints."""

    def __init__(self, folder: Path, *, signal_number: int) -> None:
        name = "Ctrl-C" if signal_number == signal.SIGINT else signal.Signals(signal_number).name
        super().__init__(
            f"stopped by {name}; the sweep '{folder}' has saved its trainings; go on with the same command"
        )
        self.exit_code = 128 + signal_number


@dataclass(frozen=True)
class Outcome:
    """How a training has ended: finished, paused, interrupted or failed."""

    state: str
    reason: str = ""
    diverged: bool = False


def build_environment(number: int, jobs: int) -> dict[str, str]:
    """Environment variables of one of `jobs` processes: its share of the cores, and its GPU if there are several."""
    found = {}
    if "OMP_NUM_THREADS" not in os.environ:
        found["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // jobs))
    if "SACCADE_DEVICE" not in os.environ and torch.cuda.device_count() > 1:
        found["SACCADE_DEVICE"] = f"cuda:{number % torch.cuda.device_count()}"
    return found


class Worker:
    """A process that trains one trial after another; started when it is needed, and again after it was killed."""

    def __init__(self, plugins: Sequence[str], environment: dict[str, str]) -> None:
        self.plugins, self.environment = plugins, environment
        self.process: subprocess.Popen[str] | None = None

    def train(self, request: dict[str, Any]) -> Outcome:
        """Train and wait for the end; runs in a thread of the sweep."""
        if self.process is None:
            self.process = start_module(
                "saccade.sweep.worker", *self.plugins, environment=self.environment,
                stdout=subprocess.PIPE, new_session=True,
            )  # fmt: skip
        process = self.process
        assert process.stdin is not None and process.stdout is not None, "both are pipes"
        try:
            print(json.dumps(request), file=process.stdin, flush=True)
            reply = process.stdout.readline()
        except BrokenPipeError:
            reply = ""
        if reply:
            return Outcome(**json.loads(reply))
        self.close()
        return Outcome(FAILED, f"its process {describe_end(process.wait())}")

    def interrupt(self) -> None:
        """Let the training save a checkpoint and stop."""
        if self.process is not None:
            self.process.terminate()

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()

    def close(self) -> None:
        """End the process, by force if it does not end by itself."""
        process, self.process = self.process, None
        if process is None:
            return
        assert process.stdin is not None and process.stdout is not None, "both are pipes"
        with suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


class Pool:
    """Trains trials in several processes; outcomes are in the runs and in the state of the sweep."""

    def __init__(
        self,
        state: SweepState,
        progress: Progress,
        interrupts: InterruptHandler,
        *,
        jobs: int,
        plugins: Sequence[str] = (),
    ) -> None:
        self.state, self.progress, self.interrupts = state, progress, interrupts
        self.idle = [Worker(plugins, build_environment(number, jobs)) for number in range(jobs)]
        self.executor = ThreadPoolExecutor(jobs)
        self.running: dict[Future[Outcome], tuple[Worker, Trial]] = {}

    def train(self, trials: Sequence[Trial], until: int | None = None) -> None:
        """Train all trials to their end or to a step, without those that are there already or have failed."""
        waiting = deque(trial for trial in trials if not self.is_done(trial, until))
        while waiting or self.running:
            while waiting and self.idle and not self.interrupts.signal_number:
                self.start(waiting.popleft(), until)
            done, _ = wait(self.running, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
            for future in done:
                self.finish(future)
            self.progress.update([trial for _, trial in self.running.values()])
            if number := self.interrupts.signal_number:
                self.stop(number)

    def is_done(self, trial: Trial, until: int | None) -> bool:
        if trial.run.name in self.state.failures or get_state(trial.run) == FINISHED:
            return True
        return until is not None and trial.count_steps() >= until

    def start(self, trial: Trial, until: int | None) -> None:
        worker = self.idle.pop()
        log = self.state.folder / LOGS / f"{trial.run.name}.log"
        log.parent.mkdir(exist_ok=True)
        request = {"recipe": dump(trial.recipe), "run": str(trial.run), "until": until, "log": str(log)}
        self.progress.start(trial, until)
        self.running[self.executor.submit(worker.train, request)] = (worker, trial)

    def finish(self, future: Future[Outcome]) -> None:
        worker, trial = self.running.pop(future)
        self.idle.append(worker)
        outcome = future.result()
        if self.interrupts.signal_number and outcome.state == FAILED and not outcome.diverged:
            return  # its process was stopped before it could save a checkpoint
        if outcome.state == FAILED:
            self.state.record_failure(trial, outcome.reason, diverged=outcome.diverged)
        self.progress.finish(trial, outcome.state, outcome.reason)

    def stop(self, signal_number: int) -> None:
        """Interrupt all trainings, wait until they have saved checkpoints, and raise SweepInterrupted."""
        while self.running:
            for worker, _ in self.running.values():  # again and again: one may have just been started
                worker.interrupt()
            done, _ = wait(self.running, timeout=STOP_SECONDS, return_when=FIRST_COMPLETED)
            for future in done:
                self.finish(future)
        raise SweepInterrupted(self.state.folder, signal_number=signal_number)

    def close(self) -> None:
        """End all processes; a training that is still going on is ended without saving."""
        for worker, _ in self.running.values():
            worker.kill()
        self.executor.shutdown()
        for worker in [*self.idle, *(worker for worker, _ in self.running.values())]:
            worker.close()
