"""Read tables: .tsv, .csv, .jsonl, .parquet.

Documents are in the column `text`, or in the only column. Source and target of pairs, unless the recipe names them, are
* the columns `source` and `target` (or `src` and `tgt`) of a header, record or schema;
* otherwise the only two columns, in their order. The first line of a .csv is a header, that of a .tsv is not.
More columns without these names are an error, which lists them; columns without any name are not counted.
`columns = ["2", "5"]` are numbers from 1 of columns of a .tsv or .csv without a header. Nested fields are named with a
dot: `translation.en`.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import IO, Any

from saccade.config.schema import Corpus
from saccade.data.sources.bad_rows import BadRowError, OnBadRow, raise_error
from saccade.data.sources.columns import (
    UnclearColumnsError,
    find_by_alias,
    is_index,
    list_named,
    resembles_header,
    resembles_text,
    suggest_by_length,
    suggest_columns,
)
from saccade.data.sources.delimited import read_csv, read_tsv
from saccade.data.sources.lines import COMPRESSION_SUFFIXES, did_you_mean, iter_lines, open_file
from saccade.errors import SaccadeError
from saccade.parsing import parse_json

Row = tuple[int, str, str]  # line number, source, target
Texts = tuple[int, tuple[str, ...]]  # line number, any number of texts
Columns = tuple[str, ...] | None

TABLE_SUFFIXES = (".tsv", ".csv", ".jsonl", ".parquet")
PAIR_COLUMNS = ("source", "target")
TEXT_COLUMNS = ("text",)
OTHER_SUFFIXES = {
    **dict.fromkeys((".xlsx", ".xls", ".ods", ".numbers"), "a spreadsheet: save it as CSV in UTF-8"),
    **dict.fromkeys((".pdf", ".doc", ".docx", ".odt", ".rtf"), "no plain text: save it as text in UTF-8"),
    ".json": "JSON: write one object a line, and call it .jsonl",
    ".txt": "plain text: if tabs separate its columns, call it .tsv",
    ".zip": "an archive: unpack it",
}
MAX_CELL_CHARACTERS = 20  # of each cell that a message quotes


def split_suffixes(path: Path) -> tuple[str, str]:
    """Split off format and compression: (".tsv", ".gz") for a.tsv.gz; "" for what a name does not have."""
    compression = path.suffix if path.suffix in COMPRESSION_SUFFIXES else ""
    inner = Path(path.stem) if compression else path
    return (inner.suffix if inner.suffix in TABLE_SUFFIXES else "", compression)


def get_format(path: Path) -> str:
    return split_suffixes(path)[0]


def is_delimited(path: Path) -> bool:
    return get_format(path) in (".tsv", ".csv")


def read_pairs(path: Path, *, columns: Columns, on_bad_row: OnBadRow = raise_error) -> Iterator[Row]:
    """Yield the pairs of a table, each with its line number."""
    return to_pairs(_read_texts(path, columns=columns, names=PAIR_COLUMNS, on_bad_row=on_bad_row))


def read_column(
    path: Path,
    *,
    columns: Columns,
    first: int = 0,
    stop: int | None = None,
    on_bad_row: OnBadRow = raise_error,
) -> Iterator[tuple[int, str]]:
    """Yield the texts of one column, each with its line number; of the rows from `first` to `stop`, counted from 0.

    Of formats other than .parquet, bad rows are not counted for `first` and `stop`.
    """
    rows = _read_texts(path, columns=columns, names=TEXT_COLUMNS, first=first, stop=stop, on_bad_row=on_bad_row)
    return ((number, texts[0]) for number, texts in rows)


def read_row_group_bounds(path: Path) -> list[int]:
    """Return the number of the first row of each row group of a parquet file, and the number of rows."""
    with open_file(path) as file, _open_parquet(file, path) as table:
        groups = [table.metadata.row_group(number).num_rows for number in range(table.metadata.num_row_groups)]
    return [0, *accumulate(groups)]


def read_records(
    path: Path, *, is_header: Callable[[list[str]], bool], on_bad_row: OnBadRow = raise_error
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield (line number, {column: cell}) of each row; the columns are 1, 2, 3 if a .tsv or .csv has no header."""
    with open_file(path) as file:
        name, number = str(path), 0
        if get_format(path) == ".parquet":
            rows: Iterable[tuple[int, Mapping[str, Any]]] = read_parquet(file, path, on_bad_row=on_bad_row)
        elif get_format(path) == ".jsonl":
            rows = read_jsonl(file, name, on_bad_row=on_bad_row)
        else:
            rows = _name_columns(_read_delimited_lines(file, path, on_bad_row), name, is_header, on_bad_row)
        for number, record in rows:
            yield number, record
        if not number:
            raise SaccadeError(f"{path} is empty; expected at least one row")


def _name_columns(
    lines: Iterator[tuple[int, list[str]]], name: str, is_header: Callable[[list[str]], bool], on_bad_row: OnBadRow
) -> Iterator[tuple[int, Mapping[str, str]]]:
    names: list[str] = []
    for number, cells in lines:
        if not names and is_header(cells):
            names = [cell.strip() for cell in cells]
            check_unique(list_named(names), names, f"{name}:{number}")
            continue
        names = names or [str(position) for position in range(1, len(cells) + 1)]
        if len(cells) != len(names):
            on_bad_row(BadRowError(f"{name}:{number}", f"expected {len(names)} columns, got {len(cells)}"))
            continue
        yield number, dict(zip(names, cells, strict=True))


def check_unique(chosen: Iterable[str], names: Sequence[str], where: str) -> None:
    """Raise if a chosen column has the name of another one."""
    for name in chosen:
        if names.count(name) > 1:
            raise SaccadeError(f"{where}: two columns are called {name!r}; give each a name of its own")


def to_pairs(rows: Iterable[Texts]) -> Iterator[Row]:
    return ((number, texts[0], texts[1]) for number, texts in rows)


def find_columns(
    path: Path, *, columns: Columns, names: tuple[str, ...], on_bad_row: OnBadRow = raise_error
) -> tuple[str, ...]:
    """Return the columns that are read as `names`; none if the file is no table, or empty."""
    kind = get_format(path)
    if is_delimited(path):
        with open_file(path) as file:
            lines = islice(_read_delimited_lines(file, path, on_bad_row), 2)
            (number, first), second = next(lines, (0, [])), next(lines, (0, []))[1]
        where, header = f"{path}:{number}", kind == ".csv"
        return _choose_cells(first, where, columns, names, header=header, second=second)[0] if number else ()
    if not kind:
        return ()
    with open_file(path) as file:
        return find_record_columns(_read_records(file, path, on_bad_row), str(path), columns, names, on_bad_row)


def find_record_columns(
    records: Iterable[tuple[int, Mapping[str, Any]]],
    name: str,
    columns: Columns,
    names: tuple[str, ...],
    on_bad_row: OnBadRow = raise_error,
) -> tuple[str, ...]:
    """Return the columns that are read as `names`; none if there is no record."""
    for number, record in records:
        try:
            return _choose_record_columns(columns, flatten(record), f"{name}:{number}", names)
        except BadRowError as error:
            on_bad_row(error)
    return ()


def get_column_numbers(path: Path, columns: Sequence[str]) -> list[str]:
    """Return the numbers from 1 of columns in the header of a .csv or .tsv; none if it lacks one of them."""
    header = [cell.strip() for cell in _read_first(path)[1]]
    return [str(header.index(name) + 1) for name in columns] if set(columns) <= set(header) else []


def inherit_columns(corpus: Corpus, first: Corpus, *, found: Sequence[str] = ()) -> Corpus:
    """Give a table without `columns` those of the first corpus, if it has them.

    `found` are the columns that are read of the first corpus where it names none; the table may have another order.
    """
    path, columns = Path(corpus.files[0]), first.columns or tuple(found)
    if corpus.columns or corpus.format or not columns or len(corpus.files) != 1 or not path.is_file():
        return corpus
    _, cells = _read_first(path)
    cells = [cell.strip() for cell in cells] if isinstance(cells, list) else cells
    by_number = isinstance(cells, list) and are_column_numbers(columns, cells)
    if not first.columns and (by_number or list(cells) == list(columns)):
        return corpus  # they are found without being named
    has_them = max(map(int, columns)) <= len(cells) if by_number else set(columns) <= set(cells)
    return corpus.model_copy(update={"columns": columns}) if has_them else corpus


def _read_first(path: Path, on_bad_row: OnBadRow = raise_error) -> tuple[int, list[str] | dict[str, Any]]:
    """Return number and cells of the first line or record of a table; 0 if there is none."""
    kind = get_format(path)
    if not kind:
        return 0, {}
    with open_file(path) as file:
        if kind in (".parquet", ".jsonl"):
            records = _read_records(file, path, on_bad_row)
            return next(((number, flatten(record)) for number, record in records), (0, {}))
        return next(_read_delimited_lines(file, path, on_bad_row), (0, {}))


def _read_records(file: IO[bytes], path: Path, on_bad_row: OnBadRow) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the records of an open .parquet or .jsonl file."""
    if get_format(path) == ".parquet":
        return read_parquet(file, path, on_bad_row=on_bad_row)
    return read_jsonl(file, str(path), on_bad_row=on_bad_row)


def _read_delimited_lines(file: IO[bytes], path: Path, on_bad_row: OnBadRow) -> Iterator[tuple[int, list[str]]]:
    """Yield the cells of the rows of an open .tsv or .csv file, with the header if there is one."""
    return (read_tsv if get_format(path) == ".tsv" else read_csv)(file, str(path), on_bad_row)


def _read_texts(
    path: Path,
    *,
    columns: Columns,
    names: tuple[str, ...],
    first: int = 0,
    stop: int | None = None,
    on_bad_row: OnBadRow,
) -> Iterator[Texts]:
    with open_file(path) as file:
        name, number = str(path), 0
        if get_format(path) == ".parquet":
            records = read_parquet(file, path, columns or names, first=first, stop=stop, on_bad_row=on_bad_row)
            rows = select_texts(records, name, columns, names, on_bad_row)
        elif get_format(path) == ".jsonl":
            rows = select_texts(read_jsonl(file, name, on_bad_row=on_bad_row), name, columns, names, on_bad_row)
        elif get_format(path):
            is_csv = get_format(path) == ".csv"
            cells = _read_delimited_lines(file, path, on_bad_row)
            rows = _read_delimited(cells, name, columns, names, header=is_csv, on_bad_row=on_bad_row)
        else:
            raise SaccadeError(
                f"{path} has no second file: give two line-aligned files, or one "
                f"{', '.join(TABLE_SUFFIXES)} file with columns{explain_suffix(path)}"
            )
        for row in rows if get_format(path) == ".parquet" else islice(rows, first, stop):
            number = row[0]
            yield row
        if not number and not first and stop is None:
            raise SaccadeError(f"{path} is empty; expected at least one {'pair' if names == PAIR_COLUMNS else 'text'}")


def select_texts(
    records: Iterable[tuple[int, Mapping[str, Any]]],
    name: str,
    columns: Columns,
    names: tuple[str, ...],
    on_bad_row: OnBadRow = raise_error,
) -> Iterator[Texts]:
    """Yield the texts of numbered records in `columns`, or in those that stand for `names` by default."""
    for number, record in records:
        flat, where = flatten(record), f"{name}:{number}"
        try:
            columns = _choose_record_columns(columns, flat, where, names)
            texts = tuple(_get_text(flat, column, where) for column in columns)
        except BadRowError as error:
            on_bad_row(error)
            continue
        yield number, texts


def _get_text(record: Mapping[str, Any], column: str, where: str) -> str:
    if column not in record:
        raise build_unknown_column_error(where, column, list(record))
    if not isinstance(record[column], str):
        raise BadRowError(where, f"expected text in column {column!r}, got {type(record[column]).__name__}")
    return str(record[column])


def are_column_numbers(columns: Sequence[str], first: Sequence[str]) -> bool:
    """Whether columns are given by number: all are digits, and not all of them are cells of the first line."""
    return all(column.isdecimal() for column in columns) and not all(column in first for column in columns)


def _choose_record_columns(
    columns: Columns, record: Mapping[str, Any], where: str, names: tuple[str, ...]
) -> tuple[str, ...]:
    if columns is None and len(record) < len(names):
        raise BadRowError(where, f"{_format_expected(names)}, got {len(record)}")
    texts = {column: value for column, value in record.items() if isinstance(value, str)}
    return _choose_columns(columns, list(record), where, names, candidates=suggest_by_length(texts, len(names)))


def _choose_columns(
    columns: Columns, available: list[str], where: str, names: tuple[str, ...], *, candidates: list[str]
) -> tuple[str, ...]:
    """Return `columns`, which must be as many as `names`, or those that are clear: with these names, or no others.

    Messages suggest `candidates`.
    """
    if columns is not None:
        if len(columns) != len(names):
            raise SaccadeError(
                f"{where}: columns names the {' and the '.join(names)}, got {len(columns)}: {', '.join(columns)}"
            )
        return columns
    if (found := find_by_alias(names, available)) is not None:
        return found
    named = list_named(available)
    if len(named) < len(names):
        raise SaccadeError(f"{where}: {_format_expected(names)}, got {len(named)}")
    if len(named) == len(names) and not any(map(is_index, named)):
        return tuple(named)
    check_unique(named, named, where)
    question = "are the source and the target? name them:" if len(names) == 2 else "is the text? name it:"
    raise UnclearColumnsError(
        f"{where}: which of the columns {', '.join(available)} {question}",
        suggest_columns(candidates, available, len(names)),
        f", or call {'them' if len(names) == 2 else 'it'} {' and '.join(names)}",
    )


def _format_expected(names: tuple[str, ...]) -> str:
    return f"expected {'at least two columns, source and target' if len(names) == 2 else 'a column of text'}"


def build_unknown_column_error(where: str, column: str, names: list[str]) -> BadRowError:
    known = ", ".join(names)
    return BadRowError(where, f"no column {column!r}{did_you_mean(column, names)} (columns: {known})")


def flatten(record: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in record.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def _read_delimited(
    lines: Iterator[tuple[int, list[str]]],
    name: str,
    columns: Columns,
    names: tuple[str, ...],
    *,
    header: bool,
    on_bad_row: OnBadRow,
) -> Iterator[Texts]:
    number, first = next(lines, (0, []))
    if not number:
        return
    columns, header_names = _choose_cells(first, f"{name}:{number}", columns, names, header=header)
    if not header_names:
        header_names = _number_columns(first)
        lines = chain([(number, first)], lines)
    for column in columns:
        if column not in header_names:
            raise SaccadeError(str(build_unknown_column_error(f"{name}:{number}", column, header_names)))
    positions = [header_names.index(column) for column in columns]
    for number, cells in lines:
        if len(cells) != len(header_names):
            on_bad_row(BadRowError(f"{name}:{number}", f"expected {len(header_names)} columns, got {len(cells)}"))
            continue
        yield number, tuple(cells[position] for position in positions)


def _choose_cells(
    first: list[str],
    where: str,
    columns: Columns,
    names: tuple[str, ...],
    *,
    header: bool,
    second: Sequence[str] = (),
) -> tuple[tuple[str, ...], list[str]]:
    """Return the columns to read and, if the first line is a header, their names; else the columns are numbers.

    `second` is the row after the header, if it is known; messages suggest its longest cells.
    """
    available = [cell.strip() for cell in first]
    by_number = columns is not None and are_column_numbers(columns, available)
    if not by_number and (columns is not None or header or find_by_alias(names, available)):
        candidates = suggest_by_length(dict(zip(available, second, strict=False)), len(names)) or available
        wanted = columns and tuple(column.strip() for column in columns)
        chosen = _choose_columns(wanted, available, where, names, candidates=candidates)
        check_unique(chosen, available, where)
        if columns is None:
            check_header(chosen, where, available)
        return chosen, available
    if not by_number and len(first) > len(names):
        numbers, cells = _number_columns(first), ", ".join(map(shorten, first))
        is_header = any(map(is_index, first))
        texts = [number for number, cell in zip(numbers, first, strict=True) if not cell.strip().isdecimal()]
        raise UnclearColumnsError(
            f"{where}: expected {'two columns, source and target' if len(names) == 2 else 'one column of text'}, "
            f"got {len(first)}: {cells}; {'name' if is_header else 'number'} {'them' if len(names) == 2 else 'it'}:",
            suggest_columns(*(available, available) if is_header else (texts, numbers), len(names)),
            "" if is_header else ", or by name if the first line is a header",
        )
    if not by_number and resembles_header(first):
        raise UnclearColumnsError(
            f"{where}: is this line, {' and '.join(map(shorten, available))}, a header? that of a .tsv has the names "
            f"{' and '.join(names)}; name others:",
            available,
            ', or number them if it is an example: ["1", "2"]',
        )
    if len(first) < len(names) and (found := next((one for one in (",", ";", "|") if one in first[0]), "")):
        raise SaccadeError(
            f"{where}: {_format_expected(names)} with a tab between them, got one; if they are separated by {found!r}, "
            "call the file .csv"
        )
    return _choose_columns(columns, _number_columns(first), where, names, candidates=[]), []


def check_header(chosen: Sequence[str], where: str, available: Sequence[str]) -> None:
    """Raise if the names of the chosen columns are rather texts, since the file has no header."""
    if text := next(filter(resembles_text, chosen), None):
        numbers = [str(available.index(name) + 1) for name in chosen]
        raise UnclearColumnsError(
            f"{where}: is this line a header? it has the text {shorten(text)!r}; if the file has no header, number its "
            "columns:",
            numbers,
            ", or name them if it is one",
        )


def _number_columns(cells: Sequence[str]) -> list[str]:
    return [str(number) for number in range(1, len(cells) + 1)]


def explain_suffix(path: Path) -> str:
    """Return what to do with a file of another program, as a part of a message; empty for other files."""
    what = OTHER_SUFFIXES.get(path.suffix.lower())
    return f"; it is {what}" if what else ""


def shorten(text: str) -> str:
    return text if len(text) <= MAX_CELL_CHARACTERS else f"{text[:MAX_CELL_CHARACTERS]}..."


def read_jsonl(
    lines: Iterable[bytes], name: str, *, lines_before: int = 0, on_bad_row: OnBadRow = raise_error
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the records of lines of JSON, with the number of each line."""
    for number, line in iter_lines(lines, name, lines_before=lines_before, on_bad_row=on_bad_row):
        where = f"{name}:{number}"
        try:
            record = parse_json(line, where)
        except SaccadeError as error:
            on_bad_row(BadRowError(where, str(error).removeprefix(f"{where}: ")))
            continue
        if not isinstance(record, dict):
            on_bad_row(BadRowError(where, f"expected one JSON object a line, got {type(record).__name__}"))
            continue
        yield number, record


def read_parquet(
    file: IO[bytes],
    path: Path,
    columns: Sequence[str] = (),
    *,
    first: int = 0,
    stop: int | None = None,
    on_bad_row: OnBadRow = raise_error,
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the rows from `first` to `stop`, reading no row groups before, and no other columns if `columns` exist."""
    import pyarrow

    with _open_parquet(file, path) as table:
        chosen = [*columns] if columns and set(columns) <= set(table.schema_arrow.names) else None
        number = 0
        try:
            for group in range(table.metadata.num_row_groups):
                num_rows = table.metadata.row_group(group).num_rows
                if number + num_rows <= first:
                    number += num_rows
                    continue
                for batch in table.iter_batches(batch_size=1024, row_groups=[group], columns=chosen):
                    skipped = min(max(0, first - number), len(batch))
                    number += skipped
                    for record in _convert_rows(batch.slice(skipped), str(path), number, on_bad_row):
                        if stop is not None and number >= stop:
                            return
                        number += 1
                        if record is not None:
                            yield number, record
        except (pyarrow.ArrowException, OSError, MemoryError) as error:
            raise _build_parquet_error(path, error) from None


@contextmanager
def _open_parquet(file: IO[bytes], path: Path) -> Iterator[Any]:
    """Open a parquet file; a compressed one is decompressed to disk, since parquet needs random access."""
    import pyarrow
    import pyarrow.parquet

    with tempfile.TemporaryFile() as decompressed:
        if split_suffixes(path)[1]:
            shutil.copyfileobj(file, decompressed)
            decompressed.seek(0)
            file = decompressed
        try:
            opened = pyarrow.parquet.ParquetFile(file)
        except (pyarrow.ArrowException, OSError, MemoryError) as error:
            raise _build_parquet_error(path, error) from None
        yield opened


def _build_parquet_error(path: Path, error: BaseException) -> SaccadeError:
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    return SaccadeError(f"{path} is not a whole parquet file ({reason})")


def _convert_rows(batch: Any, name: str, number: int, on_bad_row: OnBadRow) -> list[dict[str, Any] | None]:
    """Convert a batch of parquet rows to records, None for a bad one; `number` rows come before it."""
    try:
        return list(batch.to_pylist())
    except (ValueError, OverflowError):  # invalid UTF-8, or a date that Python has not: find the rows
        records = list[dict[str, Any] | None]()
        for index in range(batch.num_rows):
            try:
                records += batch.slice(index, 1).to_pylist()
            except (ValueError, OverflowError) as error:
                on_bad_row(BadRowError(f"{name}:{number + index + 1}", f"a cell cannot be read ({error})"))
                records.append(None)
        return records
