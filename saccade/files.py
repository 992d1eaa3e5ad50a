"""Files that are whole or absent: written under another name, flushed to the disk, then renamed."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path

from saccade.errors import SaccadeError

FULL = (errno.ENOSPC, errno.EDQUOT)  # no space, or none left for this user


def default_cache() -> Path:
    """$SACCADE_CACHE, or .cache/saccade in the home folder."""
    return Path(os.environ.get("SACCADE_CACHE") or Path.home() / ".cache" / "saccade")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary name to write to, which becomes `path` when all is on disk and vanishes when something fails."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if is_full_disk(error):
            raise SaccadeError(f"no space left on the disk while writing {path}; free some and go on") from None
        if isinstance(error, OSError):
            raise SaccadeError(
                f"cannot write {path}: {error.strerror or error}; check the folder and your permission to write there"
            ) from None
        raise


def atomic_write(path: Path, content: bytes) -> None:
    """Writes a file that is whole or absent, also after a power failure."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Makes a folder, which is new or empty, to write files to; nothing is left of it when something fails."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SaccadeError(f"cannot make the folder '{path}': {error.strerror or error}") from None
    try:
        yield path
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise


def open_source(file: str | Path | bytes, *, unnamed: str = "") -> tuple[str | BytesIO, str]:
    """What a decoder opens, and its name: a path, or the bytes of an upload, which are `unnamed`."""
    return (BytesIO(file), unnamed) if isinstance(file, bytes) else (str(file), str(file))


def get_reason(error: Exception) -> str:
    """Why a file cannot be read, without its name; an OSError says it in words, other errors as they are."""
    return (isinstance(error, OSError) and error.strerror) or str(error)


def is_full_disk(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in FULL
