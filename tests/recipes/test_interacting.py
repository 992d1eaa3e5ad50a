"""The recipe show-attend-interact through all verbs."""

import json
import time

import numpy as np
import pytest
from PIL import Image

import saccade
from saccade.cli import main
from saccade.config.load import load
from saccade.config.schema import Corpus
from saccade.data.worlds.episodes import FIRST_HELDOUT_SEED, FIRST_VALIDATION_SEED, MAX_SEED_DIGITS, VectorEnvironment
from saccade.data.worlds.greeting import ACTIONS, Greeting
from saccade.demo.listing import get_demonstration
from saccade.errors import SaccadeError
from saccade.score.playing import evaluate_episodes

NAME = "show-attend-interact"
SMALL = ["reader.channels=[4,8]", "writer.stack.dim=16", "train.batch_tokens=2560", "data.valid.0.examples=5"]
FEW = [*SMALL, "train.steps=4", "train.valid_every=2", "train.save_every=2", "train.schedule.kind=constant"]
PLAY = ["data.play.parallel_episodes=3", "data.play.batches_per_round=1"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "x"
    saccade.train(NAME, tiny=True, run=path, overrides=[*FEW, *PLAY])
    return path


@pytest.fixture
def said(capsys):
    """What a command prints, and its exit code."""

    def run(*words, code=0):
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main([str(word) for word in words])
        found = capsys.readouterr()
        assert int(left.value.code or 0) == code, found.err
        return found.out if code == 0 else found.err

    return run


def picture(path):
    Image.fromarray(Greeting().reset(seed=1)[0]).save(path)
    return path


def test_a_run_that_was_resumed_is_one_that_was_not(tmp_path, run):
    half = tmp_path / "half"
    saccade.train(NAME, tiny=True, run=half, overrides=[*FEW, *PLAY, "train.steps=2"])
    saccade.train(resume=half, overrides=["train.steps=4"])
    assert (half / "model.safetensors").read_bytes() == (run / "model.safetensors").read_bytes()
    ours, theirs = (json.loads((path / "metrics.jsonl").read_text().splitlines()[-1]) for path in (half, run))
    assert ours["event"] == "valid" and {**ours, "seconds": 0} == {**theirs, "seconds": 0}


def test_the_card_tells_of_success(run):
    card = (run / "card.md").read_text()
    assert "task: play" in card and "| success |" in card and "4 labels: wait, call, wave, shake" in card


def test_a_picture_gives_an_action_and_a_number_an_episode(tmp_path, run, said):
    file = picture(tmp_path / "a.png")
    first, second = said("predict", run, file, "7").splitlines()
    assert first.split("\t")[0] == str(file) and first.split("\t")[1] in ACTIONS
    number, outcome = second.split("\t")
    assert number == "7" and outcome.endswith(("(success)", "(failure)"))
    assert second == said("predict", run, "7").strip()
    at_picture, in_episode = (json.loads(line) for line in said("predict", run, file, "7", "--json").splitlines())
    assert set(at_picture["values"]) == set(ACTIONS)
    assert at_picture["value"] == max(at_picture["values"].values())
    assert set(in_episode) == {"input", "actions", "success", "reward"}
    best = said("predict", run, file, "--n-best", "4").splitlines()
    assert [line.split("\t")[2] for line in best] == sorted(ACTIONS, key=lambda one: -at_picture["values"][one])


def test_a_run_is_evaluated_and_compared_by_success(run, said):
    found = json.loads(said("evaluate", run, "--json"))
    assert found["episodes"] == 5 and list(found["scores"]) == ["success", "reward", "steps", "attention_lift"]
    assert json.loads(said("evaluate", run, "--data", "embedded:greeting", "--json"))["episodes"] == 100
    compared = json.loads(said("compare", run, run, "--json"))
    assert compared["metric"] == "success" and compared["sentences"] == 5
    assert compared["rows"][0]["scores"]["success"] == found["scores"]["success"]["value"]
    assert said("compare", run, run).split()[:6] == ["run", "success", "%", "reward", "steps", "attention_lift"]


def test_episodes_of_training_of_validation_and_of_evaluation_are_others(tmp_path, monkeypatch):
    begun, begin = [], VectorEnvironment.reset

    def noted(episodes, numbers):
        begun.extend(numbers)
        return begin(episodes, numbers)

    monkeypatch.setattr(VectorEnvironment, "reset", noted)
    trained = saccade.train(NAME, tiny=True, run=tmp_path / "x", overrides=[*FEW, *PLAY, "train.steps=2"])
    assert begun == [*range(6), *range(FIRST_VALIDATION_SEED, FIRST_VALIDATION_SEED + 5)]
    begun.clear()
    evaluate_episodes(trained, load(tmp_path / "x" / "recipe.toml").data.valid)
    trained.predict(["9" * MAX_SEED_DIGITS])
    assert begun == [*range(FIRST_HELDOUT_SEED, FIRST_HELDOUT_SEED + 5), FIRST_VALIDATION_SEED - 1]


def test_attention_lies_over_each_picture_of_an_episode(tmp_path, run, said):
    loaded = saccade.load(run)
    seen = loaded.view("7")
    [cross] = seen.maps
    steps = len(seen.labels["target"])
    assert cross.weights.shape == (1, steps, 64) and len(seen.background.images) == steps
    np.testing.assert_allclose(cross.weights.sum(-1), 1, rtol=1e-5)
    assert loaded.attention("7").text == seen.output
    for name in ("a.png", "a.html"):
        said("view", run, "7", f"--{name[2:]}", tmp_path / name)
        assert (tmp_path / name).stat().st_size > 1000
    assert "head 1" in said("view", run, picture(tmp_path / "b.png"))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda run: run.score([("7", "wait")]), "an action has a value and no probability"),
        (lambda run: run.view("7", "wait"), "actions cannot be given, so there is no target, got 'wait'"),
        (lambda run: run.candidates(["7"], align=True), "an action is not written word by word"),
        (lambda run: evaluate_episodes(run, []), "evaluated in one world at a time, got 0"),
        (lambda run: run.predict(["nowhere.png"]), "nowhere.png not found"),
        (lambda run: run.predict(["1" * (MAX_SEED_DIGITS + 1)]), "1111111111 not found"),
        (
            lambda run: run.get_world(Corpus(files=("gym:saccade/Greeting-v0",))),
            "has the actions 0, 1, 2, 3, but the model",
        ),
    ],
)
def test_impossible_calls_are_refused(run, call, message):
    pytest.importorskip("gymnasium")
    with pytest.raises(SaccadeError, match=message):
        call(saccade.load(run))


def test_runs_do_not_act_together(run):
    with pytest.raises(SaccadeError, match="one of these runs outputs everything at once; load it alone"):
        saccade.load([run, run])


def test_metrics_of_texts_are_refused(run, said):
    assert "episodes have no text outputs" in said("evaluate", run, "--metrics", "bleu", code=2)


def test_without_attention_there_is_nothing_to_show(tmp_path, run, said):
    changes = [*FEW, *PLAY, "train.steps=1", "writer.stack.attention=none"]
    trained = saccade.train(NAME, tiny=True, run=tmp_path / "x", overrides=changes)
    with pytest.raises(SaccadeError, match="this model has no attention"):
        trained.view("7")
    table = said("compare", tmp_path / "x", run, "--markdown").splitlines()
    title, _, ours, theirs = (line.split("|")[5].strip() for line in table[:4])
    assert title == "attention_lift" and not ours and theirs
    assert "attention_lift" not in evaluate_episodes(trained, load(tmp_path / "x" / "recipe.toml").data.valid).scores


def test_a_world_of_gymnasium_is_learned_in_too(tmp_path):
    pytest.importorskip("gymnasium")
    changes = [*FEW, *PLAY, "train.steps=1", "data.train=gym:saccade/Greeting-v0", "data.valid=[]", "train.metric=loss"]
    trained = saccade.train(
        NAME, tiny=True, run=tmp_path / "x", overrides=[one for one in changes if "valid.0" not in one]
    )
    assert trained.actions == ("0", "1", "2", "3")
    assert len(trained.predict(["3"])) == 1


def test_attention_over_patches_excludes_the_class_token(tmp_path):
    table = (
        "reader={ kind = 'patches', size = 32, patch_size = 8, stack = { layers = 1, dim = 16, heads = 2, ff = 16 } }"
    )
    changes = [one for one in [*FEW, *PLAY, "train.steps=1", table] if "channels" not in one]
    trained = saccade.train(NAME, tiny=True, run=tmp_path / "x", overrides=changes)
    assert trained.view("7").maps[0].weights.shape[-1] == 16
    assert trained.view(str(picture(tmp_path / "a.png"))).maps[0].weights.shape[-1] == 16
    scores = evaluate_episodes(trained, load(tmp_path / "x" / "recipe.toml").data.valid).scores
    assert scores["attention_lift"].value > 0


@pytest.mark.slow
def test_tiny_learns_whom_to_greet_and_attends_to_it(tmp_path):
    """Enough episodes succeed, and the guest gets three times the attention that the area would."""
    begin = time.process_time()
    trained = saccade.train(NAME, tiny=True, run=tmp_path / "x")
    assert time.process_time() - begin < 180
    world = Corpus(files=("embedded:greeting",), examples=500)
    scores = evaluate_episodes(trained, [world]).scores
    assert get_demonstration(NAME).target.is_reached(scores["success"].value)
    assert scores["attention_lift"].value >= 3
