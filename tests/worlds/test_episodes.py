"""Episodes of environments, and their batches."""

import numpy as np
import pytest
import torch

from saccade.config.load import load
from saccade.config.schema import Corpus, GridReader
from saccade.errors import SaccadeError
from saccade_worlds.playing.episodes import VectorEnvironment, build_environments, collate_episodes, make_environment
from saccade_worlds.playing.greeting import MAX_STEPS, Greeting

READER = GridReader(size=32, channels=(4, 4, 4))
WAIT, CALL = 0, 1


def world(reader=READER, longest=MAX_STEPS):
    return VectorEnvironment(Corpus(files=("embedded:greeting",)), reader, max_steps=longest)


def play_waiting(episodes, number, steps):
    """An episode with this number of steps in which the agent only waits."""
    [episode] = episodes.reset([number])
    for _ in range(steps):
        episodes.step(0, WAIT)
    return episode


def test_an_episode_has_a_picture_for_each_step():
    episode = play_waiting(world(), 3, MAX_STEPS)
    assert episode.done and not episode.success and episode.total_reward == 0
    assert len(episode.pictures) == len(episode.boxes) == len(episode.rewards) == MAX_STEPS
    assert episode.pictures[0].shape == (3, 32, 32)


def test_an_episode_is_cut_off_at_the_longest():
    """The observation after the last step is recorded, without an action."""
    episode = play_waiting(world(longest=4), 3, 4)
    assert episode.done and episode.truncated and len(episode) == 4
    assert (np.stack(episode.pictures) == np.stack(play_waiting(world(), 3, MAX_STEPS).pictures[:5])).all()


def test_an_episode_that_ends_at_the_limit_is_not_truncated():
    assert not play_waiting(world(longest=MAX_STEPS), 3, MAX_STEPS).truncated


def test_a_world_that_cuts_off_is_believed():
    class Short(Greeting):
        def step(self, action):
            seen, reward, over, _, info = super().step(action)
            return seen, reward, over, self._num_steps == 2, info

    episodes = world()
    episodes._environments = [Short()]
    episode = play_waiting(episodes, 3, 2)
    assert episode.done and episode.truncated and len(episode.pictures) == 3


def test_pictures_have_the_size_of_the_reader_and_boxes_are_shares():
    small = play_waiting(world(GridReader(size=24, channels=(4, 4))), 3, MAX_STEPS)
    large = play_waiting(world(), 3, MAX_STEPS)
    assert small.pictures[0].shape == (3, 24, 24)
    assert small.boxes == large.boxes
    top, left, bottom, right = large.boxes[0]
    assert (bottom - top, right - left) == pytest.approx((1 / 4, 1 / 4))


def test_an_episode_can_be_replayed():
    episodes = world()
    first = play_waiting(episodes, 5, MAX_STEPS)
    again = episodes.replay(5, first.actions)
    assert again.rewards == first.rewards
    assert (np.stack(again.pictures) == np.stack(first.pictures)).all()


def test_a_nondeterministic_environment_is_reported():
    with pytest.raises(SaccadeError, match="embedded:greeting is not deterministic for a given seed"):
        world().replay(5, [WAIT, WAIT])


def test_a_batch_has_pictures_one_after_the_other_and_actions_side_by_side():
    episodes = world()
    long = play_waiting(episodes, 5, MAX_STEPS)
    [short] = world().reset([6])
    short.actions, short.rewards, short.done = [CALL], [-0.5], True
    batch = collate_episodes([short, long], num_states=16)
    assert batch["source"].values.shape == (MAX_STEPS + 1, 3, 32, 32)
    assert batch["source"].mask.shape == (MAX_STEPS + 1, 16) and batch["source"].mask.all()
    assert (batch["source"].values[1].numpy() == long.pictures[0]).all()
    assert batch["action"].ids.tolist() == [[2] + [0] * (MAX_STEPS - 1), [1] * MAX_STEPS]
    assert batch["turn"].values[0, 0].tolist() == [-0.5, 0.0]
    assert batch["turn"].values[..., 1].sum(1).tolist() == [0, MAX_STEPS - 1]
    assert torch.equal(batch["turn"].mask, batch["action"].mask)


def test_a_truncated_episode_has_one_more_picture():
    batch = collate_episodes([play_waiting(world(longest=3), 6, 3)], num_states=16)
    assert batch["source"].values.shape[0] == 4
    assert batch["action"].ids.tolist() == [[1, 1, 1, 0]] and batch["action"].mask.all()
    assert batch["turn"].values[0, :, 1].tolist() == [1, 1, 1, 0]
    assert batch["turn"].mask.tolist() == [[True, True, True, False]]


def test_a_world_that_is_not_there_is_refused():
    with pytest.raises(SaccadeError, match=r"no environment 'embedded:greting'; did you mean greeting\?.*gym:NAME"):
        make_environment("embedded:greting")
    with pytest.raises(SaccadeError, match="there is no environment 'files/a.png'"):
        make_environment("files/a.png")


def test_a_recipe_needs_a_world():
    with pytest.raises(SaccadeError, match="no environment to train in: give --data WORLD"):
        build_environments(load("show-attend-interact"))


def test_both_environments_have_the_same_actions():
    pytest.importorskip("gymnasium")
    changes = ["data.train=embedded:greeting", "data.valid=gym:saccade/Greeting-v0"]
    with pytest.raises(
        SaccadeError, match="both environments must have the same actions, got wait, call, wave, shake of"
    ):
        build_environments(load("show-attend-interact", overrides=changes))
