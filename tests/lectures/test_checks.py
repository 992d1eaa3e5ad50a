"""Every check holds for our code; test_audit.py tests that it fails for broken code."""

import pytest
import torch

from saccade.lectures.catalogue import find_row, load_rows
from saccade.lectures.outcomes import run_check

CHECKS = {row.row: row for row in load_rows() if row.measure is not None}
QUICK = [row for row, check in CHECKS.items() if not check.trains]


@pytest.mark.parametrize("row", QUICK)
def test_quick_rows_hold(row):
    found = run_check(CHECKS[row])
    assert found.state == "holds", (
        found.error,
        found.result and [item for item in found.result.comparisons if not item.holds],
    )


@pytest.mark.slow
@pytest.mark.parametrize("row", [row for row in CHECKS if row not in QUICK])
def test_rows_that_need_training_hold(row):
    found = run_check(CHECKS[row])
    assert found.state == "holds", (
        found.error,
        found.result and [item for item in found.result.comparisons if not item.holds],
    )


def test_a_check_leaves_random_numbers_and_threads_as_they_were():
    torch.set_num_threads(1)
    state = torch.random.get_rng_state()
    first, second = run_check(find_row(39)), run_check(find_row(39))
    assert first.result == second.result
    assert torch.equal(state, torch.random.get_rng_state())
    assert torch.get_num_threads() == 1
