"""Exit codes: a user's mistake gives one message on stderr and exit code 2, never a traceback."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from saccade.errors import LocalError, ProcessLost, SaccadeError

USER_ERROR, INTERRUPTED = 2, 130
REPORT_SECONDS = 20.0  # for rank 0 to report a mistake that another process has met first
# OSErrors that a user can mend (permissions, full disk, missing file); any other one is a bug and keeps its traceback.
USER_ERRNOS = (errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENOENT, errno.EISDIR)


@contextmanager
def report_errors() -> Iterator[None]:
    """Turn an exception of a command into a message on stderr and an exit code."""
    mark = get_mark()
    if mark is not None and mark.exists():  # torchrun has started this again after a mistake that was reported
        raise SystemExit(USER_ERROR)
    try:
        yield
        sys.stdout.flush()
    except SaccadeError as error:
        if os.environ.get("RANK", "0") == "0" or isinstance(error, LocalError):
            print(f"error: {error}", file=sys.stderr, flush=True)
            if mark is not None and not isinstance(error, ProcessLost):
                with contextlib.suppress(OSError):
                    mark.touch()
        elif mark is not None:
            wait_for_report(mark)
        raise SystemExit(USER_ERROR) from None
    except KeyboardInterrupt as error:
        exit_with_message(str(error) or "interrupted", getattr(error, "exit_code", INTERRUPTED))
    except BrokenPipeError:
        # The process that reads our output has ended, as `| head` does: no error. Python flushes stdout once more at
        # exit, which must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None
    except OSError as error:
        if error.errno not in USER_ERRNOS:
            raise
        where = f": '{error.filename}'" if error.filename else ""
        exit_with_message(f"error: {(error.strerror or str(error)).lower()}{where}", USER_ERROR)


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
    print(message, file=sys.stderr)
    raise SystemExit(code)
