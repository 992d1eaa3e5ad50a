"""All rows of the lectures, in their order: checks, and prose."""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import ModuleType
from typing import NamedTuple

from saccade.errors import SaccadeError
from saccade.lectures import tables
from saccade.lectures.attention import (
    alignment,
    attention,
    blocks,
    columns,
    depth,
    heads,
    masks,
    permutation,
    positions,
    scores,
)
from saccade.lectures.claims import Check
from saccade.lectures.scale import complexity, families, probing, prompting, scaling, training
from saccade.lectures.systems import (
    asking,
    bottleneck,
    decoding,
    elsewhere,
    interacting,
    listening,
    recurrent,
    showing,
    systems,
    vision,
    waiting,
    walking,
)

THEMES: tuple[ModuleType, ...] = (
    recurrent, systems, attention, scores, columns, permutation, masks, heads, positions, blocks, complexity, scaling,
    decoding, prompting, families, bottleneck, alignment, waiting, depth, training, probing,
    asking, elsewhere, interacting, listening, showing, vision, walking,
)  # fmt: skip


@dataclass(frozen=True)
class Unmeasured:
    """A row that states no fact."""

    row: int
    where: str
    sentence: str
    state: str
    why: str  # nothing is measured


Row = Check | Unmeasured


class Place(NamedTuple):
    """Where a row stands: lecture, line."""

    lecture: str
    line: int


def rows() -> list[Row]:
    """All of them, by number."""
    checks = [thing for theme in THEMES for thing in vars(theme).values() if isinstance(thing, Check)]
    others = [Unmeasured(**item) for item in tables.read("rows.toml")["rows"]]
    return sorted([*checks, *others], key=lambda row: row.row)


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
