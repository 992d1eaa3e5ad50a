import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from saccade.predict.lines import group_available


def test_all_lines_come_once_and_in_order() -> None:
    lines = [str(i) for i in range(1000)]
    groups = list(group_available(lines, max_lines=7))
    assert [line for group in groups for line in group] == lines
    assert max(len(group) for group in groups) <= 7


def test_available_lines_are_grouped() -> None:
    read = threading.Event()

    def lines() -> Iterator[str]:
        yield from ("a", "b", "c")
        read.set()

    groups = group_available(lines(), max_lines=9)
    first = next(groups)
    assert read.wait(20)
    assert first + [line for group in groups for line in group] == ["a", "b", "c"]


def test_an_interactive_program_gets_its_answers() -> None:
    answered = threading.Semaphore(0)

    def lines() -> Iterator[str]:
        for i in range(12):
            if i % 4 == 0 and i:  # four questions at a time
                for _ in range(4):
                    assert answered.acquire(timeout=20)
            yield str(i)

    count = 0
    for group in group_available(lines(), max_lines=100):
        count += len(group)
        answered.release(len(group))
    assert count == 12


def test_read_ahead_is_limited() -> None:
    taken: list[int] = []
    groups = group_available((taken.append(i) or str(i) for i in range(100)), max_lines=3)
    next(groups)
    groups.close()
    assert len(taken) < 12


def test_an_error_of_the_source_comes_after_its_lines() -> None:
    def lines() -> Iterator[str]:
        yield "a"
        raise OSError("gone")

    groups = group_available(lines(), max_lines=5)
    assert next(groups) == ["a"]
    with pytest.raises(OSError, match="gone"):
        next(groups)


def test_exit_while_waiting_for_stdin_is_clean() -> None:
    code = (
        "from saccade.data.sources.pairs import read_lines; from saccade.predict.lines import group_available\n"
        "print(next(group_available(read_lines('-'), max_lines=5))); raise SystemExit(2)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdin.write("abc\n")
        process.stdin.flush()
        assert process.wait(60) == 2
        assert process.stdout.read() == "['abc']\n"
        assert process.stderr.read() == ""
