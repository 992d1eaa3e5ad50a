"""A claim of the lectures as something that is measured: what was expected, what came out, how near that must be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from saccade.lectures.drawing import Drawing

Value = float | int | str


@dataclass(frozen=True)
class Compared:
    """One number of a claim beside the number that was measured."""

    what: str
    expected: Value
    measured: Value
    tolerance: str  # how the two must agree, in words
    holds: bool


def near(what: str, measured: float, expected: float, *, within: float) -> Compared:
    """The two differ by at most `within`; what is no number never holds."""
    return Compared(what, expected, measured, f"± {within:.3g}", abs(measured - expected) <= within)


def same(what: str, measured: Value, expected: Value) -> Compared:
    """The two are equal, as counts, texts and shapes can be."""
    return Compared(what, expected, measured, "exactly", measured == expected)


def at_most(what: str, measured: float, limit: float) -> Compared:
    return Compared(what, limit, measured, "at most", measured <= limit)


def at_least(what: str, measured: float, limit: float) -> Compared:
    return Compared(what, limit, measured, "at least", measured >= limit)


@dataclass(frozen=True)
class Measured:
    """What a check found: it holds where every comparison does."""

    compared: tuple[Compared, ...]
    drawing: Drawing | None = None
    note: str = ""
    table: tuple[tuple[str, ...], ...] = ()  # titles and rows, where the notes have a table

    @property
    def holds(self) -> bool:
        return bool(self.compared) and all(item.holds for item in self.compared)


def measured(
    *compared: Compared, drawing: Drawing | None = None, note: str = "", table: Sequence[tuple[str, ...]] = ()
) -> Measured:
    return Measured(compared, drawing, note, tuple(table))


@dataclass(frozen=True)
class Row:
    """A row of the lectures: a fact with the function that measures it, or a sentence that states none."""

    row: int
    where: str  # lecture and line, such as "S3:121"; several are separated by commas
    sentence: str
    formula: str = ""  # LaTeX, in the subset that formula.py reads
    code: tuple[Any, ...] = ()  # the blocks that are measured
    measure: Callable[[], Measured] | None = None
    trains: bool = False  # takes minutes, so that it runs only when asked
    state: str = ""  # of a row that states no fact: what it is instead
    why: str = ""  # and why nothing is measured


CHECKS: list[Row] = []  # filled by `check`, as the modules of the topics are imported


def check(
    row: int, where: str, sentence: str, *, formula: str, code: Sequence[Any] = (), trains: bool = False
) -> Callable[[Callable[[], Measured]], Row]:
    """Make a row of the function that measures it, and register it."""

    def register(measure: Callable[[], Measured]) -> Row:
        CHECKS.append(Row(row, where, sentence, formula, tuple(code), measure, trains))
        return CHECKS[-1]

    return register
