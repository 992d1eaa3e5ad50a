"""The greeting environment, and its registration with gymnasium."""

import numpy as np
import pytest

from saccade.errors import SaccadeError
from saccade_worlds.playing.greeting import (
    ACTIONS,
    CELL,
    COLORS,
    FAILURE_REWARD,
    HAND,
    MAX_STEPS,
    PROGRESS_REWARD,
    SIDE,
    SUCCESS_REWARD,
    Greeting,
)
from saccade_worlds.playing.gymnasium import ENVIRONMENT_ID, GymnasiumEnvironment, register

WAIT = ACTIONS.index("wait")


def gesture(world):
    return world._gestures[0]


def test_the_same_seed_is_the_same_visit():
    seen = []
    for _ in range(2):
        world = Greeting()
        pictures = [world.reset(seed=7)[0]]
        pictures += [world.step(WAIT)[0] for _ in range(3)]
        seen.append(np.stack(pictures))
    assert (seen[0] == seen[1]).all()
    assert (seen[0][0] != Greeting().reset(seed=8)[0]).any()


def test_who_does_what_is_right_gets_a_handshake():
    for seed in range(50):
        world = Greeting()
        _, info = world.reset(seed=seed)
        over, rewards = False, []
        while not over:
            assert not info["is_success"]
            _, reward, over, cut, info = world.step(gesture(world))
            rewards.append(reward)
            assert not cut
        if len(rewards) < MAX_STEPS:  # the guest may be busy for too long
            assert info["is_success"]
            assert rewards[-1] == SUCCESS_REWARD and set(rewards[:-1]) <= {0.0, PROGRESS_REWARD}


def test_a_wrong_action_ends_the_episode():
    for seed in range(20):
        world = Greeting()
        world.reset(seed=seed)
        wrong = next(action for action in range(1, 4) if action != gesture(world))
        _, reward, over, _, info = world.step(wrong)
        assert (reward, over, info["is_success"]) == (FAILURE_REWARD, True, False)


def test_who_waits_for_ever_is_left():
    world = Greeting()
    world.reset(seed=1)
    over = [world.step(WAIT)[2] for _ in range(MAX_STEPS)]
    assert over == [False] * (MAX_STEPS - 1) + [True]


def test_the_banner_has_the_colour_of_the_guest():
    world = Greeting()
    first, info = world.reset(seed=3)
    top, left, bottom, right = info["matters"]
    colour = first[CELL // 2, SIDE // 2]
    assert tuple(colour) in COLORS
    assert (first[top:bottom, left:right] == colour).all(-1).any()
    assert (bottom - top, right - left) == (CELL, CELL)
    assert (world.step(WAIT)[0][CELL // 2, SIDE // 2] == colour).all()


def test_a_hand_is_held_out_only_after_a_wave():
    world = Greeting()
    for seed in range(100):
        world.reset(seed=seed)
        assert gesture(world) != HAND


def test_gymnasium_finds_nothing_wrong_with_it():
    gymnasium = pytest.importorskip("gymnasium")
    checker = pytest.importorskip("gymnasium.utils.env_checker")
    register()
    register()  # twice does no harm
    env = gymnasium.make(ENVIRONMENT_ID, render_mode="rgb_array")
    checker.check_env(env.unwrapped)
    seen, _ = env.reset(seed=5)
    assert (env.render() == seen).all()
    env.close()


def test_a_world_of_gymnasium_is_used_as_ours():
    pytest.importorskip("gymnasium")
    world = GymnasiumEnvironment(ENVIRONMENT_ID)
    assert world.actions == ("0", "1", "2", "3")
    seen, info = world.reset(seed=5)
    assert seen.shape == (SIDE, SIDE, 3) and "matters" in info
    assert len(world.step(WAIT)) == 5


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("CartPole-v1", r"observations \(height, width, 3\) of uint8, or 4 with depth as the last channel, got Box"),
        ("Pendulum-v1", "gym:Pendulum-v1 must have discrete actions"),
        ("Nowhere-v1", "gymnasium cannot make 'Nowhere-v1'"),
        (
            "this:CartPole-v1",
            "gym:this:CartPole-v1 names a module, which is not imported.*environment: gym:CartPole-v1",
        ),
    ],
)
def test_other_worlds_are_refused(name, message):
    pytest.importorskip("gymnasium")
    with pytest.raises(SaccadeError, match=message):
        GymnasiumEnvironment(name)


def test_without_gymnasium_its_worlds_are_refused(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SaccadeError, match=r"gym:CartPole-v1 needs the package gymnasium; .*pip install .*\[worlds\]"):
        GymnasiumEnvironment("CartPole-v1")
