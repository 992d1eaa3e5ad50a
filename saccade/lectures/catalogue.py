"""All rows of the lectures, in their order: checks, and prose."""

from __future__ import annotations

import re
from importlib import import_module
from pkgutil import iter_modules
from typing import NamedTuple

from saccade.errors import SaccadeError
from saccade.lectures import attention, scale, systems, tables
from saccade.lectures.claims import CHECKS, Row

TOPICS = (attention, scale, systems)  # packages; every module in them registers its checks when it is imported


class Place(NamedTuple):
    """Where a row stands: lecture, line."""

    lecture: str
    line: int


def rows() -> list[Row]:
    """All of them, by number."""
    for topic in TOPICS:
        for module in iter_modules(topic.__path__, f"{topic.__name__}."):
            import_module(module.name)
    others = [Row(**item) for item in tables.read("rows.toml")["rows"]]
    return sorted([*CHECKS, *others], key=lambda row: row.row)


def find(number: int) -> Row:
    """One row; a number that is none of ours is the user's mistake."""
    known = rows()
    for row in known:
        if row.row == number:
            return row
    raise SaccadeError(
        f"there is no row {number}; rows are {known[0].row} to {known[-1].row}, see `saccade lectures list`"
    )


def lectures() -> dict[str, str]:
    """Short name -> title."""
    return dict(tables.read("rows.toml")["lectures"])


def places(where: str) -> list[Place]:
    """Where a row begins in each lecture that has it, such as S1:24-29, S4:28-33."""
    found: dict[str, int] = {}
    for lecture, line in re.findall(r"(S\d):(\d+)", where):
        found.setdefault(lecture, int(line))
    return [Place(lecture, line) for lecture, line in found.items()]


def in_slide_order(lecture: str) -> list[Row]:
    """The rows of one lecture in the order of its lines."""
    if lecture not in lectures():
        raise SaccadeError(f"there is no lecture '{lecture}'; lectures are {', '.join(lectures())}")
    found = [(place.line, row.row, row) for row in rows() for place in places(row.where) if place.lecture == lecture]
    return [row for _, _, row in sorted(found, key=lambda item: item[:2])]
