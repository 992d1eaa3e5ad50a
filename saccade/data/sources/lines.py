"""Read text files as numbered lines; problems with a file become errors of one line."""

from __future__ import annotations

import codecs
import difflib
import gzip
import io
import lzma
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, cast

from saccade.data.sources.bad_rows import BadRowError, OnBadRow, raise_error
from saccade.data.sources.paths import is_url
from saccade.errors import SaccadeError

COMPRESSION_SUFFIXES = (".gz", ".xz")
MAX_LINE_BYTES = 2**27
UTF_16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@contextmanager
def open_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a file as decompressed bytes; errors while it is open become a SaccadeError."""
    try:
        if path.is_dir() or not path.exists():
            raise build_missing_file_error(path)
        with _open(path) as file:
            yield file
    except (gzip.BadGzipFile, EOFError, zlib.error, lzma.LZMAError) as error:
        raise SaccadeError(f"{path} is not a whole {path.suffix} file ({error}); make or download it again") from None
    except OSError as error:
        raise build_read_error(path, error) from None
    except SaccadeError:
        raise
    except Exception as error:  # of the library behind a URL
        if is_url(path):
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise SaccadeError(f"{path} cannot be read: {reason}") from None
        raise


@contextmanager
def _open(path: Path) -> Iterator[IO[bytes]]:
    is_in_memory = str(path).startswith("memory://")  # where fsspec gives all readers of a file one place in it
    with io.BytesIO(path.read_bytes()) if is_in_memory else path.open("rb") as raw:
        if path.suffix not in COMPRESSION_SUFFIXES:
            yield raw
            return
        with (gzip if path.suffix == ".gz" else lzma).open(raw, "rb") as file:
            yield cast(IO[bytes], file)


def bound_lines(file: Iterable[bytes]) -> Iterable[bytes]:
    """Lines of an open file, a line that is too long only up to its limit; other lines as they are."""
    readline = getattr(file, "readline", None)
    return file if readline is None else iter(partial(readline, MAX_LINE_BYTES + 1), b"")


def iter_lines(
    file: Iterable[bytes], name: str, *, lines_before: int = 0, on_bad_row: OnBadRow = raise_error
) -> Iterator[tuple[int, str]]:
    """Yield lines with their numbers from 1, without line ends; only a line feed ends a line, not U+2028 etc."""
    for number, raw in enumerate(bound_lines(file), lines_before + 1):
        try:
            line = decode_line(raw, name, number)
        except BadRowError as error:
            on_bad_row(error)
            continue
        yield number, line


def decode_line(raw: bytes, name: str, number: int) -> str:
    """Decode a line without its end; without a byte-order mark if it is the first one."""
    if len(raw) > MAX_LINE_BYTES:
        raise SaccadeError(
            f"{name}:{number}: a line of more than {MAX_LINE_BYTES:,} bytes; is it text, with one example a line?"
        )
    try:
        line = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        found = f"byte 0x{raw[error.start]:02x} at position {error.start + 1}"
        raise BadRowError(f"{name}:{number}", f"not valid UTF-8 ({found}); {advise_encoding(raw)}") from None
    if "\0" in line:
        raise BadRowError(f"{name}:{number}", f"not text (it has NUL characters); {advise_encoding(raw)}")
    if number == 1:
        line = line.removeprefix("\ufeff")
    return line.removesuffix("\n").removesuffix("\r")


def advise_encoding(raw: bytes) -> str:
    """Return how to convert a file with this line to UTF-8."""
    encoding = "utf-16" if b"\0" in raw or raw.startswith(UTF_16_MARKS) else "windows-1252"
    return f"convert the file, for example with iconv -f {encoding} -t utf-8 FILE > NEW"


def build_missing_file_error(path: Path) -> SaccadeError:
    """Build the error for a path that is not a file, with the most similar name in its folder."""
    if path.is_dir():
        return SaccadeError(f"{path} is a directory; expected a file")
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return SaccadeError(f"{path} not found: there is no folder {path.parent}")
    return SaccadeError(f"{path} not found{did_you_mean(path.name, names)}")


def build_read_error(path: Path, error: OSError) -> SaccadeError:
    return SaccadeError(f"{path} cannot be read: {error.strerror or error}")


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Suggest the most similar name, as the end of an error message; empty if none is similar."""
    near = difflib.get_close_matches(name, list(names), n=1)
    return f"; did you mean {near[0]}?" if near else ""
