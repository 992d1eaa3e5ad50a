"""How a model fares in a world, by numbers that can be counted."""

import numpy as np
import pytest

from saccade.config.schema import Corpus
from saccade.data.worlds.episodes import Episode
from saccade.errors import SaccadeError
from saccade.score.playing import covered, gaze, played_pairs, scores_of_episodes

GRID = (2, 3)


def episode(*rewards, success, looks=(), box=None):
    made = Episode(1, actions=[0] * len(rewards), rewards=list(rewards), success=success)
    made.looks, made.boxes = [np.array(look) for look in looks], [box] * len(rewards)
    return made


def test_scores_are_means_over_episodes():
    played = [episode(0.0, 0.0, 1.0, success=True), episode(-1.0, success=False)]
    values = {name: score.value for name, score in scores_of_episodes(played).items()}
    assert values == {"success": 50.0, "reward": 0.0, "steps": 2.0}


def test_a_rectangle_covers_every_cell_that_it_touches():
    assert covered((0.0, 0.0, 0.5, 1 / 3), GRID).tolist() == [[True, False, False], [False] * 3]
    assert covered((0.4, 0.5, 0.6, 0.9), GRID).tolist() == [[False, True, True]] * 2


def test_gaze_is_attention_in_units_of_the_area():
    box = (0.0, 0.0, 0.5, 1 / 3)  # one cell of six
    even = episode(0.0, success=True, looks=[np.full(6, 1 / 6)], box=box)
    assert gaze([even], grid=GRID) == pytest.approx(1.0)
    half = episode(0.0, success=True, looks=[[0.5, 0.1, 0.1, 0.1, 0.1, 0.1]], box=box)
    assert gaze([even, half], grid=GRID) == pytest.approx((1.0 + 3.0) / 2)


def test_without_a_look_or_something_that_matters_there_is_no_gaze():
    box = (0.0, 0.0, 0.5, 0.5)
    assert gaze([episode(0.0, success=True, box=box)], grid=GRID) is None
    assert gaze([episode(0.0, success=True, looks=[np.full(6, 1 / 6)])], grid=GRID) is None


def test_an_episode_is_wanted_to_succeed():
    pairs = played_pairs([Corpus(files=("embedded:greeting",), examples=2)])
    assert pairs == [("embedded:greeting", "success")] * 2
    with pytest.raises(SaccadeError, match="tried in one world at a time, got 2; name one with --data"):
        played_pairs([Corpus(files=("embedded:greeting",)), Corpus(files=("embedded:greeting",))])
