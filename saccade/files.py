"""Atomic writing of files (write to a temporary name, flush to disk, rename), and the folder of cached data."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Set
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import IO, Any

try:
    import fcntl
except ImportError:  # Windows has no such locks; nothing is protected there
    fcntl = None  # type: ignore[assignment]

from saccade.errors import SaccadeError

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT)  # disk full, or quota of the user exceeded


def get_cache_folder() -> Path:
    """The folder of cached data: $SACCADE_CACHE, or .cache/saccade in the home folder.

    Where there is no home folder, or nothing can be written there, a folder of the user beside other temporary files.
    """
    if chosen := os.environ.get("SACCADE_CACHE"):
        return Path(chosen)
    try:
        folder = Path.home() / ".cache" / "saccade"
    except RuntimeError:  # a user id without an entry in the list of users
        return create_temporary_cache()
    existing = next(parent for parent in (folder, *folder.parents) if os.path.exists(parent))
    return folder if os.access(existing, os.W_OK | os.X_OK) else create_temporary_cache()


def create_temporary_cache() -> Path:
    """Create the user's folder for cached data in the folder of temporary files; nobody else may write there."""
    folder = Path(tempfile.gettempdir()) / f"saccade-cache-{os.getuid() if hasattr(os, 'getuid') else ''}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    check_private(folder, follow_symlinks=False)
    return folder


def check_private(folder: Path, *, follow_symlinks: bool = True) -> None:
    """Refuse a folder that others may write to: what is in it is run, or read as our own."""
    info = folder.stat(follow_symlinks=follow_symlinks)
    if hasattr(os, "getuid") and (info.st_uid != os.getuid() or stat.S_IMODE(info.st_mode) & OTHERS_WRITE):
        raise SaccadeError(
            f"the folder '{folder}' must be yours alone, got owner {info.st_uid} and mode "
            f"{stat.S_IMODE(info.st_mode):o}; remove it, or set SACCADE_CACHE to a folder of your own"
        )


@contextmanager
def atomic_replace(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to; rename it to `path` at the end, or delete it on an exception."""
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
    """Write a file that is complete or absent, also after a power failure."""
    with atomic_replace(path) as temporary:
        temporary.write_bytes(content)


def lock_file(file: IO[Any], *, shared: bool = False) -> bool:
    """Lock an open file until it is closed; False if another process has locked it."""
    try:
        if fcntl is not None:
            fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def create_folder(path: Path) -> Iterator[Path]:
    """Create a folder, or fill one that is there; an exception removes what is new, and nothing else."""
    before = {item.name for item in path.iterdir()} if path.is_dir() else None
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SaccadeError(f"cannot create the folder '{path}': {error.strerror or error}") from None
    try:
        yield path
    except BaseException:
        remove_contents(path, kept=before or set())
        if before is None:
            with suppress(OSError):
                path.rmdir()
        raise


def remove_contents(path: Path, *, kept: Set[str]) -> None:
    """Remove all that is in a folder, as far as that is possible, except these names."""
    with suppress(OSError):
        for item in path.iterdir():
            if item.name in kept:
                continue
            if item.is_dir() and not item.is_symlink():
                shutil.rmtree(item, ignore_errors=True)
            else:
                item.unlink(missing_ok=True)


def open_source(file: str | Path | bytes, *, unnamed: str = "") -> tuple[str | BytesIO, str]:
    """Return what a decoder opens and its name: a path, or the bytes of an upload under the name `unnamed`."""
    return (BytesIO(file), unnamed) if isinstance(file, bytes) else (str(file), str(file))


def get_error_reason(error: Exception) -> str:
    """Why a file cannot be read, without its name."""
    return (isinstance(error, OSError) and error.strerror) or str(error)


def is_full_disk(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in DISK_FULL_ERRNOS
