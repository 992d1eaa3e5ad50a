"""Every check fails, by its values, under at least three breaks of saccade's code."""

from collections import Counter

import pytest

from saccade.breaks.registry import find_break, load_breaks
from saccade.lectures.audit import MIN_BREAKS, try_break
from saccade.lectures.catalogue import load_rows

CHECKS = {row.row: row for row in load_rows() if row.measure is not None}
TRIALS = [(row.row, name) for row in CHECKS.values() for name in row.breaks]
USES = Counter(name for _, name in TRIALS)


def choose_quick_breaks(row) -> set[str]:
    """Of a check that does not train: uniform attention, where it is one of its breaks, and those of fewest checks."""
    ranked = sorted(row.breaks, key=lambda name: (name != "uniform-attention", USES[name]))
    return set() if row.trains else set(ranked[:MIN_BREAKS])


QUICK = {row: choose_quick_breaks(CHECKS[row]) for row in CHECKS}


@pytest.mark.parametrize("row", CHECKS)
def test_every_check_names_three_breaks(row):
    assert len(set(CHECKS[row].breaks)) >= MIN_BREAKS


@pytest.mark.parametrize(
    ("row", "name"),
    [pytest.param(row, name, marks=[] if name in QUICK[row] else [pytest.mark.slow]) for row, name in TRIALS],
)
def test_a_check_notices_its_breaks(row, name):
    trial = try_break(CHECKS[row], find_break(name))
    assert trial.state == "fails", trial.error


def test_every_break_is_named_by_a_check():
    named = {name for row in CHECKS.values() for name in row.breaks}
    assert set(load_breaks()) - named == set()
