"""Kill trainings at random times and during every kind of write, resume them, and compare with uninterrupted ones."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import signal
import socket
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from matrix import Training, train_or_resume

from saccade.errors import SaccadeError

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
PROMISED_CODES = {0, 130, 143, -signal.SIGTERM, -signal.SIGINT, -signal.SIGKILL}  # of a process that got a signal
WRITES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree", "os.symlink", "os.link"}
WRITE_FLAGS = os.O_WRONLY | os.O_RDWR
MAX_SECONDS = 240.0  # for one training, on a busy machine


@dataclass
class Tally:
    """What happened to one training of the matrix."""

    kills: Counter[str] = field(default_factory=Counter)  # by signal
    moments: set[str] = field(default_factory=set)  # kinds of writes during which it was killed
    identical: int = 0
    wrong: list[str] = field(default_factory=list)


class Moment:
    """When a process kills itself: at the n-th write; with `half`, half of the content is in the file by then."""

    def __init__(self, number: int, kind: int, half: bool) -> None:
        self.number, self.kind, self.half = number, kind, half
        self.armed, self.seen = True, 0

    def pass_write(self, descriptor: int | None = None) -> None:
        """Count a write; `descriptor` is that of a file whose content is there, and about to be flushed."""
        self.seen += 1
        if self.armed and self.seen == self.number:
            self.armed = False
            if descriptor is not None and self.half and self.kind == signal.SIGKILL:  # nothing is done after this
                with suppress(OSError):  # a folder, or a file that is open for reading
                    os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)
            os.kill(os.getpid(), self.kind)


def name_write(event: str, arguments: tuple[Any, ...]) -> str:
    """The kind of a write, such as "open step-N/model.safetensors.tmp"; "" for any other event."""
    if event == "open":
        path, _, flags = arguments
        if not isinstance(path, str | bytes) or not isinstance(flags, int) or not flags & WRITE_FLAGS:
            return ""
    elif event not in WRITES:
        return ""
    name = os.fsdecode(arguments[0]) if isinstance(arguments[0], str | bytes | os.PathLike) else ""
    if name.startswith(("/dev/null", "/dev/tty", "/proc")) or "/kernels/" in name or "__pycache__" in name:
        return ""
    short = re.sub(r"[0-9a-f]{16,}|\d+", "N", "/".join(Path(name).parts[-2:]))
    short = re.sub(r"(\.[a-z]+-N)-\w+", r"\1-X", re.sub(r"^(run|place-N)/", "", short))  # a random name
    return f"{event.removeprefix('os.')} {short}"


def watch_writes(found: Callable[[str, int | None], None]) -> None:
    """Call back before each write of this process, and at each fsync with the open file.

    This cannot be undone, so only in a child.
    """

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" or event in WRITES:
            name = name_write(event, arguments)
            if name:
                found(name, None)

    fsync = os.fsync

    def sync(descriptor: int) -> None:
        found(f"fsync {'folder' if os.path.isdir(f'/proc/self/fd/{descriptor}') else 'file'}", descriptor)
        fsync(descriptor)

    os.fsync = sync  # type: ignore[assignment]
    sys.addaudithook(hook)


def write_halves(moment: Moment) -> None:
    """Let the write at the moment leave half of a file."""
    write_bytes = Path.write_bytes

    def write(self: Path, data: bytes) -> int:  # type: ignore[override]
        if moment.armed and moment.seen + 1 == moment.number:
            moment.armed = False  # to open the file is not the moment yet
            with open(self, "wb") as file:
                file.write(bytes(data)[: len(data) // 2])
                file.flush()
                os.kill(os.getpid(), moment.kind)
        return write_bytes(self, data)

    Path.write_bytes = write  # type: ignore[assignment,method-assign]


def start(work: Callable[[], None], log: Path) -> int:
    """Run a function in a new process; its exit codes are those of the command line."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        descriptor = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(descriptor, 2)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        work()
        code = 0
    except KeyboardInterrupt as error:
        code = getattr(error, "exit_code", 130)
    except SaccadeError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 2
    except BaseException:
        traceback.print_exc()
    os._exit(code)


def wait(children: list[int]) -> list[int]:
    """The exit codes of processes; when one of several was killed, the others are killed too, as torchrun does."""
    codes: dict[int, int] = {}
    end = time.monotonic() + MAX_SECONDS
    while len(codes) < len(children):
        for child in (child for child in children if child not in codes):
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                codes[child] = os.waitstatus_to_exitcode(status)
        failed = any(code != 0 for code in codes.values())
        if failed or time.monotonic() > end:
            limit = time.monotonic() + 5  # the others may notice by themselves
            while len(codes) < len(children) and time.monotonic() < limit:
                for child in (child for child in children if child not in codes):
                    done, status = os.waitpid(child, os.WNOHANG)
                    if done:
                        codes[child] = os.waitstatus_to_exitcode(status)
                time.sleep(0.02)
            for child in (child for child in children if child not in codes):
                os.kill(child, signal.SIGKILL)
                codes[child] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        time.sleep(0.01)
    return [codes[child] for child in children]


class Place:
    """The folders of one training: its run, its cache, and the log of each process."""

    def __init__(self, folder: Path, kernels: Path) -> None:
        self.folder, self.run, self.cache = folder, folder / "run", folder / "cache"
        self.cache.mkdir(parents=True)
        (self.cache / "kernels").symlink_to(kernels)

    def launch(self, training: Training, *, moment: Moment | None = None, delay: tuple[float, int] | None = None,
               record: Path | None = None) -> list[int]:  # fmt: skip
        """Train or resume in new processes; kill them at a moment or after a delay. Returns their exit codes."""
        port = find_port()
        target = Random(str(self.folder)).randrange(training.processes)

        def work(rank: int) -> None:
            os.environ["SACCADE_CACHE"] = str(self.cache)
            if training.processes > 1:
                os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(training.processes)}
                os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            if record is not None and rank == 0:
                file = os.open(record, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
                watch_writes(lambda name, _: void(os.write(file, f"{name}\n".encode())))
            if moment is not None and rank == target:
                if moment.half:
                    write_halves(moment)
                watch_writes(lambda _, descriptor: moment.pass_write(descriptor))
            train_or_resume(training, self.run)

        begin = time.monotonic()
        ranks = range(training.processes)
        children = [start(functools.partial(work, rank), self.folder / f"log-{rank}") for rank in ranks]
        if delay is not None:
            time.sleep(max(0.0, delay[0] - (time.monotonic() - begin)))
            for child in children if delay[1] != signal.SIGKILL else children[target : target + 1]:
                os.kill(child, delay[1])
        return wait(children)

    def read_logs(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-1500:] for path in sorted(self.folder.glob("log-*")))


def void(value: object) -> None:
    """Discard a value, for functions that return nothing."""


def find_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def read_tensors(checkpoint: Path) -> dict[tuple[str, str, str], tuple[str, str, bytes]]:
    """Type, shape and bytes of each tensor of a checkpoint, by file, name and offsets of the part.

    Which process writes a tensor that several of them have is not fixed, so that files of processes count as one.
    """
    found: dict[tuple[str, str, str], tuple[str, str, bytes]] = {}
    for path in sorted(checkpoint.glob("*.safetensors")):
        content = path.read_bytes()
        start = 8 + int.from_bytes(content[:8], "little")
        header = json.loads(content[8:start])
        offsets = json.loads(header.pop("__metadata__", {}).get("DCP_SHARDING_INFO", "{}"))
        file = "" if path.name.startswith("shard-") else path.name
        for name, tensor in header.items():
            begin, end = (start + offset for offset in tensor["data_offsets"])
            key = (file, name, str(offsets.get(name)))
            assert key not in found, f"{key} occurs twice"
            found[key] = (tensor["dtype"], str(tensor["shape"]), content[begin:end])
    return found


def read_result(run: Path) -> dict[str, Any]:
    """What must be the same: final weights, the newest checkpoint, and all losses that were logged."""
    from saccade.runs import read_metrics

    lines = read_metrics(run / "metrics.jsonl")
    newest = max((run / "checkpoints").glob("step-*"), key=lambda path: int(path.name[5:]))
    return {
        "weights": (run / "model.safetensors").read_bytes(),
        "checkpoint": (newest.name, read_tensors(newest)),
        "losses": [(line["event"], line["step"], line.get("loss")) for line in lines],
        "leftovers": sorted(path.name for path in run.rglob(".*") if path.name != ".training"),
    }


Kill = tuple[Moment | None, tuple[float, int] | None, str]  # at a write, or after seconds; and its name


class Campaign:
    """Kills of one training of the matrix."""

    def __init__(self, name: str, training: Training, folder: Path, kernels: Path) -> None:
        self.training, self.folder, self.kernels, self.tally = training, folder, kernels, Tally()
        self.name, self.count = name, 0
        place = self.make_place()
        record, begin = folder / "writes", time.monotonic()
        codes = place.launch(training, record=record)
        self.seconds = time.monotonic() - begin
        if any(codes):
            raise RuntimeError(f"{name}: the uninterrupted training ended with {codes}: {place.read_logs()}")
        self.expected = read_result(place.run)
        self.writes = record.read_text().splitlines()
        self.kinds = sorted(set(self.writes))

    def make_place(self) -> Place:
        self.count += 1
        return Place(self.folder / f"place-{self.count}", self.kernels)

    def draw_moments(self, random: Random, covered: set[str]) -> Iterator[Kill]:
        """Half of them in kinds of writes that were not covered before, while there are any; else any time or write."""
        while True:
            left = [kind for kind in self.kinds if kind not in covered]
            if not left or random.random() < 0.3:
                yield self.draw_any(random)
                continue
            kind = random.choice(left)
            covered.add(kind)
            places = [at for at, name in enumerate(self.writes, start=1) if name == kind]
            yield Moment(random.choice(places), random.choice(SIGNALS), random.random() < 0.5), None, kind

    def draw_any(self, random: Random) -> Kill:
        number = random.choice(SIGNALS)
        if random.random() < 0.6:
            return None, (random.uniform(0, 1.1 * self.seconds), number), "a random time"
        at = random.randrange(len(self.writes))
        return Moment(at + 1, number, random.random() < 0.5), None, self.writes[at]

    def run_one(self, moments: Iterator[Kill], random: Random) -> None:
        """Kill a training once to three times, let it end, and compare."""
        place, story = self.make_place(), []
        for _ in range(random.choice((1, 1, 1, 2, 3))):
            moment, delay, kind = next(moments)
            codes = place.launch(self.training, moment=moment, delay=delay)
            number = moment.kind if moment else delay[1] if delay else 0
            name = signal.Signals(number).name
            story.append(f"{name} at {kind}: {codes}")
            if codes == [0] * len(codes):
                continue  # it ended before the signal, which is no kill
            self.tally.kills[name] += 1
            self.tally.moments.add(kind)
            if number != signal.SIGKILL and not {*codes} & PROMISED_CODES:
                self.tally.wrong.append(f"{self.name}: {'; '.join(story)}: {place.read_logs()}")
        codes = place.launch(self.training)
        if any(codes):
            self.tally.wrong.append(f"{self.name}: {'; '.join(story)}, then {codes}: {place.read_logs()}")
            return
        found = read_result(place.run)
        differing = [key for key, value in self.expected.items() if found[key] != value]
        if differing:
            self.tally.wrong.append(f"{self.name}: {'; '.join(story)}: {', '.join(differing)} differ")
        else:
            self.tally.identical += 1
        shutil.rmtree(place.folder, ignore_errors=True)
