"""Read documents from a place in a corpus on, and one of several shares of it without reading the others.

A place is stored with a run, which resumes there: the number of a file range and an offset in its file. Offsets are
bytes of text and .jsonl files (of .gz and .xz after decompression; they are decompressed again up to there), and rows
of other tables, of which only .parquet has an index: its row groups.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, NamedTuple

from saccade.config.schema import Corpus
from saccade.data.sources import table
from saccade.data.sources.bad_rows import OnBadRow, raise_error
from saccade.data.sources.lines import bound_lines, iter_lines, open_file
from saccade.errors import SaccadeError

Document = tuple[int, str]  # number of the first line or row, from 1; text

MAX_RANGE_BYTES = 2**24
MIN_RANGE_BYTES = 2**20  # in a smaller range of a file, no document might begin
RANGES_PER_SHARE = 8  # at least, so that shares have nearly the same size


@dataclass(frozen=True)
class Share:
    """One of `count` disjoint shares of a corpus."""

    number: int = 0
    count: int = 1


WHOLE = Share()


class FileRange(NamedTuple):
    """The documents that begin between two offsets of a file; `stop` None is its end."""

    path: Path
    start: int = 0
    stop: int | None = None


@dataclass
class Place:
    """Where the next document of a share begins."""

    range: int = 0
    offset: int | None = None  # None: at the start of the range
    lines: int = 0  # before it, since the start of the range
    file: str = ""  # name of the file, to notice other files when a run resumes


def split_into_ranges(files: list[Path], unit: str, count: int) -> list[FileRange]:
    """Split files into ranges for `count` shares, of at most `MAX_RANGE_BYTES` where files can be split."""
    if count == 1:
        return [FileRange(path) for path in files]
    sizes = [path.stat().st_size for path in files]
    size = min(MAX_RANGE_BYTES, max(MIN_RANGE_BYTES, sum(sizes) // (count * RANGES_PER_SHARE)))
    split = [_find_bounds(path, unit, math.ceil(found / size)) for path, found in zip(files, sizes, strict=True)]
    return [FileRange(path, *ends) for path, bounds in zip(files, split, strict=True) for ends in pairwise(bounds)]


def _find_bounds(path: Path, unit: str, count: int) -> list[Any]:
    """Return the offsets that split a file into about `count` ranges; into one if that is not possible."""
    kind, compression = table.split_suffixes(path)
    if compression or kind not in ("", ".jsonl", ".parquet") or (not kind and unit == "file"):
        return [0, None]
    if kind == ".parquet":
        groups = table.read_row_group_bounds(path)
        return [*groups[: -1 : max(1, (len(groups) - 1) // max(1, count))], groups[-1]]
    size = path.stat().st_size
    return [*(size * number // count for number in range(count)), None]


def hash_sizes(files: Iterable[Path]) -> str:
    """Identify files by their names and sizes, which determine their ranges."""
    return sha256(repr([(path.name, path.stat().st_size) for path in files]).encode()).hexdigest()[:16]


class RangeReader:
    """Iterates over the documents of file ranges from a place on; `place` moves behind each document."""

    def __init__(
        self, ranges: list[FileRange], corpus: Corpus, unit: str, place: Place, on_bad_row: OnBadRow = raise_error
    ) -> None:
        self.ranges, self.corpus, self.unit, self.place, self.on_bad_row = ranges, corpus, unit, place, on_bad_row
        if place.file and (place.range >= len(ranges) or ranges[place.range].path.name != place.file):
            raise SaccadeError(
                f"cannot resume in the file {place.file} of {corpus.files[0]}: there are other files now; "
                "restore them, or start a new run"
            )

    def describe_place(self) -> dict[str, Any]:
        """Return the place as JSON."""
        file = self.ranges[self.place.range].path.name if self.place.range < len(self.ranges) else ""
        return {**asdict(self.place), "file": file}

    def __iter__(self) -> Iterator[Document]:
        while self.place.range < len(self.ranges):
            found = self.ranges[self.place.range]
            any_document = self.place.offset is not None or found.start > 0 or found.stop is not None
            for document in self._read(found):
                any_document = True
                yield document
            if not any_document:
                expected = "at least one text" if table.get_format(found.path) else "some text"
                raise SaccadeError(f"{found.path} is empty; expected {expected}")
            self.place = Place(self.place.range + 1)

    def _read(self, found: FileRange) -> Iterator[Document]:
        if table.get_format(found.path) == ".jsonl" or not table.get_format(found.path):
            return self._read_lines(found)
        return self._read_rows(found)

    def _read_lines(self, found: FileRange) -> Iterator[Document]:
        """Read a text or .jsonl file from the first line on that begins at the offset or after it."""
        path, start = found.path, found.start if self.place.offset is None else self.place.offset
        columns, on_bad_row = self.corpus.columns, self.on_bad_row
        columns = table.find_columns(path, columns=columns, names=table.TEXT_COLUMNS, on_bad_row=on_bad_row) or None
        with open_file(path) as file:
            if start:
                file.seek(start - 1)
                start += len(file.readline()) - 1
            self.place.offset = start
            name = f"{path} from byte {found.start}" if found.start else str(path)
            if table.get_format(path):
                lines = count_bytes(file, self.place, found.stop)
                records = table.read_jsonl(lines, name, lines_before=self.place.lines, on_bad_row=on_bad_row)
                texts = table.select_texts(records, name, columns, table.TEXT_COLUMNS, on_bad_row)
                yield from ((number, text) for number, (text,) in texts)
            elif self.unit == "lines":
                lines = count_bytes(file, self.place, found.stop)
                numbered = iter_lines(lines, name, lines_before=self.place.lines, on_bad_row=on_bad_row)
                yield from ((number, line) for number, line in numbered if line.strip())
            else:
                yield from self._join_lines(file, name, found.stop)

    def _join_lines(self, file: IO[bytes], name: str, stop: int | None) -> Iterator[Document]:
        """Yield documents of several lines; one between blank lines belongs to the range of the blank line before it.

        The place after a document is the next blank line, where reading goes on as at the start of a range.
        """
        ahead, first, lines = Place(offset=self.place.offset, lines=self.place.lines), 0, list[str]()
        in_document, line_start = ahead.offset == 0, (ahead.offset, ahead.lines)
        raw = count_bytes(file, ahead, None)
        for number, line in iter_lines(raw, name, lines_before=ahead.lines, on_bad_row=self.on_bad_row):
            if self.unit == "blank" and not line.strip():
                self.place.offset, self.place.lines = line_start
                if lines:
                    yield first, "\n".join(lines)
                if stop is not None and line_start[0] is not None and line_start[0] >= stop:
                    return
                in_document, lines = True, []
            elif in_document:
                first = first if lines else number
                lines.append(line)
            line_start = (ahead.offset, ahead.lines)
        self.place.offset, self.place.lines = line_start
        if any(line.strip() for line in lines):
            yield first, "\n".join(lines)

    def _read_rows(self, found: FileRange) -> Iterator[Document]:
        """Read a table from a row on; of other formats than .parquet, the rows before it are read and skipped."""
        start = found.start if self.place.offset is None else self.place.offset
        self.place.offset = start
        has_index = table.get_format(found.path) == ".parquet"
        rows = table.read_column(
            found.path, columns=self.corpus.columns, first=start, stop=found.stop, on_bad_row=self.on_bad_row
        )
        for number, text in rows:
            self.place.offset = number if has_index else self.place.offset + 1
            yield number, text


def count_bytes(file: IO[bytes], place: Place, stop: int | None) -> Iterator[bytes]:
    """Yield the lines of a file that begin before `stop`, and move the place behind each."""
    assert place.offset is not None, "the file is open at this place"
    lines = iter(bound_lines(file))
    while (stop is None or place.offset < stop) and (line := next(lines, b"")):
        place.offset += len(line)
        place.lines += 1
        yield line
