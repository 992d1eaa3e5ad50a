"""Streams of grayscale and depth pictures, whose values are averaged."""

import json

import numpy as np
import pytest
import torch

import saccade
from saccade.cli import main
from saccade.config.load import load
from saccade.config.schema import Corpus
from saccade.errors import SaccadeError
from saccade.model.build.model import build
from saccade_worlds.playing.episodes import Episode, VectorEnvironment, build_environments, collate_episodes
from saccade_worlds.playing.play import play
from saccade_worlds.playing.scores import compute_attention_ratio
from saccade_worlds.playing.streams import StreamsState, select_channels

NAME = "show-attend-interact-streams"
SMALL = ["reader.channels=[8]", "writer.stack.dim=11"]
STATES = 16


def make(*changes):
    torch.manual_seed(1)
    recipe = load(NAME, tiny=True, overrides=[*SMALL, *changes])
    return recipe, build(recipe, source_size=0, target_size=4).double().eval()


@pytest.fixture(scope="module")
def played():
    """A model, and episodes that it has played at random, as a batch."""
    recipe, model = make()
    world, _ = build_environments(recipe)
    episodes = play(model, world, range(6), states=STATES, epsilon=0.8, align=True)
    return model, episodes, collate_episodes(episodes, num_states=STATES)


def test_the_value_of_an_action_is_the_mean_over_the_streams(played):
    model, _, batch = played
    actions, memory = batch["action"], model.read(batch)
    values = model.writer(actions.ids, actions.mask, memory)
    alone = []
    for number, name in enumerate(("grayscale", "depth")):
        source = batch["source"]
        states = model.reader.readers[number](select_channels(source.values, name), source.mask)
        alone.append(model.writer.writers[number](actions.ids, actions.mask, states))
    torch.testing.assert_close(values, (alone[0] + alone[1]) / 2)
    assert (alone[0] - alone[1])[actions.mask].abs().min() > 1e-6


def test_values_while_playing_are_those_of_whole_episodes(played):
    model, episodes, batch = played
    actions = batch["action"]
    values = model.writer(actions.ids, actions.mask, model.read(batch))
    for row, episode in enumerate(episodes):
        found = torch.tensor(np.stack(episode.values)).double()
        torch.testing.assert_close(found, values[row, : len(episode)], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(("channels", "stream"), [(slice(0, 3), 0), (slice(3, 4), 1)])
def test_a_stream_sees_its_channels_alone(played, channels, stream):
    model, _, batch = played
    source = batch["source"]
    values = source.values.clone()
    values[:, channels] = 255 - values[:, channels]
    before, after = (model.reader(pictures, source.mask).states.chunk(2, 1) for pictures in (source.values, values))
    assert (before[stream] - after[stream]).abs().max() > 1e-3
    assert torch.equal(before[1 - stream], after[1 - stream])


def test_each_stream_attends_by_itself(played):
    _, episodes, _ = played
    weights = np.concatenate([np.stack(episode.attention) for episode in episodes])
    assert weights.shape[1:] == (2, STATES)
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-6)
    assert np.abs(weights[:, 0] - weights[:, 1]).max() > 1e-4


def test_the_attention_ratio_averages_the_streams():
    episode = Episode(1, actions=[0], rewards=[0.0], boxes=[(0.0, 0.0, 0.5, 0.5)])  # one cell of four
    episode.attention = [np.array([[0.7, 0.1, 0.1, 0.1], [0.1, 0.3, 0.3, 0.3]])]
    assert compute_attention_ratio([episode], grid=(2, 2)) == pytest.approx(0.4 / 0.25)


def test_gray_is_the_luminance():
    pictures = torch.zeros(1, 4, 1, 3, dtype=torch.uint8)
    for channel in range(3):
        pictures[0, channel, 0, channel] = 255
    gray = select_channels(pictures, "grayscale")
    assert gray.shape == (1, 3, 1, 3) and gray[0, 0, 0].tolist() == [76, 149, 29]
    assert torch.equal(gray[:, 0], gray[:, 2])
    assert torch.equal(select_channels(pictures, "color"), pictures[:, :3])


def test_one_stream_of_colors_is_the_plain_network():
    _, model = make("writer.streams=['color']")
    names = [name for name, _ in model.named_parameters()]
    plain = build(load("show-attend-interact", tiny=True, overrides=SMALL), source_size=0, target_size=4)
    assert names == [name for name, _ in plain.named_parameters()]
    assert not any("readers" in name or "writers" in name for name in names)


def test_a_state_is_reordered_in_all_streams():
    class Rows:
        def __init__(self, rows):
            self.rows = rows

        def reorder(self, indices):
            return Rows([self.rows[i] for i in indices])

    state = StreamsState((Rows("abc"), Rows("xyz"))).reorder([2, 0])
    assert [one.rows for one in state.streams] == [["c", "a"], ["z", "x"]]


@pytest.mark.parametrize(("depth", "channels"), [(True, 4), (False, 3)])
def test_depth_is_kept_for_a_stream_that_needs_it_and_resized_by_itself(depth, channels):
    reader = load(NAME, tiny=True, overrides=["reader.size=12", "reader.width=20"]).reader
    world = VectorEnvironment(Corpus(files=("embedded:waiting-room",)), reader, max_steps=3, depth=depth)
    [episode] = world.reset([4])
    assert episode.pictures[0].shape == (channels, 12, 20)
    if depth:  # an alpha channel would change the colors where it is small
        [colors] = VectorEnvironment(world.corpus, reader, max_steps=3).reset([4])
        assert (episode.pictures[0][:3] == colors.pictures[0]).all()


# ---- through all verbs


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    few = ["train.steps=4", "train.valid_every=4", "train.save_every=4", "data.valid.0.examples=3"]
    play = ["data.play.parallel_episodes=3", "train.batch_tokens=640"]
    path = tmp_path_factory.mktemp("runs") / "x"
    saccade.train(NAME, tiny=True, run=path, overrides=[*SMALL, *few, *play])
    return path


def test_a_run_is_evaluated_and_viewed(run, tmp_path, capsys):
    for words in (["evaluate", run, "--json"], ["view", run, "7", "--html", tmp_path / "page.html"]):
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main([str(word) for word in words])
        assert not left.value.code
        if words[0] == "evaluate":
            assert json.loads(capsys.readouterr().out)["scores"]["attention_lift"]["value"] > 0
    assert "data:image/png" in (tmp_path / "page.html").read_text()
    maps = saccade.load(run).attention("7")
    assert [len(weights) for weights in maps.maps.values()] == [2]  # the streams, as heads


MESSAGE = r'"depth" needs pictures of four channels .*, got 3; play in embedded:waiting-room, or leave it out'


def test_a_world_without_depth_is_refused(tmp_path):
    world = [["embedded:greeting"]]
    with pytest.raises(SaccadeError, match=MESSAGE):
        saccade.train(NAME, tiny=True, run=tmp_path / "x", overrides=SMALL, data=world, valid=world)


def test_a_picture_from_a_file_has_no_depth(run, tmp_path):
    from PIL import Image

    Image.new("RGB", (32, 32)).save(tmp_path / "a.png")
    with pytest.raises(SaccadeError, match=MESSAGE):
        saccade.load(run).predict([str(tmp_path / "a.png")])


@pytest.mark.slow
def test_only_attention_finds_the_guest(tmp_path):
    """`benchmarks/interact.py --streams` measures three seeds, with the same steps."""
    scores = {}
    for kind in ("additive", "none"):
        settings = [f"writer.stack.attention={kind}", "train.steps=2500", "train.valid_every=500"]
        model = saccade.train(NAME, tiny=True, run=tmp_path / kind, overrides=settings)
        scores[kind] = np.mean([episode.success for episode in model.play(range(300))])
    assert scores["additive"] > 0.8 and scores["none"] < scores["additive"] - 0.1
