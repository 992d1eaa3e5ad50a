"""Parts of a corpus: consecutive rows of one file, whose outputs are written to a file that is whole or absent."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

from saccade.data.sources import table
from saccade.data.sources.documents import find_files
from saccade.data.sources.lines import build_missing_file_error, iter_lines, open_file
from saccade.data.sources.paths import to_path
from saccade.errors import SaccadeError
from saccade.files import atomic_write, create_folder, lock_file

MANIFEST = "corpus.json"  # in the folder of outputs: what they were made of; a second start must agree with it
PART_BYTES = 2**20  # of a text or .jsonl file
MAX_PARTS = 20_000
COUNTED_BYTES = 2**20  # read at a time, to count lines


@dataclass(frozen=True)
class Part:
    """Rows of a file: the lines that begin between two byte offsets, or rows of a .parquet file; to its end if None."""

    number: int
    file: str
    start: int = 0
    stop: int | None = None
    num_bytes: int = 0  # of the file, for progress

    @property
    def name(self) -> str:
        return f"part-{self.number:05}"

    def describe(self) -> str:
        """Describe the part for messages."""
        return f"{self.file}{f' from {self.start:,}' if self.start else ''}"


def list_files(corpus: str) -> list[Path]:
    """Return the files of a corpus: a file, a folder, a pattern such as `shards/*.parquet`, or a URL of these."""
    files = find_files(corpus)
    if not files:
        raise SaccadeError(
            f"--corpus {corpus} is neither a file nor a folder; expected text, "
            f"{', '.join(table.TABLE_SUFFIXES)} files, a folder of them, or a pattern such as 'shards/*.jsonl'"
        )
    for path in files:
        if not path.exists():
            raise build_missing_file_error(path)
    return files


def split_into_parts(files: Sequence[Path], *, part_bytes: int) -> list[Part]:
    """Split files into parts; compressed files, .csv and .tsv, which have no index of their rows, are one part each."""
    parts: list[Part] = []
    for path in files:
        kind, compression = table.split_suffixes(path)
        size = path.stat().st_size
        if compression or kind in (".csv", ".tsv"):
            bounds: list[int | None] = [0, None]
        elif kind == ".parquet":
            bounds = [*table.read_row_group_bounds(path)]
        else:
            count = max(1, math.ceil(size / part_bytes))
            bounds = [*(size * number // count for number in range(count)), None]
        share = size // (len(bounds) - 1) if len(bounds) > 1 else 0
        parts += [Part(len(parts) + i, str(path), start or 0, stop, share)
                  for i, (start, stop) in enumerate(pairwise(bounds))]  # fmt: skip
    return parts


def choose_part_bytes(files: Sequence[Path]) -> int:
    return max(PART_BYTES, sum(path.stat().st_size for path in files) // MAX_PARTS)


def prepare_output(folder: Path, settings: dict[str, Any]) -> None:
    """Create the folder of outputs, or check that it was made with the same settings."""
    manifest = folder / MANIFEST
    settings = json.loads(json.dumps(settings))
    if not manifest.exists():
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise SaccadeError(f"--output {folder} exists and is no output of --corpus; choose a new folder")
        with create_folder(folder):
            atomic_write(manifest, json.dumps(settings, indent=1, ensure_ascii=False).encode())
        return
    try:
        earlier = json.loads(manifest.read_text("utf-8"))
    except (OSError, ValueError):
        raise SaccadeError(f"{manifest} cannot be read; choose another --output, or delete this folder") from None
    for name, value in settings.items():
        if earlier.get(name) != value:
            raise SaccadeError(
                f"{folder} has outputs with another {name} ({_shorten(earlier.get(name))}, now {_shorten(value)}); "
                "choose another --output, or delete this folder"
            )


@contextmanager
def lock_output(folder: Path) -> Iterator[None]:
    """Lock the folder of outputs against a second command, and remove what a killed one left behind."""
    with (folder / MANIFEST).open("rb") as file:
        if not lock_file(file):
            raise SaccadeError(
                f"another command is writing to {folder}; wait until it ends, or choose another --output"
            )
        for path in folder.glob(".part-*.tmp"):
            path.unlink(missing_ok=True)
        yield


def _shorten(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:60]}... ({hashlib.sha256(text.encode()).hexdigest()[:8]})"


def hash_weights(path: Path) -> str:
    """Identify the weights of a run."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


@dataclass(frozen=True)
class BadRow:
    """A row that is no text, and why."""

    reason: str


def iter_rows(part: Part, column: str | None) -> Iterator[str | BadRow]:
    """Yield the text of each row of a part; a blank line is a row without text."""
    path = to_path(part.file)
    kind, columns = table.get_format(path), (column,) if column else None
    if column and not kind:
        raise SaccadeError(
            f"--column {column}: {path} has no columns; expected {', '.join(table.TABLE_SUFFIXES)} files"
        )
    if kind in (".csv", ".tsv"):
        yield from (text for _, text in table.read_column(path, columns=columns))
        return
    chosen = table.find_columns(path, columns=columns, names=table.TEXT_COLUMNS) or None
    with open_file(path) as file:
        if kind == ".parquet":
            for number, record in table.read_parquet(file, path, chosen or (), first=part.start, stop=part.stop):
                yield _read_row(table.select_texts([(number, record)], "", chosen, table.TEXT_COLUMNS), number)
            return
        for number, line in enumerate(_iter_raw_lines(file, part), 1):
            rows = iter_lines([line], "", lines_before=number - 1)
            texts: Iterator[table.Texts] = ((row, (text,)) for row, text in rows)
            if kind == ".jsonl":
                records = table.read_jsonl([line], "", lines_before=number - 1)
                texts = table.select_texts(records, "", chosen, table.TEXT_COLUMNS)
            yield _read_row(texts, number)


def _read_row(rows: Iterator[table.Texts], number: int) -> str | BadRow:
    try:
        return next(rows)[1][0]
    except SaccadeError as error:
        return BadRow(str(error).removeprefix(f":{number}: "))


def _iter_raw_lines(file: IO[bytes], part: Part) -> Iterator[bytes]:
    """Yield the lines that begin in a part."""
    offset = part.start
    if offset:
        file.seek(offset - 1)
        offset += len(file.readline()) - 1
    while (part.stop is None or offset < part.stop) and (line := file.readline()):
        offset += len(line)
        yield line


def name_row(part: Part, row: int) -> str:
    """Return file and row number, from 1, of a row of a part; lines before a part are counted for this."""
    if not part.start or table.get_format(to_path(part.file)) == ".parquet":
        return f"{part.file}:{part.start + row + 1}"
    before, left, last = 0, part.start, b""
    with open_file(to_path(part.file)) as file:
        while left and (block := file.read(min(COUNTED_BYTES, left))):
            before, left, last = before + block.count(b"\n"), left - len(block), block[-1:]
    before += last != b"\n"  # the line that goes on in the part belongs to the part before
    return f"{part.file}:{before + row + 1}"


def count_lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(COUNTED_BYTES), b""))
