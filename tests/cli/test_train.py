"""`saccade train` and `saccade demo`: what the words mean, and what is told when they mean nothing."""

import pytest

import saccade.demo.dates
import saccade.train.api
from saccade.config.load import shipped

STEPS = ("train.steps=2", "train.schedule.warmup=1", "train.valid_predictions=3")
SMALL = ("data.train=[{ files = ['embedded:copy'], examples = 200 }]", "data.valid=0.1")


@pytest.fixture
def called(monkeypatch) -> dict:
    """What the command line hands to `saccade.train`, which does not run."""
    seen: dict = {}

    def train(recipe, **settings):
        seen.update(recipe=recipe, **settings)

    monkeypatch.setattr(saccade.train.api, "train", train)
    return seen


def test_all_words_reach_training(cli, called):
    words = "transformer --data a.en a.de --data b.tsv --valid v.en v.de --run mine --tiny train.steps=3 init=runs/a"
    assert cli("train", *words.split()).code == 0
    assert called == {
        "recipe": "transformer",
        "data": [["a.en", "a.de"], ["b.tsv"]],
        "valid": [["v.en", "v.de"]],
        "run": "mine",
        "tiny": True,
        "resume": None,
        "overrides": ["train.steps=3", "init=runs/a"],
    }


def test_a_share_is_held_out(cli, called):
    cli("train", "transformer", "--data", "a", "b", "--valid", "0.02")
    assert (called["valid"], called["overrides"]) == (None, ["data.valid=0.02"])


def test_resume_needs_no_recipe_and_may_have_overrides(cli, called):
    assert cli("train", "--resume", "runs/a", "train.steps=9").code == 0
    assert (called["recipe"], called["resume"], called["overrides"]) == (None, "runs/a", ["train.steps=9"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "train needs a recipe (`saccade recipes` lists them), or --resume RUN to go on with a run"),
        (("transformer", "extra"), "unexpected argument 'extra'; expected key=value, such as train.steps=2000"),
        (("transformer", "--data"), "--data needs one or two values: --data SRC TGT, or --data FILE with both sides"),
        (
            ("transformer", "--tiny", "train.stepz=3"),
            "recipe 'transformer': train.stepz: unknown key; did you mean 'steps'?",
        ),
        (("dates", "--valid", "7"), "recipe 'dates': data.valid: expected less than 1.0, got 7.0"),
    ],
)
def test_mistakes_are_one_line(cli, words, message):
    result = cli("train", *words)
    assert (result.code, result.err) == (2, f"error: {message}\n")


def test_without_data_both_ways_on_are_named(cli, tmp_path):
    result = cli("train", "transformer")
    assert result.code == 2
    assert "--data SRC TGT" in result.err
    assert "--tiny" in result.err
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_recipe_is_told(cli):
    result = cli("train", "transformr", "--tiny")
    assert (result.code, "did you mean 'transformer'?" in result.err) == (2, True)


def test_missing_files_are_told(cli):
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


def test_a_folder_that_may_not_be_written_is_told(cli, tmp_path):
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
    assert [line.split()[0] for line in listed] == ["dates", *(name for name in shipped() if name != "dates")]
    assert any(line.split()[:5] == ["show-attend-tell", "scenes", "accuracy", ">=", "85"] for line in listed)


def test_demo_of_an_unknown_name_is_told(cli):
    result = cli("demo", "show-atend-tell")
    assert result.code == 2
    assert result.err == (
        "error: no demonstration is called 'show-atend-tell'; did you mean show-attend-tell? "
        "`saccade demo --list` lists them\n"
    )
