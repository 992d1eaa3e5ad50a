"""What came of the checks: each has random numbers of its own, so that it gives the same alone and among others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch

from saccade.lectures.claims import Compared, Measured, Row, Value
from saccade.lectures.formula import as_text

HOLDS, FAILS, NEEDS_TRAINING = "holds", "fails", "needs training"


@dataclass(frozen=True)
class Outcome:
    """A row and its state; what was measured where it ran, and the error where it could not."""

    row: Row
    state: str
    measured: Measured | None = None
    error: str = ""
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        row = self.row
        found: dict[str, Any] = {"row": row.row, "lecture": row.where, "sentence": row.sentence, "state": self.state}
        if row.measure is None:
            return {**found, "why": row.why}
        found |= {"formula": as_text(row.formula), "latex": row.formula, "seconds": round(self.seconds, 3)}
        if self.measured is not None:
            found |= {"compared": [asdict(item) for item in self.measured.compared], "note": self.measured.note}
            found |= {"table": self.measured.table} if self.measured.table else {}
        return {**found, "error": self.error} if self.error else found


def outcome(row: Row, *, train: bool = True) -> Outcome:
    """Runs a check, unless it takes minutes and nobody asked for that; an exception in it is a failure of the row."""
    if row.measure is None:
        return Outcome(row, row.state)
    if row.trains and not train:
        return Outcome(row, NEEDS_TRAINING)
    begin = time.perf_counter()
    found, error = _measured(row.row, row.measure)
    state = HOLDS if found is not None and found.holds else FAILS
    return Outcome(row, state, found, error, time.perf_counter() - begin)


def _measured(seed: int, measure: Callable[[], Measured]) -> tuple[Measured | None, str]:
    with torch.random.fork_rng(devices=[]), torch.enable_grad(), one_thread():
        torch.manual_seed(seed)
        try:
            return measure(), ""
        except Exception as error:  # whatever a check meets, the other rows are still of interest
            return None, f"{type(error).__name__}: {error}"


@contextmanager
def one_thread() -> Iterator[None]:
    """Matrices are so small here that threads would only wait for each other, and times would mean nothing."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def outcomes(rows: Iterable[Row], *, train: bool) -> Iterator[Outcome]:
    """One after the other, as they are known."""
    for row in rows:
        yield outcome(row, train=train)


# ---- as text


LARGEST = 1e15  # above which nobody counts digits


def number(value: Value) -> str:
    """As many digits as matter."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    if isinstance(value, int) or (1000 <= abs(value) < LARGEST and value == int(value)):
        return f"{int(value):,}"
    return f"{value:.4g}"


def comparison(item: Compared) -> str:
    """expected ... measured ..., as a reader wants to see it."""
    expected = (
        f"{item.tolerance} {number(item.expected)}" if item.tolerance.startswith("at ") else number(item.expected)
    )
    near = f" {item.tolerance}" if item.tolerance.startswith("±") else ""
    return f"expected {expected}{near}, measured {number(item.measured)}"


def as_line(item: Outcome) -> str:
    """Row, state, sentence; what is wrong where something is."""
    line = f"{item.row.row:>3}  {item.state:<14}  {item.row.where.split(',')[0]:<14}  {item.row.sentence}"
    return "\n".join([line, *(f"       {text}" for text in _failures(item))])


def _failures(item: Outcome) -> list[str]:
    if item.error:
        return [item.error]
    wrong = [] if item.measured is None else [one for one in item.measured.compared if not one.holds]
    return [f"{one.what}: {comparison(one)}" for one in wrong]


def in_full(item: Outcome) -> str:
    """The row with its formula and everything that was compared."""
    row = item.row
    lines = [f"row {row.row}, {row.where}: {item.state}", row.sentence]
    if row.measure is None:
        return "\n".join([*lines, f"({row.why})"])
    lines += ["", f"    {as_text(row.formula)}", ""]
    if item.measured is not None:
        for one in item.measured.compared:
            lines += [f"  {'holds' if one.holds else 'FAILS'}  {one.what}", f"         {comparison(one)}"]
        lines += [f"\n{item.measured.note}"] if item.measured.note else []
    return "\n".join([*lines, item.error] if item.error else lines)
