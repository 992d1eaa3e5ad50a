"""Killed at any moment and resumed, a run ends with the bits of one that was never interrupted."""

import random
import signal
import time

import pytest
import small

TRAIN = {"ema": 0.9, "keep": 2}
MOMENTS = [
    ("batch", 1),  # before the first step: nothing is there but the recipe
    ("batch", 28),  # in the middle of an accumulation
    ("batch", 39),  # between two steps, in the middle of an epoch
    ("update", 20),  # with gradients, before the update
    ("validation", 2),
    ("best", 2),  # a new best is about to be written
    ("file", 6),  # half of the optimizer of the second checkpoint
    ("file", 12),  # half of state.json
    ("rename", 5),  # all is written, and has not got its name
    ("prune", 3),  # the new one is there, the old ones still are
]


@pytest.fixture(scope="module")
def uninterrupted(finished, tmp_path_factory):
    run = tmp_path_factory.mktemp("uninterrupted") / "run"
    assert finished(small.train_or_resume, str(run), TRAIN) == 0
    return run


def told(run):
    """What the run has reported, without what depends on the clock."""
    return [(line["event"], line["step"], line["loss"]) for line in small.read_metrics(run)]


def assert_same(run, uninterrupted):
    assert small.weights(run) == small.weights(uninterrupted)
    assert small.weights(run, 24) == small.weights(uninterrupted, 24)
    assert told(run) == told(uninterrupted)
    assert not list(run.rglob(".*"))


@pytest.mark.parametrize(("place", "nth"), MOMENTS)
def test_killed_and_resumed_is_bit_identical(finished, uninterrupted, tmp_path, place, nth):
    run = tmp_path / "run"

    assert finished(small.train_and_die, str(run), TRAIN, place, nth) == -signal.SIGKILL
    assert finished(small.train_or_resume, str(run), TRAIN) == 0

    assert_same(run, uninterrupted)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(10))
def test_killed_at_random_times_is_bit_identical(processes, finished, uninterrupted, tmp_path, number):
    run, draw = tmp_path / "run", random.Random(number)
    process = processes.Process(target=small.train_or_resume, args=(str(run), TRAIN))
    process.start()
    while not run.exists():
        time.sleep(0.001)
    time.sleep(draw.uniform(0.0, 0.6))
    process.kill()
    process.join()

    assert finished(small.train_or_resume, str(run), TRAIN) == 0
    assert_same(run, uninterrupted)
