"""Archives of files: unpacked into the cache once, and whole or not at all."""

from __future__ import annotations

import errno
import gzip
import lzma
import sys
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path

from saccade.data.sources.pairs import file_key
from saccade.data.store.arrays import write_folder
from saccade.errors import SaccadeError
from saccade.files import default_cache

TARS = (".tar", ".tar.gz", ".tgz", ".tar.xz")
DAMAGED = (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error, lzma.LZMAError)
AT_ONCE = 1 << 20  # bytes


def unpacked(path: Path) -> Path:
    """The folder of an archive in the cache; what would leave it is refused, and what is no plain file left out.

    How many that are is told when it is unpacked.
    """
    folder = default_cache() / f"archive-{file_key(path)}"
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
    except DAMAGED as error:
        why = str(error).partition("\n")[0].rstrip(":")
        raise SaccadeError(f"{path} is not a whole archive ({why}); make or download it again") from None
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        raise SaccadeError(
            f"{path}: the name '{member.name[:40]}...' of {len(member.name):,} letters is too long for a file; "
            "pack it again with shorter names"
        ) from None
    if links:
        print(_left_out(path, links), file=sys.stderr)


def _left_out(path: Path, links: Sequence[str]) -> str:
    what = "link or device" if len(links) == 1 else "links or devices"
    return (
        f"{path}: left out {len(links):,} {what}, such as {links[0][:60]!r}, as only plain files are unpacked; "
        "to have what links lead to, pack with `tar --dereference --hard-dereference`"
    )


def _check_end(archive: tarfile.TarFile) -> None:
    """That there is nothing behind the last file but zeros: tarfile stops without a word where a header is damaged.

    What is packed is read to its end, where its checksum is.
    """
    file = archive.fileobj
    assert file is not None, "it is open"
    file.seek(archive.offset)
    if any(file.read(tarfile.BLOCKSIZE)):
        raise tarfile.ReadError(f"there is no file at byte {archive.offset:,}, where one should begin")
    while file.read(AT_ONCE):
        pass
