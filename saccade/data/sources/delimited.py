"""Read lines of cells: .tsv, and .csv as spreadsheets of different countries write it."""

from __future__ import annotations

import csv
import re
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import IO

from saccade.data.sources.bad_rows import BadRowError, OnBadRow
from saccade.data.sources.lines import iter_lines

DELIMITERS = (",", ";", "\t", "|")  # of .csv files; programs of countries with a decimal comma write semicolons
DELIMITER_LINE = re.compile(r'"?sep=(.)"?')  # the first line of some spreadsheets: not a row
NumberedLine = tuple[int, str]
NumberedCells = tuple[int, list[str]]


def read_tsv(file: IO[bytes], name: str, on_bad_row: OnBadRow) -> Iterator[NumberedCells]:
    """Split lines at tabs, without quoting."""
    return ((number, line.split("\t")) for number, line in iter_lines(file, name, on_bad_row=on_bad_row))


def read_csv(file: IO[bytes], name: str, on_bad_row: OnBadRow) -> Iterator[NumberedCells]:
    """Parse CSV; cells in double quotes may contain delimiters and line ends (RFC 4180).

    After a row that cannot be parsed, parsing goes on with the line after its first one: a quote that is not closed
    would swallow all lines up to the next quote. A row has the number of its last line.
    """
    csv.field_size_limit(min(sys.maxsize, 2**31 - 1))  # the default, 131,072, is too small for documents
    lines = iter_lines(file, name, on_bad_row=on_bad_row)
    delimiter, first = choose_delimiter([*islice(lines, 2)])
    again = deque(first)
    record: list[NumberedLine] = []  # the lines of the current row

    def iter_record_lines() -> Iterator[str]:
        while (found := again.popleft() if again else next(lines, None)) is not None:
            record.append(found)
            yield found[1] + "\n"

    reader = csv.reader(iter_record_lines(), strict=True, delimiter=delimiter)
    while True:
        record.clear()
        try:
            cells = next(reader, None)
        except csv.Error as error:
            on_bad_row(BadRowError(f"{name}:{record[0][0]}", f"not valid CSV ({explain_csv_error(error)})"))
            again.extendleft(reversed(record[1:]))
            continue
        if cells is None:
            return
        yield record[-1][0], cells


def choose_delimiter(lines: Sequence[NumberedLine]) -> tuple[str, list[NumberedLine]]:
    """Return the delimiter of a .csv and its first lines, without one that only names the delimiter.

    It is the first one of DELIMITERS that splits header and first row into equally many cells, at least two; otherwise
    the first one that splits the header.
    """
    if lines and (named := DELIMITER_LINE.fullmatch(lines[0][1])):
        return named[1], [*lines[1:]]
    counts = {delimiter: [count_cells(line, delimiter) for _, line in lines] for delimiter in DELIMITERS}
    splitting = [delimiter for delimiter, found in counts.items() if found and found[0] > 1]
    even = [delimiter for delimiter in splitting if len({*counts[delimiter]}) == 1]
    return next(iter([*even, *splitting]), ","), [*lines]


def count_cells(line: str, delimiter: str) -> int:
    try:
        return len(next(csv.reader([line], delimiter=delimiter), []))
    except csv.Error:  # reported when the line is read
        return 1


def explain_csv_error(error: csv.Error) -> str:
    if "new-line character" in str(error):
        return "lines must end with a line feed, not with a carriage return alone; save it again, or use tr '\\r' '\\n'"
    return str(error)
