"""Several processes that serve the same models on one port; run as a program, one of them.

The kernel distributes connections among their sockets (SO_REUSEPORT). Each worker gets its share of the limits, and
metrics are summed over workers by prometheus_client, in files of a temporary folder. A worker that ends is replaced.
"""

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from saccade.config.plugins import load_plugins
from saccade.errors import SaccadeError
from saccade.predict.threads import share_devices
from saccade.processes import start_module
from saccade.serve.limits import Limits, get_max_body_bytes
from saccade.serve.metrics import MULTIPROCESS_VARIABLE, forget_process
from saccade.serve.server import STOP_SIGNALS, bind, create_server, format_url, run_server

STOP_SECONDS = 30.0  # for a worker to end after the requests in flight, whose own limit comes on top
MAX_FAILED_STARTS = 3  # of workers in a row; then something is wrong for good


@dataclass(frozen=True)
class WorkerSettings:
    """What a worker serves, and where."""

    runs: Sequence[Sequence[str]]  # folders of each model, several of an ensemble
    names: Sequence[str]
    host: str
    port: int
    token: str
    limits: Limits
    max_body_bytes: int | None = None  # None: by what the models read
    engine: str = "auto"
    precision: str = "auto"
    plugins: Sequence[str] = ()
    examples: bool = True  # whether the page shows validation examples of the runs

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "WorkerSettings":
        return cls(**{**values, "limits": Limits(**values["limits"])})


def divide_limits(limits: Limits, workers: int) -> Limits:
    """Return the limits of each of several workers, which together are those of the server.

    Each counts wrong tokens by itself, so that delays are longer; and each admits one request of the largest size.
    """

    def divide(value: int, least: int = 1) -> int:
        return max(least, value // workers)

    return replace(
        limits,
        max_total_bytes=divide(limits.max_total_bytes, limits.max_body_bytes),
        max_client_bytes=divide(limits.max_client_bytes, limits.max_body_bytes),
        max_connections=divide(limits.max_connections),
        max_client_connections=divide(limits.max_client_connections),
        max_queue=divide(limits.max_queue),
        max_streams=divide(limits.max_streams),
        max_waiting_files=divide(limits.max_waiting_files, limits.max_files),
        decoders=divide(limits.decoders),
        max_token_delay=limits.max_token_delay * workers,
    )


@contextmanager
def reserve_port(host: str, port: int) -> Any:
    """Reserve a port for the sockets of workers; yield a socket that is bound to it and does not listen."""
    if not hasattr(socket, "SO_REUSEPORT"):
        raise SaccadeError("--workers needs sockets that share a port (SO_REUSEPORT), which this system lacks; use 1")
    with bind(host, port) as alone:  # fails if any other server has the port, also one whose sockets share it
        port = alone.getsockname()[1]
    with bind(host, port, shares_port=True, listens=False) as reserved:
        yield reserved


class WorkerProcess:
    """A process that serves; a thread reads its replies."""

    def __init__(
        self, number: int, settings: WorkerSettings, events: queue.Queue[Any], folder: str, count: int
    ) -> None:
        self.number, self.is_ready = number, False
        self.process = start_module(
            "saccade.serve.workers", environment={**share_devices(number, count), MULTIPROCESS_VARIABLE: folder},
            stdout=subprocess.PIPE, new_session=True,
        )  # fmt: skip
        with suppress(OSError):  # it has ended, which the thread reports
            print(json.dumps(asdict(settings)), file=self.process.stdin, flush=True)
        threading.Thread(target=self._read, args=(events,), daemon=True).start()

    def _read(self, events: queue.Queue[Any]) -> None:
        with self.process.stdout:  # type: ignore[union-attr]
            for line in self.process.stdout or ():
                events.put((self, json.loads(line)))
        self.process.wait()
        events.put((self, None))

    def stop(self, seconds: float) -> None:
        """Let a worker answer the requests in flight and end."""
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        with suppress(OSError):
            self.process.stdin.close()  # type: ignore[union-attr]


class Supervisor:
    """Starts workers, replaces those that end, and stops them all."""

    def __init__(self, settings: WorkerSettings, workers: int, *, warn: Callable[[str], None]) -> None:
        self.settings, self.count, self.warn, self.failed_starts = settings, workers, warn, 0
        self.events: queue.Queue[Any] = queue.Queue()
        self.folder = tempfile.TemporaryDirectory(prefix="saccade-metrics-")
        self.workers = [self._start(number) for number in range(workers)]

    def run(self, on_ready: Callable[[Mapping[str, Any]], None]) -> None:
        """Serve until SIGINT or SIGTERM; call back once, when all workers accept requests."""
        before = {number: signal.signal(number, lambda *_: self.events.put(None)) for number in STOP_SIGNALS}
        announced = False
        try:
            while (event := self.events.get()) is not None:
                worker, reply = event
                if reply is None:
                    self._replace(worker)
                elif "error" in reply:
                    raise SaccadeError(reply["error"])
                else:
                    worker.is_ready, self.failed_starts = True, 0
                    if not announced and all(each.is_ready for each in self.workers):
                        announced = True
                        on_ready(reply)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def close(self) -> None:
        """Stop all workers at the same time, after the requests that they have accepted."""
        seconds = self.settings.limits.timeout + STOP_SECONDS
        threads = [threading.Thread(target=worker.stop, args=(seconds,)) for worker in self.workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.folder.cleanup()

    def _replace(self, worker: WorkerProcess) -> None:
        pid, code = worker.process.pid, worker.process.returncode
        forget_process(self.folder.name, pid)
        self.failed_starts += not worker.is_ready
        if self.failed_starts >= MAX_FAILED_STARTS:
            raise SaccadeError(f"workers end before they serve (exit code {code}); the messages above say why")
        self.workers[worker.number] = self._start(worker.number)
        new = self.workers[worker.number].process.pid
        self.warn(f"worker {worker.number + 1} (process {pid}) ended with exit code {code}; process {new} replaces it")

    def _start(self, number: int) -> WorkerProcess:
        return WorkerProcess(number, self.settings, self.events, self.folder.name, self.count)


def run_workers(settings: WorkerSettings, workers: int, on_ready: Callable[[Mapping[str, Any]], None]) -> None:
    """Serve with several processes until SIGINT or SIGTERM."""

    def warn(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    with reserve_port(settings.host, settings.port) as reserved:
        settings = replace(settings, port=reserved.getsockname()[1])
        with closing(Supervisor(settings, workers, warn=warn)) as supervisor:
            supervisor.run(lambda reply: on_ready({**reply, "url": format_url(reserved)}))


def main() -> None:
    """Serve as one worker; it stops when the process that started it ends."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print does not get among the replies
    settings = WorkerSettings.from_json(json.loads(sys.stdin.readline()))

    def stop_with_parent() -> None:
        os.read(0, 1)  # not by sys.stdin: a thread that blocks in it makes Python abort at exit
        os.kill(os.getpid(), signal.SIGTERM)

    try:
        server, form_fields = build_worker(settings)
        with bind(settings.host, settings.port, shares_port=True) as listener:
            print(json.dumps({"form_fields": form_fields}), file=replies, flush=True)
            threading.Thread(target=stop_with_parent, daemon=True).start()
            run_server(server, listener)
    except SaccadeError as error:
        print(json.dumps({"error": str(error)}), file=replies, flush=True)


def build_worker(settings: WorkerSettings) -> tuple[Any, list[str]]:
    """Load the models; return the server, and the form fields of the first model."""
    from saccade.predict.predictors.predictor import Predictor
    from saccade.predict.threads import use_all_cores
    from saccade.serve.app import create_app
    from saccade.serve.served import list_form_fields

    use_all_cores()
    kinds = load_plugins(*settings.plugins)
    predictors = [
        Predictor.load(list(folders), kinds=kinds, engine=settings.engine, precision=settings.precision)
        for folders in settings.runs
    ]
    limits = replace(settings.limits, max_body_bytes=settings.max_body_bytes or get_max_body_bytes(predictors))
    models = dict(zip(settings.names, predictors, strict=True))
    return create_server(
        create_app(models, token=settings.token, limits=limits, examples=settings.examples), limits
    ), list_form_fields(predictors[0])


if __name__ == "__main__":
    main()
