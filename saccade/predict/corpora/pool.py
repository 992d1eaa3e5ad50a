"""A pool of processes that decode the parts of a corpus; a process that ends is replaced, and its part begins again."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict
from typing import Any, NamedTuple

from saccade.errors import SaccadeError
from saccade.predict.corpora.parts import Part
from saccade.predict.corpora.process import CorpusSettings
from saccade.predict.threads import share_devices
from saccade.processes import start_module

MAX_ATTEMPTS = 2  # of one part, whose process has ended


class Event(NamedTuple):
    """A reply of a process; None if it has ended."""

    process: PartProcess
    reply: dict[str, Any] | None


class PartProcess:
    """A process that decodes one part after the other; a thread reads its replies."""

    def __init__(
        self, number: int, settings: CorpusSettings, events: queue.Queue[Event], environment: Mapping[str, str]
    ) -> None:
        self.number = number
        self.part: Part | None = None  # that it decodes
        self.process = start_module(
            "saccade.predict.corpora.process", environment=environment, stdout=subprocess.PIPE, new_session=True
        )
        self._send(settings._asdict())
        self.thread = threading.Thread(target=self._read, args=(events,), daemon=True)
        self.thread.start()

    def start(self, part: Part) -> None:
        self.part = part
        self._send(asdict(part))

    def close(self) -> None:
        """End the process at once; a part that it is writing stays absent."""
        self.process.kill()
        self.process.wait()
        self.thread.join()
        with suppress(OSError):
            self.process.stdin.close()  # type: ignore[union-attr]
        self.process.stdout.close()  # type: ignore[union-attr]

    def _send(self, values: Any) -> None:
        with suppress(OSError):  # it has ended, which `_read` reports
            print(json.dumps(values), file=self.process.stdin, flush=True)

    def _read(self, events: queue.Queue[Event]) -> None:
        with suppress(ValueError):  # the rest of a line when it was killed
            for line in self.process.stdout or ():
                events.put(Event(self, json.loads(line)))
        events.put(Event(self, None))


class Pool:
    """Distributes parts to processes."""

    def __init__(self, settings: CorpusSettings, processes: int, *, warn: Callable[[str], None]) -> None:
        self.settings, self.warn, self.count = settings, warn, processes
        self.events: queue.Queue[Event] = queue.Queue()
        self.attempts, self.failed_starts = Counter[int](), 0
        self.processes = [self._start(number) for number in range(processes)]

    def close(self) -> None:
        for process in self.processes:
            process.close()

    def run(self, parts: Sequence[Part]) -> Iterator[dict[str, Any]]:
        """Decode parts, and yield the replies about them as they arrive: progress, and `done`."""
        waiting = deque(parts)
        while waiting or any(process.part for process in self.processes):
            process, reply = self.events.get()
            if reply is None:
                self._replace(process, waiting)
            elif "error" in reply:
                raise SaccadeError(reply["error"])
            else:
                if "part" in reply:
                    yield reply
                if "ready" in reply or "done" in reply:
                    process.part = None
                    if waiting:
                        process.start(waiting.popleft())

    def _replace(self, process: PartProcess, waiting: deque[Part]) -> None:
        part, code = process.part, process.process.wait()
        process.close()
        if part is None:
            self.failed_starts += 1
            if self.failed_starts >= MAX_ATTEMPTS:
                raise SaccadeError(f"processes cannot be started (exit code {code}); is there enough memory?")
            self.warn(f"process {process.number + 1} ended (exit code {code}) while it started; another one follows")
            self.processes[process.number] = self._start(process.number)
            return
        self.attempts[part.number] += 1
        ended = f"process {process.number + 1} ended (exit code {code}) while it decoded {part.describe()}"
        if self.attempts[part.number] >= MAX_ATTEMPTS:
            raise SaccadeError(f"{ended}, for the second time; is there enough memory? use fewer --processes")
        self.warn(f"{ended}; another one takes its place")
        waiting.appendleft(part)
        self.processes[process.number] = self._start(process.number)

    def _start(self, number: int) -> PartProcess:
        return PartProcess(number, self.settings, self.events, share_devices(number, self.count))


def run_pool(
    settings: CorpusSettings, parts: Sequence[Part], *, processes: int, warn: Callable[[str], None] = print
) -> Iterator[dict[str, Any]]:
    """Decode parts in processes of this machine; yield their replies."""
    with closing(Pool(settings, min(processes, len(parts)), warn=warn)) as pool:
        yield from pool.run(parts)
