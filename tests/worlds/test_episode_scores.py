"""Scores of episodes, counted by hand."""

import numpy as np
import pytest

from saccade.config.schema import Corpus
from saccade.errors import SaccadeError
from saccade_worlds.playing.episodes import Episode
from saccade_worlds.playing.scores import (
    compute_attention_ratio,
    list_episode_pairs,
    mask_covered_cells,
    score_episodes,
)

GRID = (2, 3)


def episode(*rewards, success, attention=(), box=None):
    result = Episode(1, actions=[0] * len(rewards), rewards=list(rewards), success=success)
    result.attention, result.boxes = [np.array(weights) for weights in attention], [box] * len(rewards)
    return result


def test_scores_are_means_over_episodes():
    played = [episode(0.0, 0.0, 1.0, success=True), episode(-1.0, success=False)]
    values = {name: score.value for name, score in score_episodes(played).items()}
    assert values == {"success": 50.0, "reward": 0.0, "steps": 2.0}


def test_a_rectangle_covers_every_cell_that_it_touches():
    assert mask_covered_cells((0.0, 0.0, 0.5, 1 / 3), GRID).tolist() == [[True, False, False], [False] * 3]
    assert mask_covered_cells((0.4, 0.5, 0.6, 0.9), GRID).tolist() == [[False, True, True]] * 2


def test_attention_ratio_is_normalized_by_area():
    box = (0.0, 0.0, 0.5, 1 / 3)  # one cell of six
    even = episode(0.0, success=True, attention=[np.full(6, 1 / 6)], box=box)
    assert compute_attention_ratio([even], grid=GRID) == pytest.approx(1.0)
    half = episode(0.0, success=True, attention=[[0.5, 0.1, 0.1, 0.1, 0.1, 0.1]], box=box)
    assert compute_attention_ratio([even, half], grid=GRID) == pytest.approx((1.0 + 3.0) / 2)


def test_without_attention_or_relevant_area_there_is_no_ratio():
    box = (0.0, 0.0, 0.5, 0.5)
    assert compute_attention_ratio([episode(0.0, success=True, box=box)], grid=GRID) is None
    assert compute_attention_ratio([episode(0.0, success=True, attention=[np.full(6, 1 / 6)])], grid=GRID) is None


def test_success_is_the_expected_outcome():
    pairs = list_episode_pairs([Corpus(files=("embedded:greeting",), examples=2)])
    assert pairs == [("embedded:greeting", "success")] * 2
    with pytest.raises(SaccadeError, match="evaluated in one world at a time, got 2; name one with --data"):
        list_episode_pairs([Corpus(files=("embedded:greeting",)), Corpus(files=("embedded:greeting",))])
