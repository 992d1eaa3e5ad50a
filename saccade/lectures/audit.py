"""Audit the checks: each must fail, by its values, when the code that it is about is broken."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from saccade.breaks.registry import Break, apply, find_break, load_breaks
from saccade.lectures.claims import Comparison, LectureRow
from saccade.lectures.outcomes import FAILS, Outcome, run_check

MIN_BREAKS = 3  # of a row with a check
NOTICED, MISSED, NOT_MEASURED = "fails", "holds", "raises"  # what a check does under a break


@dataclass(frozen=True)
class Trial:
    """A check under a break; only `fails` counts: an exception or a value that is not finite proves nothing."""

    row: LectureRow
    fault: Break
    state: str
    error: str = ""
    seconds: float = 0.0

    def as_dict(self) -> dict[str, str | int | float]:
        """Return the trial for JSON."""
        found: dict[str, str | int | float] = {"row": self.row.row, "break": self.fault.name, "what": self.fault.what}
        found |= {"state": self.state, "seconds": round(self.seconds, 3)}
        return {**found, "error": self.error} if self.error else found


def choose_breaks(row: LectureRow, *, every: bool) -> list[Break]:
    """The breaks that the row names, or all of them."""
    return list(load_breaks().values()) if every else [find_break(name) for name in row.breaks]


def audit_rows(rows: Iterable[LectureRow], *, every: bool = False) -> Iterator[Trial]:
    """Run the check of each row under each of its breaks."""
    for row in rows:
        for fault in choose_breaks(row, every=every):
            yield try_break(row, fault)


def try_break(row: LectureRow, fault: Break) -> Trial:
    """Run the check of a row with broken code."""
    begin = time.perf_counter()
    with apply(fault):
        outcome = run_check(row)
    state, error = judge(outcome)
    return Trial(row, fault, state, error, time.perf_counter() - begin)


def judge(outcome: Outcome) -> tuple[str, str]:
    """What the check did, and why it does not count if it neither failed by a value nor held."""
    if outcome.state != FAILS:
        return MISSED, ""
    if outcome.result is None:
        return NOT_MEASURED, outcome.error
    wrong = [item for item in outcome.result.comparisons if not item.holds]
    if wrong and not any(map(is_finite, wrong)):
        return NOT_MEASURED, f"not finite: {wrong[0].what}"
    return NOTICED, ""


def is_finite(item: Comparison) -> bool:
    return isinstance(item.measured, str) or math.isfinite(item.measured)


def find_weak_rows(rows: Sequence[LectureRow], trials: Sequence[Trial]) -> dict[int, str]:
    """The rows whose check proves too little, each with the reason."""
    weak = {}
    for row in rows:
        missed = [trial for trial in trials if trial.row.row == row.row and trial.fault.name in row.breaks]
        missed = [trial for trial in missed if trial.state != NOTICED]
        if missed:
            weak[row.row] = "; ".join(format_missed(trial) for trial in missed)
        elif len(set(row.breaks)) < MIN_BREAKS:
            weak[row.row] = f"it names {len(set(row.breaks))} breaks, at least {MIN_BREAKS} are needed"
    return weak


def format_missed(trial: Trial) -> str:
    return f"{trial.state} under {trial.fault.name}" + (f" ({trial.error})" if trial.error else "")


def tabulate(rows: Sequence[LectureRow], trials: Sequence[Trial]) -> list[tuple[str, ...]]:
    """One line for each row: how many of its breaks it noticed, and what it does under each."""
    table: list[tuple[str, ...]] = [("row", "noticed", "breaks")]
    for row in rows:
        own = [trial for trial in trials if trial.row.row == row.row]
        noticed = sum(trial.state == NOTICED for trial in own)
        names = ", ".join(trial.fault.name + ("" if trial.state == NOTICED else f" [{trial.state}]") for trial in own)
        table.append((str(row.row), f"{noticed} of {len(own)}", names))
    return table


def list_breaks(rows: Iterable[LectureRow]) -> list[tuple[str, ...]]:
    """All breaks with the rows that name them."""
    users: Mapping[str, list[int]] = {name: [] for name in load_breaks()}
    for row in rows:
        for name in row.breaks:
            users[find_break(name).name].append(row.row)
    return [
        ("break", "rows", "what the broken code does"),
        *((name, " ".join(map(str, users[name])), fault.what) for name, fault in load_breaks().items()),
    ]
