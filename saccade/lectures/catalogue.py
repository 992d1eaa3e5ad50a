"""All rows of the lectures: checks, and prose from rows.toml."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from saccade.config.plugins import load_modules
from saccade.errors import SaccadeError
from saccade.lectures import attention, scale, systems, tables
from saccade.lectures.claims import CHECKS, LectureRow
from saccade.lectures.sources import load_notes, parse_sources

TOPICS = (attention, scale, systems)  # packages whose modules register their checks on import
ENTRY_POINTS = "saccade.lectures"  # group of entry points of installed plugins whose modules do the same


def load_rows() -> list[LectureRow]:
    """Return all rows, sorted by number."""
    for topic in TOPICS:
        for module in iter_modules(topic.__path__, f"{topic.__name__}."):
            import_module(module.name)
    load_modules(ENTRY_POINTS)
    others = [LectureRow(**item) for item in tables.read_table("rows.toml")["rows"]]
    return sorted([*CHECKS, *others], key=lambda row: row.row)


def find_row(number: int) -> LectureRow:
    """Return the row of this number."""
    known = load_rows()
    for row in known:
        if row.row == number:
            return row
    raise SaccadeError(
        f"there is no row {number}; rows are {known[0].row} to {known[-1].row}, see `saccade lectures list`"
    )


def get_rows_in_order(code: str) -> list[LectureRow]:
    """Return the rows of one set of notes in the order of its lines."""
    if code not in load_notes():
        known = ", ".join(f"{name} ({notes.title})" for name, notes in load_notes().items())
        raise SaccadeError(f"there is no lecture '{code}'; lectures are {known}")
    found = [
        (source.first_line, row.row, row)
        for row in load_rows()
        for source in parse_sources(row.where)
        if source.notes.code == code
    ]
    return [row for _, _, row in sorted(found, key=lambda item: item[:2])]
