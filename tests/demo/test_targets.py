"""What demonstrations should come to."""

import pytest

from saccade.config.load import shipped
from saccade.demo.listing import demonstrations
from saccade.demo.targets import OF_DATA, OF_RECIPE, Target


@pytest.mark.parametrize(
    ("target", "score", "verdict"),
    [
        (Target("accuracy", 95), 95.0, "accuracy >= 95: reached"),
        (Target("accuracy", 95), 94.99, "accuracy >= 95: not reached"),
        (Target("loss", 0.05, lower=True), 0.05, "loss <= 0.05: reached"),
        (Target("loss", 0.05, lower=True), 0.0501, "loss <= 0.05: not reached"),
    ],
)
def test_a_target_is_reached_from_its_side(target, score, verdict):
    assert target.verdict({"other": 0.0, target.metric: score}) == verdict


def test_every_target_is_of_a_demonstration():
    assert set(OF_RECIPE) <= set(shipped())
    assert set(OF_DATA) == {one.data for one in demonstrations()}
