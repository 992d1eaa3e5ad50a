"""Ctrl-C and SIGTERM: the step is finished, everything is saved, and the way to go on is told."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any


class Interrupted(KeyboardInterrupt):
    """Training was asked to stop and has saved everything; `exit_code` is 130 for Ctrl-C and 143 for SIGTERM."""

    def __init__(self, run: Path, *, step: int, signal_number: int) -> None:
        signal_number = signal_number or signal.SIGTERM  # another process was asked
        name = "Ctrl-C" if signal_number == signal.SIGINT else signal.Signals(signal_number).name
        super().__init__(f"stopped by {name}, saved at step {step}; go on with: saccade train --resume {run}")
        self.exit_code = 128 + signal_number


class Interrupts:
    """While in here a signal is only noted; a second Ctrl-C stops at once, without saving."""

    def __init__(self) -> None:
        self.number = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():  # elsewhere signals never arrive
            self._before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.number == signal.SIGINT == number:
            raise KeyboardInterrupt
        self.number = number
