"""Claims of the lectures as checks: each compares measured values with expected ones, within a tolerance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from saccade.lectures.drawing import Drawing

Value = float | int | str


@dataclass(frozen=True)
class Comparison:
    """An expected value of a claim and the measured value."""

    what: str
    expected: Value
    measured: Value
    tolerance: str  # how the two must agree, such as "at most"
    holds: bool


def expect_near(what: str, measured: float, expected: float, *, within: float) -> Comparison:
    """Expect the two to differ by at most `within`; NaN never holds."""
    return Comparison(what, expected, measured, f"± {within:.3g}", abs(measured - expected) <= within)


def expect_equal(what: str, measured: Value, expected: Value) -> Comparison:
    """Expect the two to be equal (counts, strings, shapes)."""
    return Comparison(what, expected, measured, "exactly", measured == expected)


def expect_at_most(what: str, measured: float, limit: float) -> Comparison:
    return Comparison(what, limit, measured, "at most", measured <= limit)


def expect_at_least(what: str, measured: float, limit: float) -> Comparison:
    return Comparison(what, limit, measured, "at least", measured >= limit)


@dataclass(frozen=True)
class CheckResult:
    """The result of a check, which holds if every comparison does."""

    comparisons: tuple[Comparison, ...]
    drawing: Drawing | None = None
    note: str = ""
    table: tuple[tuple[str, ...], ...] = ()  # titles and rows, if the lecture has a table

    @property
    def holds(self) -> bool:
        return bool(self.comparisons) and all(item.holds for item in self.comparisons)


def build_result(
    *comparisons: Comparison, drawing: Drawing | None = None, note: str = "", table: Sequence[tuple[str, ...]] = ()
) -> CheckResult:
    return CheckResult(comparisons, drawing, note, tuple(table))


@dataclass(frozen=True)
class LectureRow:
    """A row of the lecture catalogue: a claim with the function that checks it, or prose without a claim."""

    row: int
    where: str  # notes and line, such as "S3:121" (sources.py); several are separated by commas
    sentence: str
    formula: str = ""  # LaTeX, in the subset that formula.py reads
    code: tuple[Any, ...] = ()  # the functions and classes under test
    measure: Callable[[], CheckResult] | None = None
    trains: bool = False  # takes minutes, so it runs only on request
    recipes: tuple[str, ...] = ()  # that the claim is about, beside those of its topic
    breaks: tuple[str, ...] = ()  # names of faults in saccade's code (`saccade.breaks`) under which the check must fail
    state: str = ""  # of a row without a check, such as "prose"
    why: str = ""  # why it has no check


CHECKS: list[LectureRow] = []  # filled by `check` when the modules are imported


def check(
    row: int,
    where: str,
    sentence: str,
    *,
    formula: str,
    code: Sequence[Any] = (),
    trains: bool = False,
    recipes: Sequence[str] = (),
    breaks: Sequence[str] = (),
) -> Callable[[Callable[[], CheckResult]], LectureRow]:
    """Register the decorated function as the check of a row."""

    def register(measure: Callable[[], CheckResult]) -> LectureRow:
        found = LectureRow(row, where, sentence, formula, tuple(code), measure, trains, tuple(recipes), tuple(breaks))
        CHECKS.append(found)
        return found

    return register
