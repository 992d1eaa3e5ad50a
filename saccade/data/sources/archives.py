"""Unpack tar archives into the cache, once each and atomically."""

from __future__ import annotations

import errno
import gzip
import lzma
import sys
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path

from saccade.data.sources.pairs import hash_file
from saccade.data.store.arrays import write_folder
from saccade.errors import SaccadeError
from saccade.files import get_cache_folder

ARCHIVE_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.xz")
ARCHIVE_ERRORS = (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error, lzma.LZMAError)
READ_BYTES = 1 << 20  # bytes read at a time


def unpack_archive(path: Path) -> Path:
    """Return the folder in the cache with the files of an archive; unpack it if it is not there.

    Paths that lead outside of the folder are an error; links and devices are skipped, with a message.
    """
    folder = get_cache_folder() / f"archive-{hash_file(path)}"
    if not folder.is_dir():
        write_folder(folder, lambda temporary: _unpack(path, temporary))
    return folder


def _unpack(path: Path, folder: Path) -> None:
    links = list[str]()
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                if member.isfile():
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
