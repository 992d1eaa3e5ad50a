"""Experience replay: batches come from played episodes and can be restored."""

import json

import pytest
import torch

from saccade.config.load import load
from saccade.errors import SaccadeError
from saccade.model.build.model import build
from saccade_worlds.playing.episodes import build_environments
from saccade_worlds.playing.replay import Replay

SMALL = ["reader.channels=[4,4,4]", "writer.stack.dim=8", "train.batch_tokens=640", "data.play.parallel_episodes=3"]


def stream(*changes):
    recipe = load("show-attend-interact", tiny=True, overrides=[*SMALL, *changes])
    torch.manual_seed(1)
    world, _ = build_environments(recipe)
    return Replay(recipe, world, build(recipe, source_size=0, target_size=4))


def content(batch):
    return [field.content for field in batch.fields.values()]


@pytest.mark.parametrize("longest", [2, 10])  # some are cut off, or none
def test_a_stream_resumes_at_its_position(longest):
    changes = ("data.play.batches_per_round=2", f"data.max_length={longest}")
    whole, half = stream(*changes), stream(*changes)
    before = [next(whole) for _ in range(5)]
    for _ in range(3):
        next(half)
    state = json.loads(json.dumps(half.state()))
    again = stream(*changes)
    again.restore(state)
    assert again.state() == {**again.state(), "played": 6, "taken": 3}
    assert again.epoch == half.epoch > 0
    for expected in before[3:]:
        found = next(again)
        assert all(torch.equal(a, b) for a, b in zip(content(found), content(expected), strict=True))


def test_the_budget_says_how_many_episodes_a_batch_has():
    assert next(stream())["action"].ids.shape[0] == 4  # 640 cells, 10 pictures of 16 for each


def test_the_oldest_episodes_are_forgotten():
    made = stream("data.buffer=12", "data.play.batches_per_round=1")
    for _ in range(6):
        next(made)
    kept = made.state()["kept"]
    assert sum(len(actions) for _, actions in kept) <= 12
    assert [number for number, _ in kept] == list(range(18 - len(kept), 18))


def test_epsilon_decreases():
    made = stream("data.play.epsilon_episodes=6", "data.play.batches_per_round=1", "data.play.final_epsilon=0.1")
    shares = [made.epsilon]
    for _ in range(3):
        next(made)
        shares.append(made.epsilon)
    assert shares == pytest.approx([1.0, 0.55, 0.1, 0.1])


def test_playing_keeps_the_training_mode():
    made = stream()
    made._model.train()
    next(made)
    assert made._model.training


def test_several_processes_are_refused():
    made = stream()
    with pytest.raises(SaccadeError, match='task = "play" trains in one process, got 2'):
        recipe = load("show-attend-interact")
        recipe.task.open_stream(recipe, made._episodes, made._model, rank=0, world=2)
