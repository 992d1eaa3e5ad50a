"""Run checks and format their outcomes; each check has its own random seed, so the order does not matter."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch

from saccade.lectures.claims import CheckResult, Comparison, LectureRow, Value
from saccade.lectures.formula import to_text
from saccade.lectures.sources import parse_sources

HOLDS, FAILS, NEEDS_TRAINING = "holds", "fails", "needs training"


@dataclass(frozen=True)
class Outcome:
    """The state of a row, with the result of its check, or the error that the check raised."""

    row: LectureRow
    state: str
    result: CheckResult | None = None
    error: str = ""
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the outcome for JSON."""
        row = self.row
        found: dict[str, Any] = {"row": row.row, "sentence": row.sentence, "state": self.state}
        found["sources"] = [source.as_dict() for source in parse_sources(row.where)]
        if row.measure is None:
            return {**found, "why": row.why}
        found |= {"formula": to_text(row.formula), "latex": row.formula, "seconds": round(self.seconds, 3)}
        if self.result is not None:
            found |= {"compared": [asdict(item) for item in self.result.comparisons], "note": self.result.note}
            found |= {"table": self.result.table} if self.result.table else {}
        return {**found, "error": self.error} if self.error else found


def run_check(row: LectureRow, *, train: bool = True) -> Outcome:
    """Run the check of a row, unless it trains and `train` is false; an exception counts as a failure."""
    if row.measure is None:
        return Outcome(row, row.state)
    if row.trains and not train:
        return Outcome(row, NEEDS_TRAINING)
    begin = time.perf_counter()
    found, error = _run_measure(row.row, row.measure)
    state = HOLDS if found is not None and found.holds else FAILS
    return Outcome(row, state, found, error, time.perf_counter() - begin)


def _run_measure(seed: int, measure: Callable[[], CheckResult]) -> tuple[CheckResult | None, str]:
    with torch.random.fork_rng(devices=[]), torch.enable_grad(), use_one_thread():
        torch.manual_seed(seed)
        try:
            return measure(), ""
        except Exception as error:  # one broken check must not stop the others
            return None, f"{type(error).__name__}: {error}"


@contextmanager
def use_one_thread() -> Iterator[None]:
    """Use one thread: matrices are small, and several threads would distort timings."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def run_checks(rows: Iterable[LectureRow], *, train: bool) -> Iterator[Outcome]:
    """Run the checks of rows one by one and yield each outcome."""
    for row in rows:
        yield run_check(row, train=train)


# ---- formatting


MAX_WRITTEN_NUMBER = 1e15  # above it, numbers are shown in scientific notation


def format_number(value: Value) -> str:
    """Format a value with four significant digits; integers with all digits."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if isinstance(value, int) or (1000 <= abs(value) < MAX_WRITTEN_NUMBER and value == int(value)):
        return f"{int(value):,}"
    return f"{value:.4g}"


def format_comparison(item: Comparison) -> str:
    """Format a comparison as "expected ..., measured ..."."""
    expected = (
        f"{item.tolerance} {format_number(item.expected)}"
        if item.tolerance.startswith("at ")
        else format_number(item.expected)
    )
    near = f" {item.tolerance}" if item.tolerance.startswith("±") else ""
    return f"expected {expected}{near}, measured {format_number(item.measured)}"


def format_line(item: Outcome) -> str:
    """Format an outcome as one line, plus one line for each failed comparison."""
    line = f"{item.row.row:>3}  {item.state:<14}  {item.row.sentence}"
    return "\n".join([line, *(f"       {text}" for text in _format_failures(item))])


def _format_failures(item: Outcome) -> list[str]:
    if item.error:
        return [item.error]
    wrong = [] if item.result is None else [one for one in item.result.comparisons if not one.holds]
    return [f"{one.what}: {format_comparison(one)}" for one in wrong]


def format_full(item: Outcome, *, sources: bool) -> str:
    """Format an outcome with its formula and all comparisons."""
    row = item.row
    lines = [f"row {row.row}: {item.state}", row.sentence]
    lines += [f"    {source.code}: {source}" for source in parse_sources(row.where) if sources]
    if row.measure is None:
        return "\n".join([*lines, f"({row.why})"])
    lines += ["", f"    {to_text(row.formula)}", ""]
    if item.result is not None:
        for one in item.result.comparisons:
            lines += [f"  {'holds' if one.holds else 'FAILS'}  {one.what}", f"         {format_comparison(one)}"]
        lines += [f"\n{item.result.note}"] if item.result.note else []
    return "\n".join([*lines, item.error] if item.error else lines)
