"""All rows of the lectures: checks, and prose from rows.toml."""

from __future__ import annotations

import re
from importlib import import_module
from pkgutil import iter_modules
from typing import NamedTuple

from saccade.config.plugins import load_modules
from saccade.errors import SaccadeError
from saccade.lectures import attention, scale, systems, tables
from saccade.lectures.claims import CHECKS, LectureRow

TOPICS = (attention, scale, systems)  # packages whose modules register their checks on import
ENTRY_POINTS = "saccade.lectures"  # group of entry points of installed plugins whose modules do the same


class Place(NamedTuple):
    """The lecture and the line of a row."""

    lecture: str
    line: int


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


def load_titles() -> dict[str, str]:
    """Return the title of each lecture by its short name, such as S3."""
    return dict(tables.read_table("rows.toml")["lectures"])


def find_places(where: str) -> list[Place]:
    """Return the first line of a row in each of its lectures, from a text such as "S1:24-29, S4:28-33"."""
    found: dict[str, int] = {}
    for lecture, line in re.findall(r"(S\d):(\d+)", where):
        found.setdefault(lecture, int(line))
    return [Place(lecture, line) for lecture, line in found.items()]


def get_rows_in_order(lecture: str) -> list[LectureRow]:
    """Return the rows of one lecture in the order of its lines."""
    if lecture not in load_titles():
        raise SaccadeError(f"there is no lecture '{lecture}'; lectures are {', '.join(load_titles())}")
    found = [
        (place.line, row.row, row)
        for row in load_rows()
        for place in find_places(row.where)
        if place.lecture == lecture
    ]
    return [row for _, _, row in sorted(found, key=lambda item: item[:2])]
