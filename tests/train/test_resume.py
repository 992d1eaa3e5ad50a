"""A run that is killed at any moment and resumed ends with the same bits as an uninterrupted one."""

import random
import resource
import shutil
import signal
import time
from contextlib import nullcontext

import pytest
import small
import torch
from safetensors.torch import load_file

from saccade.errors import SaccadeError
from saccade.runs import LOCK, RECIPE, is_training, lock_run
from saccade.train import api, loop, validate
from saccade.train.signals import Interrupted

TRAIN = {"ema": 0.9, "keep_checkpoints": 2}
MOMENTS = [
    ("batch", 1),  # before the first step: nothing is there but the recipe
    ("batch", 28),  # in the middle of an accumulation
    ("batch", 39),  # between two steps, in the middle of an epoch
    ("update", 20),  # with gradients, before the update
    ("validation", 2),
    ("best", 2),  # a new best is about to be written
    ("file", 6),  # half of the optimizer of the second checkpoint
    ("file", 12),  # half of state.json
    ("rename", 5),  # all is written, and has not got its name
    ("prune", 3),  # the new one is there, the old ones still are
]


@pytest.fixture(scope="module")
def uninterrupted(run_in_process, tmp_path_factory):
    run = tmp_path_factory.mktemp("uninterrupted") / "run"
    assert run_in_process(small.train_or_resume, str(run), TRAIN) == 0
    return run


def read_losses(run):
    """The losses that a run has logged, without values that depend on the clock."""
    return [(line["event"], line["step"], line["loss"]) for line in small.read_metrics(run)]


def assert_same(run, uninterrupted):
    assert small.weights(run) == small.weights(uninterrupted)
    assert small.weights(run, 24) == small.weights(uninterrupted, 24)
    assert read_losses(run) == read_losses(uninterrupted)
    assert {item.name for item in run.rglob(".*")} == {LOCK}


@pytest.mark.parametrize(("place", "nth"), MOMENTS)
def test_killed_and_resumed_is_bit_identical(run_in_process, uninterrupted, tmp_path, place, nth):
    run = tmp_path / "run"

    assert run_in_process(small.train_and_die, str(run), TRAIN, place, nth) == -signal.SIGKILL
    assert run_in_process(small.train_or_resume, str(run), TRAIN) == 0

    assert_same(run, uninterrupted)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(10))
def test_killed_at_random_times_is_bit_identical(processes, run_in_process, uninterrupted, tmp_path, number):
    run, draw = tmp_path / "run", random.Random(number)
    process = processes.Process(target=small.train_or_resume, args=(str(run), TRAIN))
    process.start()
    while not run.exists():
        time.sleep(0.001)
    time.sleep(draw.uniform(0.0, 0.6))
    process.kill()
    process.join()

    assert run_in_process(small.train_or_resume, str(run), TRAIN) == 0
    assert_same(run, uninterrupted)


SHORT = {"steps": 4, "save_every": 2, "valid_every": 99, "report_every": 2, "accumulate": 1}


def spoil(run, step):
    (run / f"checkpoints/step-{step}/model.safetensors").write_bytes(b"half")


def test_a_broken_checkpoint_does_not_outlive_the_whole_ones(fit, monkeypatch, capsys):
    run = fit(**SHORT, keep_checkpoints=2)
    expected = small.weights(run, 4)
    spoil(run, 4)

    with monkeypatch.context() as patch, pytest.raises(Interrupted, match="saved at step 3"):
        patch.setattr(small.loop, "is_interrupted", lambda s, interrupts: s.progress.step == 3)
        fit(resume=True, overrides=["train.keep_checkpoints=1"])

    said = capsys.readouterr().err
    assert "step-4' is damaged" in said and "step-4' is removed" in said
    assert small.checkpoint.list_steps(run / "checkpoints") == [3]
    assert small.weights(fit(resume=True), 4) == expected


def test_a_damaged_checkpoint_is_left_out_of_the_mean_of_the_last(fit, capsys):
    data = {"train": small.COPY["train"]}
    run = fit(**{**SHORT, "steps": 6}, average={"kind": "last", "n": 3}, data=data)
    spoil(run, 4)

    fit(resume=True)

    parts = [load_file(run / f"checkpoints/step-{step}/model.safetensors") for step in (2, 6)]
    mean = {name: (tensor + parts[1][name]) / 2 for name, tensor in parts[0].items()}
    torch.testing.assert_close(load_file(run / "model.safetensors"), mean)
    assert "step-4' is damaged" in capsys.readouterr().err
    assert "mean of the weights of steps 2, 6" in (run / "card.md").read_text()


@pytest.mark.parametrize("step", [3, 5, 7])
def test_the_checkpoint_of_an_interruption_is_left_out_of_the_mean(fit, monkeypatch, step):
    """With average.kind = "last", an interrupted run ends with the weights of an uninterrupted one."""
    settings = {**SHORT, "steps": 8, "average": {"kind": "last", "n": 3}, "keep_checkpoints": 1}
    data = {"train": small.COPY["train"]}
    whole = fit("whole", **settings, data=data)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "is_interrupted", lambda s, interrupts: s.progress.step == step)
        with pytest.raises(Interrupted):
            fit("stopped", **settings, data=data)
    stopped = fit("stopped", resume=True)
    assert small.weights(stopped) == small.weights(whole)
    assert "mean of the weights of steps 4, 6, 8" in (stopped / "card.md").read_text()


@pytest.mark.parametrize("finished", [False, True])
def test_a_run_without_checkpoints_is_not_begun_anew(fit, tmp_path, monkeypatch, finished):
    """Its weights and metrics would be overwritten."""
    with monkeypatch.context() as patch:
        if not finished:
            patch.setattr(loop, "is_interrupted", lambda s, interrupts: s.progress.step == 4)
        with nullcontext() if finished else pytest.raises(Interrupted):
            fit(**{**SHORT, "steps": 6, "valid_every": 2})
    run = tmp_path / "run"
    shutil.rmtree(run / "checkpoints")
    before = {path: path.read_bytes() for path in run.iterdir() if path.is_file()}
    with pytest.raises(SaccadeError, match=r"no checkpoints to resume from, only weights, .* init=.*run --run NAME"):
        fit(resume=True)
    assert {path: path.read_bytes() for path in run.iterdir() if path.is_file()} == before


def test_the_lock_of_a_run_stays_and_is_held_once(tmp_path):
    with lock_run(tmp_path):
        assert is_training(tmp_path)
        with pytest.raises(SaccadeError, match="is being trained by another process"), lock_run(tmp_path):
            pass
        assert is_training(tmp_path)
    assert (tmp_path / LOCK).exists() and not is_training(tmp_path)
    with lock_run(tmp_path):
        assert is_training(tmp_path)


def test_a_best_after_the_last_checkpoint_is_forgotten_with_its_step(fit, monkeypatch):
    losses = iter([2.0, 3.0, 1.0])
    monkeypatch.setattr(validate, "evaluate_weights", lambda s, weights: {"loss": next(losses)})
    saving = small.session.save_checkpoint

    def dying(s):
        if s.progress.step == 3:
            raise KeyboardInterrupt
        saving(s)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(small.loop, "save_checkpoint", dying)
        patch.setattr(small.loop, "should_keep_for_average", lambda s: s.progress.step == 3)
        fit(**{**SHORT, "valid_every": 1})
    run = fit(resume=True, overrides=["train.steps=2"])

    monkeypatch.undo()
    expected = load_file(fit("whole", **{**SHORT, "steps": 1}) / "model.safetensors")
    torch.testing.assert_close(load_file(run / "model.safetensors"), expected, rtol=0, atol=0)
    assert "* weights: weights of step 1\n" in (run / "card.md").read_text()


def test_best_weights_that_are_lost_are_reported(fit, monkeypatch, capsys):
    losses = iter([1.0, 2.0])
    monkeypatch.setattr(validate, "evaluate_weights", lambda s, weights: {"loss": next(losses)})
    run = fit(**{**SHORT, "valid_every": 2})
    (run / "checkpoints/best-2.safetensors").unlink()

    fit(resume=True)

    assert "the best weights are lost (" in (said := capsys.readouterr().err) and "step 4 are used" in said
    torch.testing.assert_close(
        load_file(run / "model.safetensors"), load_file(run / "checkpoints/step-4/model.safetensors"), rtol=0, atol=0
    )
    card = (run / "card.md").read_text()
    assert "* weights: weights of step 4\n" in card and "| loss | 2 |" in card


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("ff = 17", "ff = 18", r"weight must be \(14, 18\) by the recipe, got \(14, 17\); put recipe.toml back"),
        ("ff = 17", "ff = 20000000", r"weight must be \(14, 20000000\) by the recipe, got \(14, 17\); put"),
        ("layers = 1", "layers = 2", r"step-24 lacks tensor 'reader.stack.blocks.1.*'; put recipe.toml back"),
    ],
)
def test_a_run_whose_recipe_was_edited_is_not_resumed(uninterrupted, tmp_path, old, new, message):
    run = tmp_path / "run"
    shutil.copytree(uninterrupted, run)
    recipe = run / RECIPE
    recipe.write_text(recipe.read_text().replace(old, new))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(SaccadeError, match=message):
        api.train(resume=run)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400_000  # kB
