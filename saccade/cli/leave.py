"""How a verb ends: a user's mistake is one message and exit code 2, never a traceback."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from saccade.errors import SaccadeError

MISTAKE, INTERRUPTED = 2, 130
# What a disk or its owner may refuse; any other OSError is a bug of ours and keeps its traceback.
REFUSED = (errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENOENT, errno.EISDIR)


@contextmanager
def telling() -> Iterator[None]:
    """Turns what a verb raises into a message on stderr and an exit code."""
    try:
        yield
        sys.stdout.flush()
    except SaccadeError as error:
        leave(f"error: {error}", MISTAKE)
    except KeyboardInterrupt as error:
        leave(str(error) or "interrupted", getattr(error, "exit_code", INTERRUPTED))
    except BrokenPipeError:
        # The reader of our output has gone, as `| head` does: nothing is wrong, and nobody is left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None
    except OSError as error:
        if error.errno not in REFUSED:
            raise
        where = f": '{error.filename}'" if error.filename else ""
        leave(f"error: {(error.strerror or str(error)).lower()}{where}", MISTAKE)


def leave(message: str, code: int) -> NoReturn:
    print(message, file=sys.stderr)
    raise SystemExit(code)
