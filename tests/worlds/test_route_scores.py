"""Success of routes by their end pose."""

import json

import pytest

from saccade.errors import SaccadeError
from saccade_worlds.navigation.scores import find_end_pose, route_scores

# In this world a way leads to the left of 3,4 and none to the right of 2,4 but back.
START = json.dumps({"instruction": "go", "map": "embedded:worlds/0", "start": [3, 4, 270]})


def test_routes_are_scored_by_their_end():
    assert str(find_end_pose(START, "forward right stop left")) == "2,4,0"
    outputs = ["forward right stop", "left forward right right stop", "forward stop", "stop"]
    references = ["forward right stop", "forward stop", "forward left stop", "forward stop"]
    scores = route_scores([START] * 4, outputs, references)
    assert {name: score.value for name, score in scores.items()} == {"success": 25, "place": 50, "accuracy": 25}


def test_a_detour_is_a_success_but_not_the_same_actions():
    scores = route_scores([START], ["left left left left stop"], ["stop"])
    assert (scores["success"].value, scores["accuracy"].value) == (100, 0)


def test_no_routes_are_refused():
    with pytest.raises(SaccadeError, match="no routes were given"):
        route_scores([], [], [])
