"""Every check fails, by its values, under at least three breaks of saccade's code."""

import pytest

from saccade.breaks.registry import find_break, load_breaks
from saccade.lectures.audit import MIN_BREAKS, try_break
from saccade.lectures.catalogue import load_rows

CHECKS = {row.row: row for row in load_rows() if row.measure is not None}
TRIALS = [(row.row, name, row.trains) for row in CHECKS.values() for name in row.breaks]


@pytest.mark.parametrize("row", CHECKS)
def test_every_check_names_three_breaks(row):
    assert len(set(CHECKS[row].breaks)) >= MIN_BREAKS


@pytest.mark.parametrize(
    ("row", "name"),
    [pytest.param(row, name, marks=[pytest.mark.slow] if trains else []) for row, name, trains in TRIALS],
)
def test_a_check_notices_its_breaks(row, name):
    trial = try_break(CHECKS[row], find_break(name))
    assert trial.state == "fails", trial.error


def test_every_break_is_named_by_a_check():
    named = {name for row in CHECKS.values() for name in row.breaks}
    assert set(load_breaks()) - named == set()
