"""Unpack tar archives into the cache, once each and atomically."""

from __future__ import annotations

import bz2
import errno
import gzip
import lzma
import os
import sys
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from saccade.data.sources.pairs import hash_file
from saccade.data.store.arrays import write_folder
from saccade.errors import SaccadeError
from saccade.files import get_cache_folder

ARCHIVE_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.xz")
ARCHIVE_ERRORS = (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error, lzma.LZMAError)
COMPRESSIONS = {b"\x1f\x8b": "gzip", b"\xfd7zXZ\x00": "lzma", b"BZh": "bz2"}  # by the first bytes
READ_BYTES = 1 << 20  # bytes read at a time
MAX_HEADER_BYTES = 1 << 24  # of names and other facts about a file
# Limits of what an archive may become, by the environment variable that changes each.
BYTES_LIMIT, FILES_LIMIT, RATIO_LIMIT = "SACCADE_ARCHIVE_BYTES", "SACCADE_ARCHIVE_FILES", "SACCADE_ARCHIVE_RATIO"
DEFAULT_LIMITS = {BYTES_LIMIT: 500 * 10**9, FILES_LIMIT: 20_000_000, RATIO_LIMIT: 200}
FREE_BYTES = 100 * 10**6  # up to here, the ratio of unpacked to packed bytes is not limited


def unpack_archive(path: Path) -> Path:
    """Return the folder in the cache with the files of an archive; unpack it if it is not there.

    Paths that lead outside of the folder are an error, and so is an archive that becomes too large, before it fills the
    disk; links and devices are skipped, with a message.
    """
    folder = get_cache_folder() / f"archive-{hash_file(path)}"
    if not folder.is_dir():
        write_folder(folder, lambda temporary: _unpack(path, temporary))
    return folder


def _unpack(path: Path, folder: Path) -> None:
    links, size = list[str](), ArchiveSize(path)
    try:
        with (
            open_decompressed(path) as file,
            tarfile.open(fileobj=cast(IO[bytes], BoundedFile(file, size)), mode="r:") as archive,
        ):
            for member in archive:
                if member.isfile():
                    size.add(member.size)
                    archive.extract(member, folder, filter="data")
                elif not member.isdir():
                    links.append(member.name)
            _check_end(archive)
    except tarfile.OutsideDestinationError as error:
        raise SaccadeError(
            f"{path} has a file {error.tarinfo.name!r} that would be written outside of its folder; pack it without"
        ) from None
    except (NotADirectoryError, IsADirectoryError, FileExistsError):
        raise SaccadeError(
            f"{path}: {member.name!r} cannot be unpacked, as a file and a folder in it have one name; pack it again"
        ) from None
    except ARCHIVE_ERRORS as error:
        reason = str(error).partition("\n")[0].rstrip(":")
        raise SaccadeError(f"{path} is not a whole archive ({reason}); make or download it again") from None
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        raise SaccadeError(
            f"{path}: the name '{member.name[:40]}...' of {len(member.name):,} letters is too long for a file; "
            "pack it again with shorter names"
        ) from None
    if links:
        print(_format_skipped_message(path, links), file=sys.stderr)


@contextmanager
def open_decompressed(path: Path) -> Iterator[IO[bytes]]:
    """Open an archive by its first bytes, as decompressed ones."""
    with path.open("rb") as file:
        start = file.read(max(map(len, COMPRESSIONS)))
    kind = next((kind for magic, kind in COMPRESSIONS.items() if start.startswith(magic)), "")
    opened: Any = {"gzip": gzip.open, "lzma": lzma.open, "bz2": bz2.open}.get(kind, open)
    with opened(path, "rb") as file:
        yield file


class BoundedFile:
    """A decompressed archive; its ratio is limited also by bytes between and behind its files.

    The header of a file, which is read as a whole, could have any size by itself.
    """

    def __init__(self, file: IO[bytes], size: ArchiveSize) -> None:
        self._file, self._size = file, size

    def read(self, count: int) -> bytes:
        if count > MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"it has a header of {count:,} bytes")
        data = self._file.read(count)
        self._size.check_ratio(self._file.tell())
        return data

    def seek(self, position: int) -> int:
        self._size.check_ratio(position)
        return self._file.seek(position)

    def tell(self) -> int:
        return self._file.tell()


class ArchiveSize:
    """What an archive has become so far; raises a SaccadeError where it exceeds a limit."""

    def __init__(self, path: Path) -> None:
        self.path, self.packed, self.bytes, self.files = path, max(1, path.stat().st_size), 0, 0
        self.limits = {name: read_limit(name, default) for name, default in DEFAULT_LIMITS.items()}

    def add(self, size: int) -> None:
        """Count a file of this size, before it is unpacked."""
        self.bytes, self.files = self.bytes + size, self.files + 1
        self.check(FILES_LIMIT, self.files, f"{self.files:,} files or more")
        self.check(BYTES_LIMIT, self.bytes, f"{self.bytes:,} bytes or more")
        self.check_ratio(self.bytes)

    def check_ratio(self, count: int) -> None:
        """Check the number of unpacked bytes against those of the archive."""
        if count > FREE_BYTES:
            ratio = count // self.packed
            self.check(RATIO_LIMIT, ratio, f"{ratio:,} times its own size or more")

    def check(self, name: str, value: int, became: str) -> None:
        if value > self.limits[name]:
            raise SaccadeError(
                f"{self.path} would be unpacked to {became}, the limit is {self.limits[name]:,}; if you trust it, set "
                f"{name}={value * 10} in the environment"
            )


def read_limit(name: str, default: int) -> int:
    """A limit from the environment, or its default."""
    text = os.environ.get(name, "")
    if text and not (text.isascii() and text.isdigit()):
        raise SaccadeError(f"{name} must be a whole number, such as {default}, got '{text[:40]}'")
    return int(text) if text else default


def _format_skipped_message(path: Path, links: Sequence[str]) -> str:
    noun = "link or device" if len(links) == 1 else "links or devices"
    return (
        f"{path}: left out {len(links):,} {noun}, such as {links[0][:60]!r}, as only plain files are unpacked; "
        "to have what links lead to, pack with `tar --dereference --hard-dereference`"
    )


def _check_end(archive: tarfile.TarFile) -> None:
    """Check that only zeros follow the last file, since tarfile stops silently at a damaged header.

    Compressed data are read to their end, where the checksum is.
    """
    file = archive.fileobj
    assert file is not None, "it is open"
    file.seek(archive.offset)
    if any(file.read(tarfile.BLOCKSIZE)):
        raise tarfile.ReadError(f"there is no file at byte {archive.offset:,}, where one should begin")
    while file.read(READ_BYTES):
        pass
