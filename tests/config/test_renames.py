"""Keys and tasks of 0.8 are read until 1.0: in files, on the command line, in Python and in stored runs."""

from pathlib import Path
from typing import Any

import pytest

from saccade.config import schema
from saccade.config.descriptions import list_recipe_tables
from saccade.config.load import dump, load, override, validate
from saccade.config.renames import KEYS, TASKS, get_new_path, get_renamed_keys, get_renamed_paths
from saccade.config.task import get_task, list_tasks
from saccade.errors import SaccadeError

OLD_FILE = """
task = "label"
[data]
cut = true
[tokenizer]
begin = true
[reader.stack]
share = true
[reader.positions]
kind = "learned"
how = "add"
[writer]
kind = "label"
hidden = 64
[[objectives]]
kind = "label"
smoothing = 0.1
[train]
start = { kind = "normal", std = 0.01 }
[tiny]
data.cross = true
train.schedule.warmup = 7
"""


@pytest.fixture
def old_file(tmp_path: Path) -> Path:
    path = tmp_path / "old.toml"
    path.write_text(OLD_FILE)
    return path


def test_the_table_of_renames_fits_the_schema() -> None:
    tables = list_recipe_tables()
    bases = {base.__name__ for table in tables for base in table.__mro__}
    assert KEYS.keys() <= bases
    for table in tables:
        for old, new in get_renamed_keys(table).items():
            assert new in table.model_fields and old not in table.model_fields, (table.__name__, old)
    old_keys, new_keys = ({key for pairs in KEYS.values() for key in keys(pairs)} for keys in (dict.keys, dict.values))
    assert not old_keys & new_keys  # so that reading a recipe twice changes nothing
    assert {*TASKS.values()} <= {*list_tasks()} and not TASKS.keys() & {*list_tasks()}


def test_an_old_file_is_read_with_one_note(old_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe: Any = load(old_file, tiny=True)
    assert recipe.task == get_task("classify") and recipe.data.truncate and recipe.data.cross_document
    assert recipe.reader.stack.share_layers and recipe.writer.hidden_dim == 64
    assert recipe.objectives[0].label_smoothing == 0.1 and recipe.train.schedule.warmup_steps == 7
    assert recipe.train.weight_init.init_std == 0.01
    note = capsys.readouterr().err
    assert note.count("\n") == 1 and note.startswith(f"note: recipe '{old_file}': data.cut is now data.truncate, ")
    for part in (
        "objectives.0.smoothing is now objectives.0.label_smoothing",
        "train.start.std is now train.weight_init.init_std",
        "data.cross is now data.cross_document",
        'task = "label" is now "classify"',
        "old names are read until 1.0",
    ):
        assert part in note


def test_the_recipe_of_a_run_is_read_without_a_note(old_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = old_file.with_name("recipe.toml")
    run.write_text(OLD_FILE)
    assert load(run) == load(old_file).model_copy(update={"name": "recipe"})
    assert capsys.readouterr().err.count("note:") == 1  # of the file that is no run
    load(run, overrides=["data.cut=false"])
    assert "data.cut is now data.truncate" in capsys.readouterr().err


def test_old_and_new_spelling_give_the_same_recipe(old_file: Path) -> None:
    recipe = load(old_file)
    again = old_file.with_name("new.toml")
    again.write_text(dump(recipe))
    assert load(again) == recipe and dump(load(again)) == dump(recipe)


def test_overrides_under_old_names(capsys: pytest.CaptureFixture[str]) -> None:
    old = ["train.schedule.warmup=9", "objectives.0.smoothing=0.2", "predict.repetition=1.5", "predict.beam=1"]
    new = [
        "train.schedule.warmup_steps=9", "objectives.0.label_smoothing=0.2", "predict.repetition_penalty=1.5",
        "predict.beam=1",
    ]  # fmt: skip
    assert load("transformer", overrides=old) == load("transformer", overrides=new)
    recipe = load("transformer")
    assert override(recipe, old) == override(recipe, new)
    notes = capsys.readouterr().err.splitlines()
    assert len(notes) == 2 and all("train.schedule.warmup is now train.schedule.warmup_steps" in note for note in notes)


def test_an_old_override_wins_over_the_file() -> None:
    recipe: Any = load("vit", overrides=["reader.first=false", "writer.pooling=mean", "reader.changes.flip=0.25"])
    assert not recipe.reader.class_token and recipe.reader.augment.flip == 0.25


def test_the_kind_decides_what_an_old_key_means() -> None:
    axial = ["reader.positions.kind=axial", "reader.positions.first=128"]
    recipe: Any = load("transformer", overrides=[*axial, "writer.stack={kind='recurrent', first='predicted'}"])
    assert recipe.reader.positions.row_dim == 128 and recipe.writer.stack.initial_state == "predicted"


def test_keys_of_ones_own_kinds_keep_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    def stack(*, share: bool, dim: int = 8) -> None: ...

    values = {"reader": {"stack": {"kind": "mine", "share": True}}}
    recipe: Any = validate(values, kinds={"mine": stack})
    assert recipe.reader.stack.settings() == {"share": True, "dim": 8} and capsys.readouterr().err == ""


@pytest.mark.parametrize(("old", "new"), TASKS.items())
def test_old_tasks_are_read_in_python(old: str, new: str) -> None:
    assert get_task(old) is get_task(new)


def test_dictionaries_and_tables_in_python(capsys: pytest.CaptureFixture[str]) -> None:
    recipe: Any = validate({"data": {"cut": True}, "reader": {"stack": {"share": True}}})
    assert recipe.data.truncate and recipe.reader.stack.share_layers
    assert "note: recipe: data.cut is now data.truncate, reader.stack.share is now" in capsys.readouterr().err
    assert schema.Recipe.model_validate({"data": {"cut": True}}).data.truncate
    assert schema.Data(**{"cut": True}).truncate  # type: ignore[arg-type]


def test_a_key_under_both_names_is_refused(tmp_path: Path) -> None:
    message = "data.truncate is given twice, also under its old name data.cut; leave data.cut out"
    both = tmp_path / "both.toml"
    both.write_text("[data]\ncut = true\ntruncate = true\n")
    for reading in (
        lambda: load(both),
        lambda: validate({"data": {"cut": True, "truncate": False}}),
        lambda: load("transformer", overrides=["data.cut=true", "data.truncate=true"]),
    ):
        with pytest.raises(SaccadeError, match=message) as error:
            reading()
        assert "\n" not in str(error.value)
    with pytest.raises(SaccadeError, match=r"tokenizer.mask_token is given twice"):
        validate({"tokenizer": {"mask": True, "mask_token": True}})


def test_paths_of_renamed_keys() -> None:
    paths = get_renamed_paths()
    assert paths["reader.look.changes.strength"] == "reader.image.augment.magnitude"
    assert paths["objectives.one_in"] == "objectives.tokens_per_prediction"
    assert get_new_path("reader.look.init") == "reader.image.init" and get_new_path("train.steps") == "train.steps"


def test_the_command_line_refuses_both_names_with_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    from saccade.cli import main

    with pytest.raises(SystemExit) as left:
        main(["train", "transformer", "--tiny", "data.cut=true", "data.truncate=true"])
    message = capsys.readouterr().err
    assert left.value.code == 2 and message.count("\n") == 1
    assert "data.truncate is given twice, also under its old name data.cut" in message


def test_decoding_settings_of_predict_and_of_the_server(capsys: pytest.CaptureFixture[str]) -> None:
    from saccade.cli.predict import build_decoding, check_settings
    from saccade.serve.decoding import DecodingSettings

    recipe = load("gpt2")
    check_settings(recipe, ["slide=true"])
    assert build_decoding(recipe, ["slide=true"]).truncate_prompt
    assert "predict.slide is now predict.truncate_prompt" in capsys.readouterr().err
    changes = {"repetition": 1.5, "beam": 1}
    assert DecodingSettings(recipe).build_decoding(changes).repetition_penalty == 1.5
    with pytest.raises(SaccadeError, match="repetition_penalty: expected at most 100"):
        DecodingSettings(recipe).build_decoding({**changes, "repetition": 1000.0})
    assert capsys.readouterr().err == ""  # nobody reads the server's log
