import math

import pytest

from saccade.config.schema import Schedule
from saccade.errors import SaccadeError
from saccade.train.schedule import build_schedule


def rates(kind, *, lr=None, warmup=4, floor=0.0, dim=512, total=20):
    lr = (1.0 if kind == "warmup" else 0.1) if lr is None else lr
    return build_schedule(Schedule(kind=kind, lr=lr, warmup_steps=warmup, min_lr=floor), dim=dim, total=total)


def test_warmup_peaks_at_its_last_step_with_the_value_of_the_paper():
    rate = rates("warmup", warmup=4000)

    assert rate(4000) == pytest.approx(6.988e-4, rel=1e-4)
    assert max(range(1, 9000), key=rate) == 4000


def test_warmup_follows_the_equation():
    rate = rates("warmup", lr=3.0, warmup=7, dim=11)

    assert rate(5) == pytest.approx(3.0 * 11**-0.5 * 5 * 7**-1.5)
    assert rate(13) == pytest.approx(3.0 * 11**-0.5 * 13**-0.5)


@pytest.mark.parametrize("kind", ["warmup", "linear", "cosine", "constant"])
def test_step_zero_is_defined_as_step_one(kind):
    assert rates(kind)(0) == rates(kind)(1) > 0


@pytest.mark.parametrize("kind", ["warmup", "linear", "cosine", "constant"])
def test_no_warmup_starts_at_the_peak(kind):
    rate = rates(kind, warmup=0)

    assert rate(1) == max(rate(step) for step in range(1, 20))


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_falling_schedules_go_from_lr_to_floor(kind):
    rate = rates(kind, lr=0.05, warmup=4, floor=0.01, total=20)

    assert rate(2) == pytest.approx(0.025)
    assert rate(4) == pytest.approx(0.05)
    assert rate(12) == pytest.approx(0.03)  # half of the way down
    assert rate(20) == rate(30) == pytest.approx(0.01)


def test_cosine_is_a_cosine():
    assert rates("cosine", lr=0.1, warmup=0, total=8)(2) == pytest.approx((1 + math.cos(math.pi / 4)) / 20)


def test_constant_rises_and_stays():
    rate = rates("constant", lr=0.04, total=None)

    assert [rate(1), rate(4), rate(1000)] == [0.01, 0.04, 0.04]


def test_falling_schedule_without_steps_is_refused():
    with pytest.raises(SaccadeError, match="train.steps is not set"):
        rates("cosine", total=None)


def test_run_that_ends_before_its_peak_only_rises():
    rate = rates("linear", warmup=20, total=10)

    assert [rate(1), rate(10), rate(20), rate(21)] == pytest.approx([0.005, 0.05, 0.1, 0.0])
