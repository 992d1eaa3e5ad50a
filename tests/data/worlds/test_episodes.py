"""Episodes in worlds, and batches of them."""

import numpy as np
import pytest
import torch

from saccade.config.load import load
from saccade.config.schema import Corpus, GridReader
from saccade.data.worlds.episodes import Episodes, batch_of, opened, worlds_of
from saccade.data.worlds.greeting import LIMIT, Greeting
from saccade.errors import SaccadeError

READER = GridReader(size=32, channels=(4, 4, 4))
WAIT, CALL = 0, 1


def world(reader=READER, longest=LIMIT):
    return Episodes(Corpus(files=("embedded:greeting",)), reader, longest=longest)


def waited(episodes, number, steps):
    """An episode in which nothing is done, so many steps of it."""
    [episode] = episodes.begin([number])
    for _ in range(steps):
        episodes.act(0, WAIT)
    return episode


def test_an_episode_has_a_picture_for_each_step():
    episode = waited(world(), 3, LIMIT)
    assert episode.over and not episode.success and episode.total == 0
    assert len(episode.pictures) == len(episode.boxes) == len(episode.rewards) == LIMIT
    assert episode.pictures[0].shape == (3, 32, 32)


def test_an_episode_is_cut_off_at_the_longest():
    """What would have come then is seen, but nothing is done there."""
    episode = waited(world(longest=4), 3, 4)
    assert episode.over and episode.cut and len(episode) == 4
    assert (np.stack(episode.pictures) == np.stack(waited(world(), 3, LIMIT).pictures[:5])).all()


def test_an_episode_that_ends_at_the_longest_is_not_cut_off():
    assert not waited(world(longest=LIMIT), 3, LIMIT).cut


def test_a_world_that_cuts_off_is_believed():
    class Short(Greeting):
        def step(self, action):
            seen, reward, over, _, told = super().step(action)
            return seen, reward, over, self._taken == 2, told

    episodes = world()
    episodes._worlds = [Short()]
    episode = waited(episodes, 3, 2)
    assert episode.over and episode.cut and len(episode.pictures) == 3


def test_pictures_have_the_size_of_the_reader_and_boxes_are_shares():
    small = waited(world(GridReader(size=24, channels=(4, 4))), 3, LIMIT)
    large = waited(world(), 3, LIMIT)
    assert small.pictures[0].shape == (3, 24, 24)
    assert small.boxes == large.boxes
    top, left, bottom, right = large.boxes[0]
    assert (bottom - top, right - left) == pytest.approx((1 / 4, 1 / 4))


def test_an_episode_can_be_played_again():
    episodes = world()
    first = waited(episodes, 5, LIMIT)
    again = episodes.again(5, first.actions)
    assert again.rewards == first.rewards
    assert (np.stack(again.pictures) == np.stack(first.pictures)).all()


def test_a_world_that_does_something_else_is_told():
    with pytest.raises(SaccadeError, match="embedded:greeting does not do the same again for the same seed"):
        world().again(5, [WAIT, WAIT])


def test_a_batch_has_pictures_one_after_the_other_and_actions_side_by_side():
    episodes = world()
    long = waited(episodes, 5, LIMIT)
    [short] = world().begin([6])
    short.actions, short.rewards, short.over = [CALL], [-0.5], True
    batch = batch_of([short, long], states=16)
    assert batch["source"].values.shape == (LIMIT + 1, 3, 32, 32)
    assert batch["source"].mask.shape == (LIMIT + 1, 16) and batch["source"].mask.all()
    assert (batch["source"].values[1].numpy() == long.pictures[0]).all()
    assert batch["action"].ids.tolist() == [[2] + [0] * (LIMIT - 1), [1] * LIMIT]
    assert batch["turn"].values[0, 0].tolist() == [-0.5, 0.0]
    assert batch["turn"].values[..., 1].sum(1).tolist() == [0, LIMIT - 1]
    assert torch.equal(batch["turn"].mask, batch["action"].mask)


def test_behind_a_cut_something_comes():
    batch = batch_of([waited(world(longest=3), 6, 3)], states=16)
    assert batch["source"].values.shape[0] == 4
    assert batch["action"].ids.tolist() == [[1, 1, 1, 0]] and batch["action"].mask.all()
    assert batch["turn"].values[0, :, 1].tolist() == [1, 1, 1, 0]
    assert batch["turn"].mask.tolist() == [[True, True, True, False]]


def test_a_world_that_is_not_there_is_refused():
    with pytest.raises(SaccadeError, match=r"no world 'embedded:greting'; did you mean greeting\?.*gym:NAME"):
        opened("embedded:greting")
    with pytest.raises(SaccadeError, match="there is no world 'files/a.png'"):
        opened("files/a.png")


def test_a_recipe_needs_a_world():
    with pytest.raises(SaccadeError, match="no world to learn in: give --data WORLD"):
        worlds_of(load("show-attend-interact"))


def test_both_worlds_have_the_same_actions():
    pytest.importorskip("gymnasium")
    changes = ["data.train=embedded:greeting", "data.valid=gym:saccade/Greeting-v0"]
    with pytest.raises(SaccadeError, match="both worlds must have the same actions, got wait, call, wave, shake of"):
        worlds_of(load("show-attend-interact", overrides=changes))
