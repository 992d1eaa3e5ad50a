"""Target scores of the demonstrations."""

from pathlib import Path

import pytest

import saccade
from saccade.config.load import get_recipe_path, list_recipes
from saccade.demo.listing import list_demonstrations
from saccade.demo.targets import DATA_TARGETS, RECIPE_TARGETS, Target, get_target
from saccade.errors import SaccadeError


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
    shipped = Path(saccade.__file__).parent / "recipes"
    own = [one for one in list_demonstrations() if get_recipe_path(one.name).parent == shipped]
    assert set(DATA_TARGETS) == {one.data for one in own}


def test_a_recipe_may_name_its_own_target():
    found = {one.name: str(one.target) for one in list_demonstrations()}
    assert found["listen-attend-walk"] == "success >= 90" and found["show-attend-interact"] == "success >= 95"
    assert get_target("t5", "words", {"metric": "bleu", "number": 30}) == Target("bleu", 30)
    assert get_target("mine", "unknown") is None
    with pytest.raises(SaccadeError, match=r"recipe 'mine': tiny.target is a table .*metric = .* got \{'bleu'"):
        get_target("mine", "words", {"bleu": 30})
