"""Run one command in this process, in a world that is put back afterwards, and judge how it ended."""

from __future__ import annotations

import faulthandler
import functools
import io
import os
import re
import shutil
import signal
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, Any

from cases import Case

MAX_SECONDS, MAX_BYTES = 20.0, 2_000_000_000  # seconds of the processor: others may use it meanwhile
# Take minutes by design; they must say so before MAX_SECONDS are over
LONG_VERBS = {"demo", "train", "ladder", "sweep"}
LISTED_LONG = {"lectures"}  # the same, as their help says
LONG_SECONDS = 2.5  # after which these are interrupted
TRACEBACK = "Traceback (most recent call last)"
EXIT_CODES = {0, 1, 2, 130, 143}
MAX_PRINTED = (
    10_000  # characters of standard error that are kept; lines of error that list recipes or reasons have 1,000
)


@dataclass
class Verdict:
    """How a case ended: an empty `fault` is a pass."""

    fault: str = ""  # what is wrong, in one line; equal for cases with the same cause
    code: int = 0
    detail: str = ""
    seconds: float = 0.0
    silent: float = 0.0  # seconds until it first wrote to standard error, or ended
    printed: str = ""  # the end of standard error
    changed: list[str] = field(default_factory=list)  # files of the world that the command changed or removed


class Spoken(io.BytesIO):
    """Standard error that notes when it was first written to, in seconds of the processor."""

    first: float | None = None

    def write(self, content: Any) -> int:
        self.first = measure_seconds() if self.first is None and content else self.first
        return super().write(content)


class TooLong(BaseException):
    """A command that was to be interrupted by now."""


def prepare_process() -> None:
    """Make commands short: no plots, no waiting servers, no training of more than three steps, and little memory."""
    import torch
    import typer.main

    from saccade import allocation
    from saccade.cli import watch
    from saccade.serve import server
    from saccade.train import finish, loop

    torch.set_num_threads(1)
    torch.set_num_threads = lambda count: None  # type: ignore[assignment]
    finish.plot_loss = lambda run: None
    is_interrupted = loop.is_interrupted
    loop.is_interrupted = lambda s, interrupts: s.progress.step >= 3 or is_interrupted(s, interrupts)
    server.run_server = lambda *_, **__: None
    watch.DEFAULT_PORT = 0
    typer.main.get_command = functools.cache(typer.main.get_command)  # it takes longer than most commands
    allocation.get_free_bytes = lambda: max(0, MAX_BYTES - read_memory())  # what is not refused by it is a fault
    faulthandler.enable()


class Runner:
    """Runs cases in a copy of the world; whatever a case changes is put back."""

    def __init__(self, world: Path, copy: Path) -> None:
        self.world, self.copy = world, copy
        self.log: IO[bytes] | None = None
        shutil.copytree(world, copy, symlinks=True, ignore=lambda folder, names: {"locked"} & {*names})
        (copy / "locked").mkdir(mode=0, exist_ok=True)
        self.original = snapshot(copy)

    def run(self, case: Case) -> Verdict:
        try:
            self.write_files(case)
            os.chdir(self.copy)
            verdict = run_command(case)
            if self.log is not None:
                self.check_log(verdict)
            now = snapshot(self.copy)
            verdict.changed = sorted(
                name for name, before in self.original.items() if name not in case.files and now.get(name) != before
            )
            return verdict
        finally:
            os.chdir(self.copy)
            for name in case.readonly:
                with suppress(FileNotFoundError):  # removed by the command, which the snapshot shows
                    (self.copy / name).chmod(0o755)
            self.restore()

    def redirect_errors(self, path: Path) -> None:
        """Send what processes of the command and libraries write to standard error to a file."""
        self.log = path.open("w+b")
        os.dup2(self.log.fileno(), 2)

    def check_log(self, verdict: Verdict) -> None:
        """A traceback of a process that the command started is a fault of the command."""
        assert self.log is not None
        self.log.seek(0)
        text = self.log.read().decode(errors="replace")
        self.log.truncate(0)
        if not verdict.fault and TRACEBACK in text:
            verdict.fault = "traceback of another process: " + text.strip().splitlines()[-1][:80]
            verdict.detail = text[-3000:]

    def write_files(self, case: Case) -> None:
        for name in case.readonly:
            (self.copy / name).chmod(0o555)
        for name, content in case.files.items():
            path = self.copy / name
            if content is None:
                path.unlink(missing_ok=True)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)

    def restore(self) -> None:
        """Put back what has another size, time or kind than at the beginning."""
        now = snapshot(self.copy)
        if now == self.original:
            return
        for name in sorted(now.keys() - self.original.keys(), reverse=True):
            remove(self.copy / name)
        for name in sorted(self.original):
            if now.get(name) != self.original[name]:
                source, target = self.world / name, self.copy / name
                if self.original[name][0] == "folder":
                    target.mkdir(exist_ok=True)
                    continue
                remove(target)
                shutil.copy2(source, target, follow_symlinks=False)
                self.original[name] = describe(target.lstat())


def snapshot(folder: Path) -> dict[str, tuple[object, ...]]:
    """The kind, size, time and number of each file in a folder, by its path in there."""
    found = {}
    pending, start = [str(folder)], len(str(folder)) + 1
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    found[entry.path[start:]] = ("folder",)
                    if entry.name != "locked":
                        pending.append(entry.path)
                else:
                    found[entry.path[start:]] = describe(entry.stat(follow_symlinks=False))
    return found


def describe(info: os.stat_result) -> tuple[object, ...]:
    return ("file", info.st_size, info.st_mtime_ns, info.st_ino)


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        path.chmod(0o700)
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def run_command(case: Case) -> Verdict:
    """Run the command line as `saccade` does, with files for the standard streams."""
    from saccade.cli import main

    streams = sys.stdin, sys.stdout, sys.stderr
    err = Spoken()
    sys.stdin = io.TextIOWrapper(io.BytesIO(case.stdin), encoding="utf-8")
    sys.stdout = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    sys.stderr = printed = io.TextIOWrapper(err, encoding="utf-8", errors="backslashreplace", write_through=True)
    begin, verdict = measure_seconds(), Verdict()
    is_long = case.argv[0] in LONG_VERBS

    def interrupt(number: int, frame: FrameType | None) -> None:
        has_spoken = case.argv[0] in LISTED_LONG or (is_long and err.first is not None)
        if has_spoken or measure_seconds() - begin >= MAX_SECONDS:
            raise TooLong("" if has_spoken else "silent")

    previous = signal.signal(signal.SIGPROF, interrupt)
    signal.setitimer(signal.ITIMER_PROF, LONG_SECONDS, LONG_SECONDS)
    try:
        main(case.argv)
    except SystemExit as left:
        verdict.code = left.code if isinstance(left.code, int) else 0 if left.code is None else 1
        if verdict.code not in EXIT_CODES:
            verdict.fault = f"exit code {verdict.code}"
    except TooLong as error:
        if error.args[0]:
            verdict.fault, verdict.detail = f"{case.argv[0]}: more than {MAX_SECONDS:.0f} s", traceback.format_exc()
    except BaseException as error:
        verdict.fault, verdict.detail = name_place(error), traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)
        sys.stdin, sys.stdout, sys.stderr = streams
    verdict.seconds = measure_seconds() - begin
    verdict.silent = verdict.seconds if err.first is None else err.first - begin
    if max(verdict.silent, 0 if is_long else verdict.seconds) > MAX_SECONDS and not verdict.fault:
        verdict.fault = f"{case.argv[0]}: more than {MAX_SECONDS:.0f} s"
    verdict.detail = verdict.detail[-3000:]
    printed.detach()
    text = err.getvalue().decode(errors="replace")
    verdict.printed = text[-MAX_PRINTED:]
    if not verdict.fault and TRACEBACK in text:
        verdict.fault, verdict.detail = "traceback on stderr: " + text.strip().splitlines()[-1][:80], text[-3000:]
    return verdict


def measure_seconds() -> float:
    """Seconds of the processor that this process and those that it has waited for have used."""
    return sum(os.times()[:4])


def name_place(error: BaseException) -> str:
    """The kind of an exception and the innermost function of ours that it passed, which name its cause."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/saccade" in frame.filename]
    own = [frame for frame in frames if re.search(r"/saccade(_worlds)?/", frame.filename)]
    place = f"{re.sub(r'.*/(saccade)', r'saccade', own[-1].filename)}:{own[-1].name}" if own else "outside"
    return f"{type(error).__name__} in {place}"


def read_memory(process: int | str = "self") -> int:
    """Bytes of memory of a process, also shared ones; mapped files are not counted, such as the libraries of CUDA."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
    return 1024 * sum(int(lines.get(kind, "0").split()[0]) for kind in ("RssAnon", "RssShmem"))  # 0: it has ended


def read_seconds(process: int) -> float:
    """Seconds of the processor that a process has used, with the processes that it has waited for."""
    values = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, values[11:15])) / os.sysconf("SC_CLK_TCK")
