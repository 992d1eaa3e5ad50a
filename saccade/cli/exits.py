"""Exit codes: a user's mistake gives one message on stderr and exit code 2, never a traceback."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from saccade.errors import LocalError, ProcessLost, SaccadeError

USER_ERROR, INTERRUPTED = 2, 130
REPORT_SECONDS = 20.0  # for rank 0 to report a mistake that another process has met first
# OSErrors without a file name that a user can mend; any other one is a bug and keeps its traceback.
USER_ERRNOS = (
    errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENOENT, errno.EISDIR, errno.ENOTDIR,
    errno.ENAMETOOLONG, errno.ELOOP, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.EIO, errno.ENOMEM,
)  # fmt: skip
MAX_LINE = 1000  # characters of a line of a message; it may quote an argument or a file of any size
CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")  # escape codes of terminals, for one


@contextmanager
def report_errors() -> Iterator[None]:
    """Turn an exception of a command into a message on stderr and an exit code."""
    mark = get_mark()
    if mark is not None and mark.exists():  # torchrun has started this again after a mistake that was reported
        raise SystemExit(USER_ERROR)
    try:
        try:
            yield
        except SystemExit:
            sys.stdout.flush()  # of --help and --version
            raise
        sys.stdout.flush()
    except SaccadeError as error:
        if os.environ.get("RANK", "0") == "0" or isinstance(error, LocalError):
            print_message(f"error: {error}")
            if mark is not None and not isinstance(error, ProcessLost):
                with contextlib.suppress(OSError):
                    mark.touch()
        elif mark is not None:
            wait_for_report(mark)
        raise SystemExit(USER_ERROR) from None
    except KeyboardInterrupt as error:
        exit_with_message(str(error) or "interrupted", getattr(error, "exit_code", INTERRUPTED))
    except OSError as error:
        discard_output()
        if isinstance(error, BrokenPipeError):
            raise SystemExit(0) from None  # the process that reads our output has ended, as `| head` does: no error
        if error.filename is None and error.errno not in USER_ERRNOS:
            raise
        exit_with_message(f"error: {describe_os_error(error)}", USER_ERROR)


def describe_os_error(error: OSError) -> str:
    """Why a file or folder cannot be used, and its name if the error has one."""
    where = "" if error.filename is None else f": '{os.fsdecode(error.filename)}'"
    return f"{(error.strerror or str(error)).lower()}{where}"


def discard_output() -> None:
    """Discard what standard output still holds if it cannot be written: Python flushes it once more at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def get_mark() -> Path | None:
    """The file that processes of torchrun leave when they end by a user's mistake; None without torchrun.

    It is in a folder of this start of torchrun, which has a folder for each restart, with one for each process.
    """
    own = os.environ.get("TORCHELASTIC_ERROR_FILE")
    return Path(own).parents[2] / "reported" if own and len(Path(own).parents) > 2 else None


def wait_for_report(mark: Path) -> None:
    """Wait until rank 0 has reported the same mistake: torchrun ends all processes as soon as one has ended."""
    end = time.monotonic() + REPORT_SECONDS
    while not mark.exists() and time.monotonic() < end:
        time.sleep(0.05)


def exit_with_message(message: str, code: int) -> NoReturn:
    print_message(message)
    raise SystemExit(code)


def print_message(message: str) -> None:
    print("\n".join(shorten_line(line) for line in message.split("\n")), file=sys.stderr, flush=True)


def shorten_line(line: str) -> str:
    """Cut the middle out of a long line, and escape characters that a terminal would obey."""
    if len(line) > MAX_LINE:
        line = f"{line[: MAX_LINE * 2 // 3]} ... {line[-MAX_LINE // 4 :]}"
    return CONTROL_CHARACTERS.sub(lambda match: ascii(match[0])[1:-1], line)


class ClosedStream(io.RawIOBase):
    """A standard stream that the caller has closed (`<&-`, `>&-`); the first use of it is an error."""

    def __init__(self, title: str) -> None:
        self.error: SaccadeError | None = SaccadeError(f"{title} is closed; open it, or give a file instead")

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._raise_once(0)

    def write(self, data: Any) -> int:
        return self._raise_once(len(data))

    def _raise_once(self, count: int) -> int:
        """Raise the first time alone, since Python flushes its streams again at exit."""
        error, self.error = self.error, None
        if error is not None:
            raise error
        return count


def open_standard_streams() -> None:
    """Replace closed standard streams; the next file that is opened would take their place, and get our output."""
    for number in range(3):
        try:
            os.fstat(number)
            continue
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number
        if number == 0:
            sys.stdin = io.TextIOWrapper(io.BufferedReader(ClosedStream("standard input")))
        elif number == 1:
            sys.stdout = io.TextIOWrapper(io.BufferedWriter(ClosedStream("standard output")), encoding="utf-8")
        else:
            sys.stderr = io.TextIOWrapper(io.FileIO(number, "w", closefd=False), encoding="utf-8", write_through=True)


def check_arguments(arguments: Sequence[str]) -> list[str]:
    """Raise unless all arguments are text: recipes and messages could not hold any other."""
    for number, word in enumerate(arguments, 1):
        try:
            word.encode()
        except UnicodeEncodeError:
            raise SaccadeError(
                f"argument {number} is not valid UTF-8: {word!a}; is it a file name? rename it"
            ) from None
    return list(arguments)
