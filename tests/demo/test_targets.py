"""Target scores of the demonstrations."""

import pytest

from saccade.config.load import list_recipes
from saccade.demo.listing import list_demonstrations
from saccade.demo.targets import DATA_TARGETS, RECIPE_TARGETS, Target


@pytest.mark.parametrize(
    ("target", "score", "verdict"),
    [
        (Target("accuracy", 95), 95.0, "accuracy >= 95: reached"),
        (Target("accuracy", 95), 94.99, "accuracy >= 95: not reached"),
        (Target("loss", 0.05, lower_is_better=True), 0.05, "loss <= 0.05: reached"),
        (Target("loss", 0.05, lower_is_better=True), 0.0501, "loss <= 0.05: not reached"),
    ],
)
def test_a_target_is_reached_from_its_side(target, score, verdict):
    assert target.format_verdict({"other": 0.0, target.metric: score}) == verdict


def test_every_target_is_of_a_demonstration():
    assert set(RECIPE_TARGETS) <= set(list_recipes())
    assert set(DATA_TARGETS) == {one.data for one in list_demonstrations()}
