"""Decode uploaded files in a few processes, so that no file can take the server's memory or another client's time."""

import asyncio
import logging
import math
import subprocess
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, BinaryIO, cast

import numpy as np

from saccade.config.schema import MediaReader
from saccade.data.media.decoding import MODEL_SETTINGS, decode
from saccade.errors import SaccadeError
from saccade.predict.predictors.predictor import Predictor
from saccade.processes import start_module
from saccade.serve.decoder_process import Frame, read_frame, write_frame
from saccade.serve.limits import Limits, RequestError
from saccade.serve.uploads import Upload

START_SECONDS = 60.0  # for a process to import what it needs
WATCH_SECONDS = 0.05  # between two looks at the deadlines of files
PIPE_BYTES = 256 * 1024  # a small picture passes without a wait for the other side
SINGLE_THREADED = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
DTYPES = ("uint8", "float32")  # of decoded files
logger = logging.getLogger("saccade.serve")


class ProcessEndedError(Exception):
    """A process has ended, or was ended because it took too long."""


class DecoderProcess:
    """A process that decodes one file after the other."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.process = start_module(
            "saccade.serve.decoder_process", str(limits.decode_bytes), environment=SINGLE_THREADED,
            stdout=subprocess.PIPE, text=False, new_session=True, pipe_bytes=PIPE_BYTES,
        )  # fmt: skip
        self.requests, self.replies = cast(BinaryIO, self.process.stdin), cast(BinaryIO, self.process.stdout)
        self.deadline = math.inf  # of time.monotonic, for the next reply

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def wait_until_ready(self) -> None:
        self._read(START_SECONDS)

    def decode(self, file: Upload, reader: str) -> np.ndarray:
        """Decode a file; raise SaccadeError if it is at fault, ProcessEndedError if the process has to be replaced."""
        request = {"name": file.name, "reader": reader, "max_pixels": self.limits.max_pixels}
        reply, data = self._read(self.limits.decode_seconds, request, file.data)
        if "error" in reply:
            raise SaccadeError(reply["error"])
        try:
            return np.frombuffer(data, DTYPES[DTYPES.index(reply["dtype"])]).reshape(reply["shape"])
        except (KeyError, TypeError, ValueError):
            raise ProcessEndedError from None

    def stop(self) -> None:
        """End the process at once; it holds nothing that has to be saved."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.requests, self.replies):
            with suppress(OSError):  # what could not be written
                pipe.close()

    def _read(self, seconds: float, request: dict[str, Any] | None = None, data: bytes = b"") -> Frame:
        """Send a request, if there is one, and read the reply; `FileDecoder` ends the process after the deadline."""
        self.deadline = time.monotonic() + seconds
        try:
            if request is not None:
                write_frame(self.requests, request, data)
            reply = read_frame(self.replies, self.limits.decode_bytes)
        except (OSError, ValueError):
            reply = None
        self.deadline = math.inf
        if reply is None:
            raise ProcessEndedError
        return reply


@dataclass(eq=False)
class FileRequest:
    """The files of one request that are not yet decoded; they are decoded one at a time."""

    client: str
    reader: MediaReader
    waiting: deque[tuple[Upload, asyncio.Future[np.ndarray]]] = field(default_factory=deque)
    is_running: bool = False
    seconds: float = 0.0  # that its files have taken


class FileDecoder:
    """Decodes files in processes that are started when they are needed, and replaced when they end.

    The request that has taken the least time is next, and one client never has all processes.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits, self.waiting = limits, 0
        self.requests: list[FileRequest] = []  # in the order of arrival
        self.running: Counter[str] = Counter()  # files that are being decoded, by client
        self.tasks: set[asyncio.Future[None]] = set()
        self.idle: list[DecoderProcess] = []
        self.processes: set[DecoderProcess] = set()
        self.lock, self.stopping = threading.Lock(), False
        self.first: Future[None] | None = None  # the start of the first process
        self.threads = ThreadPoolExecutor(limits.decoders, thread_name_prefix="decoder")

    def start(self, predictors: Sequence[Predictor]) -> None:
        """Start the first process, if a model reads files, so that the first upload does not wait for it."""
        if any(get_file_reader(each) is not None for each in predictors if each.medium):
            self.first = self.threads.submit(self._start_first)

    def stop(self) -> None:
        """End all processes; the files that they decode fail."""
        with self.lock:
            self.stopping = True
            processes = [*self.processes]
        for process in processes:
            process.process.kill()
        self.threads.shutdown(cancel_futures=True)
        for process in processes:
            process.stop()

    @asynccontextmanager
    async def decode(self, predictor: Predictor, files: Sequence[Upload], client: str) -> AsyncIterator[list[str]]:
        """Decode files and yield the keys by which the predictor finds them; release them when the context ends."""
        if self.waiting + len(files) > self.limits.max_waiting_files:
            maximum = self.limits.max_waiting_files
            message = f"{self.waiting} files are waiting to be decoded, at most {maximum} may; try again in 2 s"
            raise RequestError(429, message, {"retry-after": "2"})
        media = predictor.recipe.reader.media
        assert media is not None, "the model reads files"
        request, names = FileRequest(client, media.file_reader), list[str]()
        futures = [asyncio.get_running_loop().create_future() for _ in files]
        request.waiting.extend(zip(files, futures, strict=True))
        self.waiting += len(files)
        self.requests.append(request)
        try:
            try:
                self._dispatch()
                for file, future in zip(files, futures, strict=True):
                    names.append(predictor.register_decoded(await future, name=file.name))
            finally:
                self.waiting -= len(files)
                self.requests.remove(request)
            yield names
        finally:
            for future in futures:
                future.cancel()
            for name in names:
                predictor.release_file(name)

    def _dispatch(self) -> None:
        """Start to decode the next files, as long as there are free processes."""
        per_client = max(1, self.limits.decoders - 1)
        while self.running.total() < self.limits.decoders:
            ready = [each for each in self.requests if each.waiting and not each.is_running]
            ready = [each for each in ready if self.running[each.client] < per_client]
            if not ready:
                return
            request = min(ready, key=lambda each: each.seconds)
            task = asyncio.ensure_future(self._decode_next(request))
            self.tasks.add(task)  # a task is kept only by what refers to it
            task.add_done_callback(self.tasks.discard)
            request.is_running = True
            self.running[request.client] += 1

    async def _decode_next(self, request: FileRequest) -> None:
        file, future = request.waiting.popleft()
        start = time.monotonic()
        job = asyncio.get_running_loop().run_in_executor(self.threads, self._run, request.reader, file)
        while not (await asyncio.wait([job], timeout=WATCH_SECONDS))[0]:
            self._end_overdue_processes()
        try:
            values = job.result()
        except Exception as error:
            if not future.done():
                future.set_exception(error)
        else:
            if not future.done():
                future.set_result(values)
        request.seconds += time.monotonic() - start
        request.is_running = False
        self.running[request.client] -= 1
        self.running += Counter()  # forgets clients without files
        self._dispatch()

    def _end_overdue_processes(self) -> None:
        with self.lock:
            for process in self.processes:
                if time.monotonic() > process.deadline:
                    process.process.kill()

    def _run(self, reader: MediaReader, file: Upload) -> np.ndarray:
        """Decode a file in a process; files of the user's own readers in this thread, which has their code."""
        if reader.is_custom:
            return decode(file.data, reader, name=file.name, max_pixels=self.limits.max_pixels)
        process, start = self._take_process(), time.monotonic()
        try:
            return process.decode(file, reader.model_dump_json(exclude=MODEL_SETTINGS))
        except ProcessEndedError:
            process.stop()
            raise self._build_error(file.name, time.monotonic() - start) from None
        finally:
            with self.lock:
                if process.is_alive:
                    self.idle.append(process)
                else:
                    self._discard(process)

    def _discard(self, process: DecoderProcess) -> None:
        process.stop()
        self.processes.discard(process)

    def _build_error(self, name: str, seconds: float) -> RequestError:
        if self.stopping:
            return build_shutdown_error()
        limit = self.limits.decode_seconds
        problem = f"takes more than {limit:g} s to decode" if seconds >= limit else "ended the process that decoded it"
        logger.warning("the file %r %s; the process is replaced", name, problem)
        return RequestError(422, f"{name} {problem}; make it smaller, or save it again")

    def _take_process(self) -> DecoderProcess:
        if self.first is not None:
            wait([self.first])
        with self.lock:
            while self.idle:
                process = self.idle.pop()
                if process.is_alive:
                    return process
                self._discard(process)
        return self._start_process()

    def _start_process(self) -> DecoderProcess:
        process = None
        try:
            with self.lock:
                if self.stopping:
                    raise build_shutdown_error()
                process = DecoderProcess(self.limits)
                self.processes.add(process)
            process.wait_until_ready()
        except (ProcessEndedError, OSError):
            if process is not None:
                with self.lock:
                    self._discard(process)
            logger.error("a process that decodes files does not start; is there enough memory?")
            raise RequestError(503, "files cannot be decoded now; see the log of the server") from None
        return process

    def _start_first(self) -> None:
        with suppress(RequestError):
            self.idle.append(self._start_process())


def build_shutdown_error() -> RequestError:
    return RequestError(503, "the server is shutting down; try again later", {"retry-after": "5"})


def get_file_reader(predictor: Predictor) -> MediaReader | None:
    """Get the settings for the files of a model that are decoded in a process; None for readers of the user's own."""
    media = predictor.recipe.reader.media
    return None if media is None or media.file_reader.is_custom else media.file_reader
