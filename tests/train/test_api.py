import errno
import random
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
import pytest
import small
import torch

import saccade
from saccade.config.load import load, save
from saccade.config.schema import Corpus
from saccade.errors import SaccadeError
from saccade.predict.predictors.predictor import Predictor
from saccade.runs import LOCK, lock_run
from saccade.train import api
from saccade.train.objectives.objectives import next_token_loss
from saccade.train.signals import Interrupted

SHORT = {"steps": 2, "valid_every": 2, "save_every": 2, "report_every": 1, "accumulate": 1}


@pytest.fixture(scope="module")
def trained(tmp_path_factory, draw_loss):
    run = tmp_path_factory.mktemp("trained") / "run"
    recipe = small.small(steps=6, valid_every=3, save_every=1, keep_checkpoints=2, report_every=2, valid_predictions=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(small.finish, "plot_loss", draw_loss)
        return run, recipe, saccade.train(recipe, run=run)


def test_training_gives_a_predictor_and_a_run_folder(trained):
    run, recipe, predictor = trained

    assert isinstance(predictor, Predictor) and len(predictor.predict(["abc"])) == 1
    assert sorted(item.name for item in run.iterdir()) == [
        LOCK, "card.md", "checkpoints", "examples.json", "loss.png", "metrics.jsonl", "model.safetensors",
        "recipe.toml", "samples.jsonl", "tokenizer.json",
    ]  # fmt: skip
    assert load(run / "recipe.toml") == recipe
    assert small.checkpoint.list_steps(run / "checkpoints") == [6, 5]
    assert (run / "loss.png").read_bytes()[:4] == b"\x89PNG"


def test_nothing_is_pickled(trained):
    kinds = {path.suffix for path in trained[0].rglob("*") if path.is_file() and path.name != LOCK}

    assert (trained[0] / LOCK).read_bytes() == b""
    assert kinds == {".toml", ".json", ".jsonl", ".safetensors", ".md", ".png"}


def test_reports_have_speed_and_waiting(trained):
    lines = small.read_metrics(trained[0])

    assert [(line["event"], line["step"]) for line in lines] == [
        ("train", 2), ("valid", 3), ("train", 4), ("train", 6), ("valid", 6),
    ]  # fmt: skip
    expected = {"loss", "nll", "lr", "tokens_per_second", "data_wait", "padding", "epoch", "seconds"}
    assert expected <= lines[0].keys() and 0 <= lines[0]["data_wait"] < 1
    assert {"loss", "perplexity", "bleu", "accuracy", "signature", "best"} <= lines[-1].keys()


def test_card_describes_the_run_without_paths(trained):
    run, _, _ = trained
    text = (run / "card.md").read_text()

    for part in ("embedded:copy", "6 steps", "seed 1", "| bleu |", "signature", "torch", "weights of step", "threads"):
        assert part in text
    assert str(run.parent) not in text and not re.search(r"(^|\s)/\w+/", text)


def test_card_names_files_without_their_folders():
    corpora = (Corpus(files=("/home/me/a.en", "/home/me/a.de")), Corpus(files=("embedded:copy",)))

    assert small.finish.format_corpora(corpora) == "a.en + a.de, embedded:copy"


def test_default_names_are_counted(runs):
    recipe = small.small(**SHORT)

    api.train(recipe), api.train(recipe)
    api.train(recipe, run="named")

    assert sorted(item.name for item in runs.iterdir()) == ["copy-1", "copy-2", "named"]


def test_existing_run_is_refused_with_the_command_that_resumes_it(trained):
    with pytest.raises(SaccadeError, match=f"exists already; resume it: saccade train --resume {trained[0]}"):
        api.train(small.small(), run=trained[0])


def test_folder_that_is_no_run_is_left_alone(tmp_path):
    (tmp_path / "notes.txt").write_text("")

    with pytest.raises(SaccadeError, match="exists already and is not a run"):
        api.train(small.small(), run=tmp_path)


def test_folder_of_a_training_that_was_killed_before_it_had_a_recipe_is_taken_again(tmp_path):
    for name in (LOCK, ".recipe.toml.1.tmp", "tokenizer.json"):
        (tmp_path / name).write_text("")

    api.train(small.small(**SHORT), run=tmp_path)

    assert (tmp_path / "model.safetensors").is_file() and [path.name for path in tmp_path.glob(".*")] == [LOCK]


def test_folder_in_which_another_training_begins_is_left_to_it(tmp_path):
    with lock_run(tmp_path), pytest.raises(SaccadeError, match="is being trained by another process; wait"):
        api.train(small.small(), run=tmp_path)


def test_folder_that_cannot_be_made_is_reported(tmp_path):
    (tmp_path / "file").write_text("")

    with pytest.raises(SaccadeError, match="cannot create the folder.*Not a directory"):
        api.train(small.small(), run=tmp_path / "file" / "run")


@pytest.mark.parametrize("kept", [[], ["mine.txt"]])
def test_a_disk_that_is_full_before_the_recipe_is_written_leaves_the_name_free(tmp_path, monkeypatch, kept):
    def fill(recipe, path):
        raise OSError(errno.ENOSPC, "No space left on device")

    run = tmp_path / "run"
    if kept:  # beside the lock of a training that was killed
        run.mkdir()
        for name in (LOCK, *kept):
            (run / name).write_text("")
    monkeypatch.setattr("saccade.train.folder.save", fill)
    with pytest.raises(SaccadeError, match="No space left on device"):
        api.train(small.small(**SHORT), run=run)
    assert run.exists() == bool(kept) and (not kept or [item.name for item in run.iterdir()] == kept)
    if not kept:
        monkeypatch.undo()
        api.train(small.small(**SHORT), run=run)


def test_a_lock_of_a_folder_that_was_removed_meanwhile_is_no_lock(tmp_path, monkeypatch):
    def remove_first(file, kind):
        (tmp_path / LOCK).unlink()

    monkeypatch.setattr("fcntl.flock", remove_first)
    with pytest.raises(SaccadeError, match="was removed by another process; try again"), lock_run(tmp_path):
        pass


def test_failed_start_leaves_no_folder(tmp_path):
    with pytest.raises(SaccadeError, match="absent.en"):
        api.train(small.small(), data=[tmp_path / "absent.en", tmp_path / "absent.de"], run=tmp_path / "run")

    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "nothing to train: give the name or file of a recipe"),
        ({"recipe": small.small(), "tiny": True}, "tiny=True needs the name or the file"),
        ({"recipe": "transformer"}, "'transformer' has no training data.*--data SRC TGT.*--tiny"),
        ({"recipe": "transformer", "data": ["a", "b", "c"]}, "two line-aligned files, got 3: a, b, c"),
        ({"resume": "x", "recipe": "transformer", "data": "y", "tiny": True}, "leave out: recipe, data, tiny"),
        ({"resume": "x"}, "'x' is not a run: expected a folder with recipe.toml"),
        ({"recipe": small.small(), "overrides": ["train.stps=3"]}, "did you mean 'steps'"),
    ],
)
def test_calls_that_cannot_work_are_refused(arguments, message):
    with pytest.raises(SaccadeError, match=message):
        api.train(**arguments)


def test_data_comes_in_three_forms():
    one, two = Corpus(files=("a.tsv",)), Corpus(files=("a.en", "a.de"))

    assert api.to_corpora("a.tsv") == (one,)
    assert api.to_corpora(["a.en", Path("a.de")]) == (two,)
    assert api.to_corpora([["a.tsv"], ("a.en", "a.de"), two]) == (one, two, two)


def test_a_share_to_hold_out_is_below_one():
    with pytest.raises(SaccadeError, match="share of pairs held out, from 0 to below 1, got 5"):
        api.replace_data(small.small(), data=["a.en", "a.de"], valid=5)


def test_own_files_replace_those_of_the_recipe():
    recipe = api.replace_data(small.small(), data=["a.en", "a.de"], valid=0.25)

    assert recipe.data.train == (Corpus(files=("a.en", "a.de")),) and recipe.data.valid == 0.25


def test_what_a_run_is_made_of_cannot_change_on_resume(trained):
    with pytest.raises(SaccadeError, match=r"reader, train.seed cannot change.*saccade train .*recipe.toml init="):
        api.train(resume=trained[0], overrides=["train.seed=7", "reader.stack.layers=2"])


def test_resumed_run_can_be_extended_and_is_then_as_if_never_ended(fit):
    run = fit(**SHORT)
    fit(resume=True, overrides=["train.steps=4"])
    whole = fit("whole", **{**SHORT, "steps": 4})

    assert small.weights(run, 4) == small.weights(whole, 4)
    assert load(run / "recipe.toml") == load(whole / "recipe.toml")


def test_finished_run_stays_as_it_is(fit):
    run = fit(**SHORT, average={"kind": "last", "n": 2})
    before, lines = small.weights(run), small.read_metrics(run)

    fit(resume=True)

    assert small.weights(run) == before and len(small.read_metrics(run)) == len(lines)


def test_other_batches_on_resume_begin_the_epoch_again(fit, capsys):
    fit(**SHORT)

    run = fit(resume=True, overrides=["train.steps=3", "train.batch_tokens=128"])

    assert "train.batch_tokens was 256 and is 128: epoch 1 begins again" in capsys.readouterr().err
    assert small.checkpoint.load_latest(run / "checkpoints", warn=pytest.fail).state["data"]["batch"] == 1


def test_other_number_of_threads_is_reported(fit, capsys, monkeypatch):
    fit(**SHORT)
    monkeypatch.setattr(small.torch, "get_num_threads", lambda: 7)

    fit(resume=True)

    assert "continues with 7; for bit-identical weights set OMP_NUM_THREADS=1" in capsys.readouterr().err


def divide_weights(model, batch, generator, *, by: float = 2.0):
    return {
        name: term._replace(weight=term.weight / by) for name, term in next_token_loss(model, batch, generator).items()
    }


def test_user_brings_an_objective(fit):
    run = fit(**SHORT, overrides=["objectives=[{kind='halved', by=4.0}]"], kinds={"halved": divide_weights})

    [line, *_] = small.read_metrics(run)
    assert line["loss"] == pytest.approx(line["next-token"] / 4)
    assert load(run / "recipe.toml", kinds={"halved": divide_weights}).objectives[0].settings() == {"by": 4.0}


def test_recipe_file_is_trained_by_its_path(fit, tmp_path):
    save(small.small(**SHORT), tmp_path / "mine.toml")

    api.train(tmp_path / "mine.toml", run=tmp_path / "run", overrides=["train.steps=1"])

    assert small.checkpoint.list_steps(tmp_path / "run/checkpoints") == [1]


def test_package_can_be_called_and_costs_nothing_before():
    code = "import sys, saccade.train; print('torch' in sys.modules, callable(saccade.train))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "False True\n"
    assert saccade.train.train is api.train and saccade.train.Interrupted is Interrupted
    with pytest.raises(AttributeError, match="no attribute 'tain'"):
        saccade.train.tain  # noqa: B018


def test_runs_that_begin_at_once_get_names_of_their_own(runs):
    together = threading.Barrier(8)

    def take(_):
        together.wait()
        return api.create_run_folder("copy", None, ranks=api.Ranks(), device=torch.device("cpu"))

    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(take, range(8)))

    assert sorted(path.name for path in taken) == [f"copy-{n}" for n in range(1, 9)]
    assert all(path.is_dir() and path.parent == runs for path in taken)


def test_a_folder_that_another_run_has_just_made_is_not_taken(runs, monkeypatch):
    monkeypatch.setattr(Path, "exists", lambda path, **settings: False)  # as it was when both looked
    (runs / "copy-1").mkdir(parents=True)

    api.train(small.small(**SHORT))

    assert not any((runs / "copy-1").iterdir()) and (runs / "copy-2/model.safetensors").is_file()


def test_folder_of_runs_that_cannot_be_made_is_reported(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SACCADE_RUNS", str(tmp_path / "file" / "runs"))

    with pytest.raises(SaccadeError, match="cannot create the folder.*copy-1.*Not a directory"):
        api.train(small.small())


def test_failed_start_gives_its_name_back(runs, tmp_path):
    with pytest.raises(SaccadeError, match="absent.en"):
        api.train(small.small(), data=[tmp_path / "absent.en", tmp_path / "absent.de"])

    assert not any(runs.iterdir())


def test_a_run_to_resume_is_found_by_its_name(fit, runs):
    api.train(small.small(**SHORT), run="first")

    api.train(resume="first", overrides=["train.steps=3"])

    assert small.checkpoint.list_steps(runs / "first/checkpoints")[0] == 3


def test_training_preserves_the_random_state_of_the_caller(fit):
    def draw():
        return random.random(), numpy.random.rand(), torch.rand(1).item()

    def seed():
        random.seed(3), numpy.random.seed(3), torch.manual_seed(3)

    seed()
    expected = draw()
    seed()
    fit(**SHORT)

    assert draw() == expected


def test_overrides_come_after_the_files_they_may_describe(monkeypatch):
    seen = []
    monkeypatch.setattr(api, "train_run", lambda recipe, run, **_: seen.append(recipe) or Path("x"))
    monkeypatch.setattr(api.Predictor, "load", lambda *_, **__: None)

    api.train("dates", data="a.tsv", overrides=['data.train.0.columns=["en", "de"]'])

    assert seen[0].data.train[0].files == ("a.tsv",) and seen[0].data.train[0].columns == ("en", "de")


def test_overrides_as_one_string_are_refused():
    with pytest.raises(SaccadeError, match="overrides are a list of key=value strings, got 'train.steps=3'"):
        api.train("dates", overrides="train.steps=3")
