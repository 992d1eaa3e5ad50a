"""`saccade train` and `saccade demo`: how arguments are parsed, and which messages wrong ones give."""

import logging

import pytest

import saccade.demo.dates
import saccade.train.api
from saccade.config.load import list_recipes

STEPS = ("train.steps=2", "train.schedule.warmup_steps=1", "train.valid_predictions=3")
SMALL = ("data.train=[{ files = ['embedded:copy'], examples = 200 }]", "data.valid=0.1")


@pytest.fixture
def train_arguments(monkeypatch) -> dict:
    """The arguments that the command line passes to `saccade.train`, which is replaced."""
    seen: dict = {}

    def train(recipe, **settings):
        seen.update(recipe=recipe, **settings)

    monkeypatch.setattr(saccade.train.api, "train", train)
    return seen


def test_all_arguments_reach_training(cli, train_arguments):
    words = "transformer --data a.en a.de --data b.tsv --valid v.en v.de --run mine --tiny train.steps=3 init=runs/a"
    assert cli("train", *words.split()).code == 0
    assert train_arguments == {
        "recipe": "transformer",
        "data": [["a.en", "a.de"], ["b.tsv"]],
        "valid": [["v.en", "v.de"]],
        "run": "mine",
        "tiny": True,
        "paper": False,
        "resume": None,
        "overrides": ["train.steps=3", "init=runs/a"],
        "kinds": {},
        "overwrite": False,
    }


def test_a_share_is_held_out(cli, train_arguments):
    cli("train", "transformer", "--data", "a", "b", "--valid", "0.02")
    assert (train_arguments["valid"], train_arguments["overrides"]) == (None, ["data.valid=0.02"])


def test_resume_needs_no_recipe_and_may_have_overrides(cli, train_arguments):
    assert cli("train", "--resume", "runs/a", "train.steps=9").code == 0
    assert (train_arguments["recipe"], train_arguments["resume"], train_arguments["overrides"]) == (
        None,
        "runs/a",
        ["train.steps=9"],
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "train needs a recipe (`saccade recipes` lists them), or --resume RUN to continue a run"),
        (("transformer", "extra"), "unexpected argument 'extra'; expected key=value, such as train.steps=2000"),
        (("transformer", "--data"), "--data needs one or two values: --data SRC TGT, or --data FILE with both sides"),
        (
            ("transformer", "--tiny", "train.stepz=3"),
            "recipe 'transformer': train.stepz: unknown key; did you mean 'steps'?",
        ),
        (
            ("dates", "--valid", "0.1", "--valid", "0.2"),
            "--valid names files, or one share of the training data to hold out; got 0.1 and more",
        ),
        (("dates", "--valid", "7"), "recipe 'dates': data.valid: expected less than 1.0, got 7.0"),
    ],
)
def test_mistakes_are_one_line(cli, words, message):
    result = cli("train", *words)
    assert (result.code, result.err) == (2, f"error: {message}\n")


def test_without_data_the_message_names_data_and_tiny(cli, tmp_path):
    result = cli("train", "transformer")
    assert result.code == 2
    assert "--data SRC TGT" in result.err
    assert "--tiny" in result.err
    assert list(tmp_path.iterdir()) == []


def test_verbose_reports_why_batches_are_not_packed(cli):
    stacks = ("reader.stack.dim=8", "writer.stack.dim=8", "train.device=cpu")
    arguments = ("train", "bahdanau", "--tiny", *STEPS, *SMALL, *stacks)
    result = cli(*arguments, "--run", "a", "--verbose")
    assert result.code == 0, result.err
    assert sum(line.startswith("batches are padded, not packed: ") for line in result.err.splitlines()) == 1
    assert "not packed" not in cli(*arguments, "--run", "b").err
    assert logging.getLogger("saccade").handlers == []


def test_an_unknown_recipe_is_reported(cli):
    result = cli("train", "transformr", "--tiny")
    assert (result.code, "did you mean 'transformer'?" in result.err) == (2, True)


def test_missing_files_are_reported(cli):
    result = cli("train", "transformer", "--data", "none.en", "none.de")
    assert (result.code, "none.en" in result.err, result.err.count("\n")) == (2, True, 1)


def test_a_run_that_exists_is_refused_and_can_be_resumed(cli, tmp_path):
    words = ("train", "dates", "--tiny", "--run", "mine", *STEPS, *SMALL)
    assert cli(*words).code == 0
    assert (tmp_path / "runs" / "mine" / "model.safetensors").exists()
    again = cli(*words)
    assert (again.code, "saccade train --resume runs/mine" in again.err) == (2, True)
    assert cli("train", "--resume", "mine", "train.steps=3").code == 0
    assert " finished  3 " in cli("runs").out


def test_a_folder_that_may_not_be_written_is_reported(cli, tmp_path):
    (tmp_path / "runs").write_text("a file where the folder should be")
    result = cli("train", "dates", "--tiny", *STEPS, *SMALL)
    assert (result.code, result.err.count("Traceback"), "runs" in result.err) == (2, 0, True)


def test_demo_passes_its_options_on(cli, monkeypatch):
    seen = {}
    monkeypatch.setattr(saccade.demo.dates, "run_demo", lambda **options: seen.update(options))
    assert cli("demo", "--run", "mine", "--seed", 7).code == 0
    assert seen == {"run": "mine", "seed": 7}


def test_demo_lists_what_it_shows(cli):
    listed = cli("demo", "--list").out.splitlines()
    assert [line.split()[0] for line in listed] == ["dates", *(name for name in list_recipes() if name != "dates")]
    assert any(line.split()[:5] == ["show-attend-tell", "scenes", "accuracy", ">=", "85"] for line in listed)


def test_demo_of_an_unknown_name_is_reported(cli):
    result = cli("demo", "show-atend-tell")
    assert result.code == 2
    assert result.err == (
        "error: unknown demonstration 'show-atend-tell'; did you mean show-attend-tell? "
        "`saccade demo --list` lists them\n"
    )
