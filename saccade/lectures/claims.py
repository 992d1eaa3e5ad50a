"""A claim of the lectures as something that is measured: what was expected, what came out, how near that must be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
class Lines:
    """Curves over one axis: name -> (x, y)."""

    x: str
    y: str
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]]
    caption: str
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class Matrix:
    """A table of numbers drawn as colours: rows look at columns, or rows are positions and columns features."""

    rows: str
    columns: str
    values: Sequence[Sequence[float]]
    caption: str
    row_labels: Sequence[str] = ()
    column_labels: Sequence[str] = ()


Drawing = Lines | Matrix


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
class Check:
    """A row of the lectures with the function that measures it."""

    row: int
    where: str  # lecture and line, such as "S3:121"; several are separated by commas
    sentence: str
    formula: str  # LaTeX, in the subset that formula.py reads
    code: tuple[Any, ...]  # the blocks that are measured
    measure: Callable[[], Measured]
    trains: bool  # takes minutes, so that it runs only when asked


def check(
    row: int, where: str, sentence: str, *, formula: str, code: Sequence[Any] = (), trains: bool = False
) -> Callable[[Callable[[], Measured]], Check]:
    """Makes a check of the function that measures it."""
    return lambda measure: Check(row, where, sentence, formula, tuple(code), measure, trains)
