"""One file with columns: .tsv, .csv, .jsonl, .parquet.

Where one column is wanted, the text of documents, it is `text`, or else the only one. Which columns are source and
target, where the recipe does not say:
* a header, record or schema with `source` and `target`: these;
* .csv: the first line is the header, its first two columns; .jsonl, .parquet: the first two fields;
* .tsv without `source` and `target` in its first line: there is no header, and every line has two columns.
`columns = ["2", "5"]` counts columns of a .tsv or .csv without a header, from 1. Fields inside fields are named with
a dot: `translation.en`.
"""

from __future__ import annotations

import csv
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from saccade.data.sources.lines import PACKED, did_you_mean, numbered_lines, open_file
from saccade.errors import SaccadeError

Row = tuple[int, str, str]
Texts = tuple[int, tuple[str, ...]]  # the same with any number of texts
Columns = tuple[str, ...] | None

KINDS = (".tsv", ".csv", ".jsonl", ".parquet")
NAMES = ("source", "target")
TEXT = ("text",)
EXAMPLES = ('"1"', '"2"')
SURROGATE = re.compile("[\ud800-\udfff]")


def suffixes(path: Path) -> tuple[str, str]:
    """Kind and packing: (".tsv", ".gz") of a.tsv.gz; an empty text where there is none."""
    packing = path.suffix if path.suffix in PACKED else ""
    inner = Path(path.stem) if packing else path
    return (inner.suffix if inner.suffix in KINDS else "", packing)


def kind(path: Path) -> str:
    return suffixes(path)[0]


def read(path: Path, *, columns: Columns) -> Iterator[Row]:
    """The pairs of a file with columns, each with its line number."""
    return pairs(_read(path, columns=columns, names=NAMES))


def read_column(path: Path, *, columns: Columns) -> Iterator[tuple[int, str]]:
    """The texts of one column, each with its line number."""
    return ((number, texts[0]) for number, texts in _read(path, columns=columns, names=TEXT))


def records(path: Path, *, is_header: Callable[[list[str]], bool]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Every row with the names of its columns: 1, 2, 3 where the first line of a .tsv or .csv is no header."""
    with open_file(path) as file:
        name, number = str(path), 0
        if kind(path) == ".parquet":
            found: Iterable[tuple[int, Mapping[str, Any]]] = _parquet(file, path)
        elif kind(path) == ".jsonl":
            found = _json_lines(file, name)
        else:
            found = _named(_tabs(file, name) if kind(path) == ".tsv" else _commas(file, name), name, is_header)
        for number, record in found:
            yield number, record
        if not number:
            raise SaccadeError(f"{path} is empty; expected at least one row")


def _named(
    lines: Iterator[tuple[int, list[str]]], name: str, is_header: Callable[[list[str]], bool]
) -> Iterator[tuple[int, Mapping[str, str]]]:
    names: list[str] = []
    for number, cells in lines:
        if not names and is_header(cells):
            names = cells
            if twice := [column for column in names if names.count(column) > 1]:
                raise SaccadeError(f"{name}:{number}: two columns are called {twice[0]!r}; give each a name of its own")
            continue
        names = names or [str(place) for place in range(1, len(cells) + 1)]
        if len(cells) != len(names):
            raise SaccadeError(f"{name}:{number}: expected {len(names)} columns, got {len(cells)}")
        yield number, dict(zip(names, cells, strict=True))


def pairs(rows: Iterable[Texts]) -> Iterator[Row]:
    return ((number, texts[0], texts[1]) for number, texts in rows)


def _read(path: Path, *, columns: Columns, names: tuple[str, ...]) -> Iterator[Texts]:
    with open_file(path) as file:
        name, number = str(path), 0
        if kind(path) == ".parquet":
            records: Iterable[tuple[int, Mapping[str, Any]]] = _parquet(file, path)
            rows = from_records(records, name, columns, names)
        elif kind(path) == ".jsonl":
            rows = from_records(_json_lines(file, name), name, columns, names)
        elif kind(path):
            cells = _tabs(file, name) if kind(path) == ".tsv" else _commas(file, name)
            rows = _delimited(cells, name, columns, names, header=kind(path) == ".csv")
        else:
            raise SaccadeError(
                f"{path} has no second file: give two line-aligned files, or one {', '.join(KINDS)} file with columns"
            )
        for row in rows:
            number = row[0]
            yield row
        if not number:
            raise SaccadeError(f"{path} is empty; expected at least one {'pair' if names == NAMES else 'text'}")


def from_records(
    records: Iterable[tuple[int, Mapping[str, Any]]], name: str, columns: Columns, names: tuple[str, ...]
) -> Iterator[Texts]:
    """Texts of numbered records (JSON objects, rows of a data set): those of `columns`, or of what `names` means."""
    for number, record in records:
        flat = flatten(record)
        columns = _chosen(columns, list(flat), name, names)
        for column in columns:
            if column not in flat:
                raise unknown_column(f"{name}:{number}", column, list(flat))
            if not isinstance(flat[column], str):
                got = type(flat[column]).__name__
                raise SaccadeError(f"{name}:{number}: expected text in column {column!r}, got {got}")
        yield number, tuple(flat[column] for column in columns)


def are_counted(columns: Sequence[str], first: Sequence[str]) -> bool:
    """Whether columns are numbers and no names; a number of a row may be among the cells of a first line by chance."""
    return all(column.isdecimal() for column in columns) and not all(column in first for column in columns)


def _chosen(columns: Columns, there: list[str], where: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """The columns that were asked for, which must be as many as are wanted, or those that are meant without asking."""
    if columns is not None:
        if len(columns) != len(names):
            raise SaccadeError(
                f"{where}: columns names the {' and the '.join(names)}, got {len(columns)}: {', '.join(columns)}"
            )
        return columns
    if all(name in there for name in names):
        return names
    if len(names) == 1 and len(there) != 1:
        raise SaccadeError(
            f'{where}: which of the columns {", ".join(there)} is the text? say it: columns = ["{there[0]}"]'
        )
    if len(there) < len(names):
        raise SaccadeError(f"{where}: expected at least two columns, source and target, got {len(there)}")
    return tuple(there[: len(names)])


def unknown_column(where: str, column: str, names: list[str]) -> SaccadeError:
    known = ", ".join(names)
    return SaccadeError(f"{where}: no column {column!r}{did_you_mean(column, names)} (columns: {known})")


def flatten(record: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in record.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def _delimited(
    lines: Iterator[tuple[int, list[str]]], name: str, columns: Columns, wanted: tuple[str, ...], *, header: bool
) -> Iterator[Texts]:
    number, first = next(lines, (0, []))
    if not number:
        return
    counted = columns is not None and are_counted(columns, first)
    if counted or (columns is None and not header and not all(column in first for column in wanted)):
        if not counted and len(first) != len(wanted):
            expected = "two columns, source and target" if len(wanted) == 2 else "one column of text"
            raise SaccadeError(
                f"{name}:{number}: expected {expected}, got {len(first)}; "
                f"name them in a header line, or count them: columns = [{', '.join(EXAMPLES[: len(wanted)])}]"
            )
        names = [str(position) for position in range(1, len(first) + 1)]
        lines = _chain((number, first), lines)
    else:
        names = first
    columns = _chosen(columns, names, f"{name}:{number}", wanted)
    for column in columns:
        if column not in names:
            raise unknown_column(f"{name}:{number}", column, names)
    places = [names.index(column) for column in columns]
    for number, cells in lines:
        if len(cells) != len(names):
            raise SaccadeError(f"{name}:{number}: expected {len(names)} columns, got {len(cells)}")
        yield number, tuple(cells[place] for place in places)


def _chain(first: tuple[int, list[str]], rest: Iterator[tuple[int, list[str]]]) -> Iterator[tuple[int, list[str]]]:
    yield first
    yield from rest


def _tabs(file: IO[bytes], name: str) -> Iterator[tuple[int, list[str]]]:
    """No quoting: a tab always ends a cell."""
    return ((number, line.split("\t")) for number, line in numbered_lines(file, name))


def _commas(file: IO[bytes], name: str) -> Iterator[tuple[int, list[str]]]:
    """Cells in double quotes may hold commas and line ends (RFC 4180)."""
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # the default of 131,072 is less than a long document
    reader = csv.reader((line + "\n" for _, line in numbered_lines(file, name)), strict=True)
    try:
        for cells in reader:
            yield reader.line_num, cells
    except csv.Error as error:
        raise SaccadeError(f"{name}:{reader.line_num}: not valid CSV ({error})") from None


def _json_lines(file: IO[bytes], name: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in numbered_lines(file, name):
        try:
            record = json.loads(line)
        except (json.JSONDecodeError, RecursionError) as error:
            raise SaccadeError(f"{name}:{number}: not valid JSON ({error})") from None
        if not isinstance(record, dict):
            raise SaccadeError(f"{name}:{number}: expected one JSON object a line, got {type(record).__name__}")
        if "\\ud" in line.lower() and SURROGATE.search(json.dumps(record, ensure_ascii=False)):
            raise SaccadeError(f"{name}:{number}: text holds half a character (a lone surrogate); give valid Unicode")
        yield number, record


def _parquet(file: IO[bytes], path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    import pyarrow
    import pyarrow.parquet

    with tempfile.TemporaryFile() as unpacked:
        if suffixes(path)[1]:  # parquet is read from its end, a packed stream is not
            shutil.copyfileobj(file, unpacked)
            unpacked.seek(0)
            file = unpacked
        number = 0
        try:
            for batch in pyarrow.parquet.ParquetFile(file).iter_batches(batch_size=1024):
                for record in batch.to_pylist():
                    number += 1
                    yield number, record
        except pyarrow.ArrowException as error:
            raise SaccadeError(f"{path} is not a whole parquet file ({str(error).splitlines()[0]})") from None
