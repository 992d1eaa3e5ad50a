"""Every check holds for our blocks, and fails for a broken one; a new check needs its broken one in a broken_*.py."""

import pytest
import torch
from broken import BREAKS

from saccade.lectures.catalogue import find, rows
from saccade.lectures.outcomes import outcome
from saccade.lectures.scale import complexity
from saccade.lectures.systems import waiting

CHECKS = {row.row: row for row in rows() if row.measure is not None}
QUICK = [row for row, check in CHECKS.items() if not check.trains]


@pytest.fixture
def clockless(monkeypatch):
    """Time is counted, not measured: a busy machine is no reason to fail."""
    monkeypatch.setattr(complexity, "timed", lambda run, n: float(n**2))
    monkeypatch.setattr(waiting, "seconds", lambda layer, n: float(waiting.products(layer, n)))


def test_every_check_has_a_broken_implementation():
    assert BREAKS.keys() == CHECKS.keys()


@pytest.mark.parametrize("row", QUICK)
def test_quick_rows_hold(row, clockless):
    found = outcome(CHECKS[row])
    assert found.state == "holds", (
        found.error,
        found.measured and [item for item in found.measured.compared if not item.holds],
    )


@pytest.mark.slow
@pytest.mark.parametrize("row", [row for row in CHECKS if row not in QUICK])
def test_rows_that_need_training_hold(row, clockless):
    found = outcome(CHECKS[row])
    assert found.state == "holds", (
        found.error,
        found.measured and [item for item in found.measured.compared if not item.holds],
    )


@pytest.mark.parametrize("row", CHECKS)
def test_a_broken_implementation_is_found(row, monkeypatch):
    BREAKS[row](monkeypatch)
    found = outcome(CHECKS[row])
    assert found.state == "fails"
    assert found.measured is not None, f"the check did not measure anything, it raised {found.error}"


def test_a_check_leaves_random_numbers_and_threads_as_they_were():
    torch.set_num_threads(1)
    state = torch.random.get_rng_state()
    first, second = outcome(find(39)), outcome(find(39))
    assert first.measured == second.measured
    assert torch.equal(state, torch.random.get_rng_state())
    assert torch.get_num_threads() == 1
