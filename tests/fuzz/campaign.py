"""Run many cases in processes made by fork, watch their time and memory, and keep and minimise those that fail."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import shutil
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from select import select

from cases import REFUSED_SEEDS, SEEDS, Case, Generator
from execute import MAX_BYTES, MAX_SECONDS, Runner, Verdict, prepare_process, read_memory, read_seconds, snapshot
from world import build_world

CASES_PER_PROCESS = 400
GRACE_SECONDS = 15.0  # after MAX_SECONDS of the processor, before a process that does not react is killed
MAX_WAITING_SECONDS = 600.0  # after which a process that uses no processor is killed too
NOTED_SECONDS = 5.0  # a command that says nothing for longer is shown
KILL_BYTES = MAX_BYTES + 500_000_000  # beyond which a process is not left alive
MAX_TRIALS = 60  # to minimise one case


@dataclass
class Summary:
    """Counts of a campaign."""

    cases: Counter[str] = field(default_factory=Counter)  # by verb
    codes: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    silent: float = 0.0  # the longest time before a command wrote to standard error, or ended
    largest_bytes: int = 0
    seconds: float = 0.0


def prepare(folder: Path) -> Path:
    """Build the world in a new folder, and make this process what runs the cases are forked from."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "SACCADE_DEVICE": "cpu", "SACCADE_CACHE": str(folder / "cache")}
    os.environ |= {"HOME": str(folder), "COLUMNS": "100", "SACCADE_STRICT_ENGINES": "1"}
    build_world(folder / "world")
    prepare_process()
    return folder / "world"


def try_seeds(world: Path, copy: Path) -> None:
    """Run all commands that cases are made of: they must work, and what they import and compile is there for all."""
    runner, wrong = Runner(world, copy), []
    for words in (words for seeds in SEEDS.values() for words in seeds):
        verdict = runner.run(Case([*words]))
        if verdict.fault or (verdict.code not in (0, 143) and words not in REFUSED_SEEDS):
            wrong.append(f"{words} ended with {verdict.code} {verdict.fault}: {verdict.detail or verdict.printed}")
    if wrong:
        raise RuntimeError("\n".join(wrong))
    shutil.rmtree(copy, ignore_errors=True)


def run_cases(world: Path, cases: Iterator[Case], report: Callable[[Case, Verdict, int], None]) -> None:
    """Run all cases; a process that dies or must be killed fails the case that it was running."""
    pending: list[Case] = []
    while True:
        pending += [case for _, case in zip(range(CASES_PER_PROCESS - len(pending)), cases, strict=False)]
        if not pending:
            return
        done = run_in_child(world, pending, report)
        del pending[:done]


def run_in_child(world: Path, cases: list[Case], report: Callable[[Case, Verdict, int], None]) -> int:
    """Run cases in one process; return how many of them have ended, in whatever way."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        work_through(world, cases, writing)
    os.close(writing)
    results, done = Results(reading, child), 0
    try:
        while done < len(cases):
            line, memory = results.wait()
            if not line:
                end = f"{cases[done].argv[0]}: {name_end(child, memory)}"
                report(cases[done], Verdict(end, detail=read_failure(world)), memory)
                return done + 1
            values = json.loads(line)
            report(cases[done], Verdict(**values["verdict"]), max(memory, values["memory"]))
            done += 1
        os.waitpid(child, 0)
        return done
    finally:
        os.close(reading)


def name_end(child: int, memory: int) -> str:
    """Why a process ended in the middle of a case."""
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status):
        return f"left with {os.WEXITSTATUS(status)} from inside"
    if os.WTERMSIG(status) != signal.SIGKILL:
        return f"signal {signal.Signals(os.WTERMSIG(status)).name}"
    return "more than 2 GB" if memory > MAX_BYTES else f"killed after {MAX_SECONDS + GRACE_SECONDS:.0f} s"


def read_failure(world: Path) -> str:
    """The traceback that a process left when the runner itself failed; empty if a command has ended the process."""
    path = world.parent / "failure"
    text = path.read_text() if path.exists() else ""
    path.unlink(missing_ok=True)
    return text


class Results:
    """The lines that a child writes, one for each case."""

    def __init__(self, descriptor: int, child: int) -> None:
        self.descriptor, self.child, self.buffer = descriptor, child, b""

    def wait(self) -> tuple[bytes, int]:
        """The next line, empty if the child has ended, and the largest memory that was seen meanwhile.

        A child that takes too long or too much memory is killed.
        """
        begin, largest, used, started = time.monotonic(), 0, 0.0, None
        while b"\n" not in self.buffer:
            if select([self.descriptor], [], [], 0.1)[0]:
                more = os.read(self.descriptor, 1 << 20)
                if not more:
                    return b"", largest
                self.buffer += more
                continue
            with suppress(OSError, IndexError):
                largest = max(largest, read_memory(self.child))
                used = read_seconds(self.child)
                started = used if started is None else started
            is_late = (started is not None and used - started > MAX_SECONDS + GRACE_SECONDS) or (
                time.monotonic() - begin > MAX_WAITING_SECONDS
            )
            if largest > KILL_BYTES or is_late:
                os.kill(self.child, signal.SIGKILL)
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line, largest


def work_through(world: Path, cases: list[Case], writing: int) -> None:
    """What the child does: run the cases one after the other, and write a line for each."""
    code = 0
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        folder = Path(tempfile.mkdtemp(prefix="case-", dir=world.parent))
        os.environ["SACCADE_CACHE"] = str(folder / "cache")
        shutil.copytree(world.parent / "cache", folder / "cache")
        runner = Runner(world, folder / "world")
        runner.redirect_errors(folder / "stderr")
        channel = os.fdopen(writing, "wb", buffering=0)
        for case in cases:
            verdict = runner.run(case)
            line = json.dumps({"verdict": asdict(verdict), "memory": read_memory()})
            channel.write(f"{line}\n".encode())
        shutil.rmtree(folder, ignore_errors=True)
    except BaseException:
        (world.parent / "failure").write_text(traceback.format_exc())
        code = 70
    os._exit(code)


def judge(verdict: Verdict, memory: int) -> str:
    return verdict.fault or ("more than 2 GB" if memory > MAX_BYTES else "")


def minimise(world: Path, case: Case, fault: str) -> Case:
    """Drop words, files and halves of files as long as the case fails in the same way."""
    trials = 0

    def still_fails(tried: Case) -> bool:
        nonlocal trials
        trials += 1
        seen: list[str] = []
        run_in_child(world, [tried], lambda case, verdict, memory: seen.append(judge(verdict, memory)))
        return seen == [fault]

    if " s" in fault and "more than" in fault:
        return case  # each trial would take as long
    changed = True
    while changed and trials < MAX_TRIALS:
        changed = False
        for smaller in shrink(case):
            if trials >= MAX_TRIALS:
                break
            if still_fails(smaller):
                case, changed = smaller, True
                break
    return case


def shrink(case: Case) -> Iterator[Case]:
    """Smaller cases, those that lose most first."""
    for name in case.files:
        yield Case(case.argv, {key: value for key, value in case.files.items() if key != name}, case.stdin)
    for name, content in case.files.items():
        if content is None or len(content) < 64:
            continue
        half = len(content) // 2
        for part in (content[:half], content[half:]):
            yield Case(case.argv, {**case.files, name: part}, case.stdin)
    for at in range(len(case.argv) - 1, 0, -1):
        yield Case(case.argv[:at] + case.argv[at + 1 :], case.files, case.stdin)


def run_campaign(
    *, seed: int, rounds: int, seconds: float, shard: tuple[int, int], save: Path | None, show: Callable[[str], None],
    verbs: Collection[str] = (),
) -> Summary:  # fmt: skip
    """Draw and run cases until either limit is reached; case number n depends on the seed, the verbs and n alone."""
    summary, begin = Summary(), time.monotonic()
    with tempfile.TemporaryDirectory(  # a sweep that was interrupted may still write a checkpoint
        prefix="saccade-fuzz-", dir=choose_memory_folder(), ignore_cleanup_errors=True
    ) as name:
        folder = Path(name)
        folder.chmod(0o755)
        output = save.resolve() if save else None
        world = prepare(folder)
        try_seeds(world, folder / "first")
        gc.freeze()  # what is there now is shared by all processes
        files = sorted(path for path, info in snapshot(world).items() if info[0] == "file" and (world / path).is_file())
        generator, number, count = Generator(world, files, verbs), *shard

        def draw_cases() -> Iterator[Case]:
            for n in range(number - 1, rounds, count):
                if time.monotonic() - begin > seconds:
                    return
                yield generator.draw(Random(f"{seed}-{n}"))

        def report(case: Case, verdict: Verdict, memory: int) -> None:
            summary.cases[case.argv[0]] += 1
            summary.codes[str(verdict.code)] += 1
            summary.slowest = max(summary.slowest, verdict.seconds)
            if verdict.silent > max(summary.silent, NOTED_SECONDS):
                show(f"silent for {verdict.silent:.1f} s: {case.argv} {sorted(case.files)}")
            summary.silent = max(summary.silent, verdict.silent)
            summary.largest_bytes = max(summary.largest_bytes, memory)
            fault = judge(verdict, memory)
            if fault:
                summary.faults[fault] += 1
                if summary.faults[fault] == 1:
                    case.found = fault
                    keep_fault(world, case, verdict, output, show)
            if summary.cases.total() % 500 == 0:
                rate = summary.cases.total() / (time.monotonic() - begin)
                show(f"{summary.cases.total()} cases, {rate:.0f} a second, {len(summary.faults)} faults")

        with suppress(KeyboardInterrupt):  # what was done until then is reported
            run_cases(world, draw_cases(), report)
    summary.seconds = time.monotonic() - begin
    return summary


def replay(corpus: Path) -> dict[str, str]:
    """Run all cases of a corpus; the fault of each by its name, empty if it passes."""
    names = sorted(corpus.glob("*.json"))
    found: list[str] = []
    with tempfile.TemporaryDirectory(prefix="saccade-fuzz-", dir=choose_memory_folder()) as name:
        world = prepare(Path(name))
        cases = [Case.from_json(path.read_text()) for path in names]
        run_cases(world, iter(cases), lambda case, verdict, memory: found.append(judge(verdict, memory)))
    return {path.name: fault for path, fault in zip(names, found, strict=True)}


def keep_fault(world: Path, case: Case, verdict: Verdict, output: Path | None, show: Callable[[str], None]) -> None:
    smaller = minimise(world, case, case.found)
    smaller.found = case.found
    show(f"FAULT {case.found}\n  {smaller.argv} {sorted(smaller.files)}\n{verdict.detail}")
    if output is not None:
        name = hashlib.blake2b(case.found.encode(), digest_size=5).hexdigest()
        (output / f"{name}.json").write_text(smaller.to_json())


def choose_memory_folder() -> str | None:
    """A file system in memory makes cases several times faster."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
