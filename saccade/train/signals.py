"""Ctrl-C and SIGTERM: training finishes the current step, saves a checkpoint and stops."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any


class Interrupted(KeyboardInterrupt):
    """Training was interrupted and has saved a checkpoint; `exit_code` is 130 for Ctrl-C and 143 for SIGTERM."""

    def __init__(self, run: Path, *, step: int, signal_number: int) -> None:
        signal_number = signal_number or signal.SIGTERM  # another process got the signal
        name = "Ctrl-C" if signal_number == signal.SIGINT else signal.Signals(signal_number).name
        super().__init__(f"stopped by {name}, saved at step {step}; go on with: saccade train --resume {run}")
        self.step = step
        self.exit_code = 128 + signal_number


class InterruptHandler:
    """Inside the block signals are only recorded; a second Ctrl-C stops at once, without saving."""

    def __init__(self) -> None:
        self.signal_number = 0
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> InterruptHandler:
        if threading.current_thread() is threading.main_thread():  # Python delivers signals only there
            self._previous = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal_number == signal.SIGINT == number:
            raise KeyboardInterrupt
        self.signal_number = number
