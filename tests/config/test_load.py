"""Loading, merging, overriding and saving of recipes."""

import errno
from pathlib import Path

import pytest

from saccade.config.load import dump, get_recipe_path, list_recipes, load, override, parse_value, save, validate
from saccade.config.schema import Corpus, Learned, Rotary, Sinusoidal, TransformerStack
from saccade.errors import SaccadeError


def write(folder: Path, text: str, name: str = "mine.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_recipe_is_found_by_name_and_by_path():
    assert load("transformer") == load(get_recipe_path("transformer"))


def test_a_recipe_without_a_name_is_called_after_its_file(tmp_path):
    assert load(write(tmp_path, "")).name == "mine"


def test_the_resolved_recipe_holds_defaults_and_no_tiny_table():
    text = dump(load("dates"))
    assert "[tiny]" not in text
    assert "patience" not in text  # None is left out
    assert "length_penalty = 0.6" in text


def test_none_survives_where_the_default_is_a_number(tmp_path):
    recipe = load("transformer", overrides=["train.steps=none", "train.epochs=3"])
    save(recipe, tmp_path / "recipe.toml")
    assert recipe.train.steps is None
    assert load(tmp_path / "recipe.toml") == recipe


def test_saving_leaves_no_other_file(tmp_path):
    save(load("dates"), tmp_path / "recipe.toml")
    assert [item.name for item in tmp_path.iterdir()] == ["recipe.toml"]


# ---- overrides


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2000", 2000),
        ("1e-4", 1e-4),
        ("true", True),
        ("pre", "pre"),
        ('"pre"', "pre"),
        ("", ""),
        ('["a", "b"]', ["a", "b"]),
        ("{ kind = 'rotary' }", {"kind": "rotary"}),
        ("1\nother = 2", "1\nother = 2"),
        ("runs/a-1", "runs/a-1"),
    ],
)
def test_override_values_are_toml_or_else_text(text, value):
    assert parse_value(text) == value


def test_overrides_reach_any_depth_and_keep_the_rest():
    recipe = load("transformer", overrides=["train.steps=2000", "reader.stack.norm=pre", 'data.train=["a", "b"]'])
    assert recipe.train.steps == 2000
    assert recipe.reader.stack.norm == "pre"
    assert recipe.reader.stack.layers == 6
    assert recipe.data.train == (Corpus(files=("a", "b")),)


def test_overrides_reach_into_lists():
    recipe = load("multi30k", overrides=["objectives.0.alpha=3"])
    assert recipe.objectives[0].alpha == 3.0


def test_an_index_beyond_the_list_is_reported():
    with pytest.raises(SaccadeError, match=r"objectives\.1: the list has 1 items, counted from 0"):
        load("multi30k", overrides=["objectives.1.alpha=3"])


def test_overrides_come_after_the_tiny_table():
    assert load("transformer", tiny=True, overrides=["train.steps=7"]).train.steps == 7


def test_the_last_override_wins():
    assert load("transformer", overrides=["train.steps=7", "train.steps=11"]).train.steps == 11


def test_a_new_kind_drops_the_old_kinds_keys_and_keeps_shared_ones(tmp_path):
    path = write(tmp_path, "[reader]\npositions = { kind = 'sinusoidal', layout = 'concatenated', combine = 'concat' }")
    recipe = load(path, overrides=["reader.positions.length=77", "reader.positions.kind=learned"])
    assert recipe.reader.positions == Learned(length=77, combine="concat")
    assert load(path, overrides=["reader.positions.kind=rotary"]).reader.positions == Rotary()


def test_a_new_kind_does_not_hide_a_wrong_key_of_the_user(tmp_path):
    path = write(tmp_path, "[reader]\npositions = { kind = 'sinusoidal' }")
    with pytest.raises(SaccadeError, match=r"reader\.positions\.layout: unknown key"):
        load(path, overrides=["reader.positions.kind=rotary", "reader.positions.layout=concatenated"])


def test_a_loaded_recipe_can_be_overridden():
    assert override(load("dates"), ["predict.beam=7"]).predict.beam == 7


@pytest.mark.parametrize("text", ["steps", "=3", "train..steps=3", ".=3"])
def test_an_override_must_be_key_and_value(text):
    with pytest.raises(SaccadeError, match=r"expected key=value, such as train\.steps=2000"):
        load("transformer", overrides=[text])


def test_short_forms_of_corpora():
    one = (Corpus(files=("a.tsv",)),)
    assert validate({"data": {"train": "a.tsv"}}).data.train == one
    assert validate({"data": {"train": ["a.tsv"]}}).data.train == one
    two = validate({"data": {"train": [["a", "b"], {"files": ["c.tsv"], "weight": 2.0}], "valid": 0.01}}).data
    assert two.train == (Corpus(files=("a", "b")), Corpus(files=("c.tsv",), weight=2.0))
    assert two.valid == 0.01


def test_short_form_of_one_frozen_part():
    assert validate({"freeze": "reader"}).freeze == ("reader",)


# ---- what can be wrong with the file


def test_an_unknown_recipe_is_answered_with_the_nearest_and_all_names():
    with pytest.raises(SaccadeError) as caught:
        load("transfomer")
    assert "unknown recipe 'transfomer'; did you mean 'transformer'?" in str(caught.value)
    assert all(name in str(caught.value) for name in list_recipes())


def test_a_missing_file_is_reported(tmp_path):
    with pytest.raises(SaccadeError, match=r"recipe file '.*none\.toml' not found; `saccade recipes` lists"):
        load(tmp_path / "none.toml")


def test_a_run_is_not_a_recipe(tmp_path):
    write(tmp_path, "", "recipe.toml")
    with pytest.raises(SaccadeError, match=r"is a run, not a recipe: go on with `saccade train --resume"):
        load(tmp_path)


def test_a_folder_does_not_hide_a_shipped_recipe(tmp_path, monkeypatch):
    (tmp_path / "gpt2").mkdir()
    write(tmp_path / "gpt2", "", "recipe.toml")
    monkeypatch.chdir(tmp_path)
    assert load("gpt2").name == "gpt2"
    with pytest.raises(SaccadeError, match="is a run, not a recipe"):
        load("./gpt2")


def test_broken_toml_is_reported_with_its_line(tmp_path):
    with pytest.raises(SaccadeError, match=r"not valid TOML: .*line 2"):
        load(write(tmp_path, "a = 1\nb = = 2"))


def test_a_recipe_that_is_not_utf8_is_reported(tmp_path):
    (tmp_path / "x.toml").write_bytes(b"about = '\xff'")
    with pytest.raises(SaccadeError, match=r"is not UTF-8 text \(byte 9\)"):
        load(tmp_path / "x.toml")


def test_a_recipe_that_may_not_be_read_is_reported(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    path = write(tmp_path, "")
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(SaccadeError, match=r"cannot read recipe file '.*mine\.toml': Permission denied$"):
        load(path)


def test_a_folder_named_like_a_recipe_is_reported(tmp_path):
    (tmp_path / "x.toml").mkdir()
    with pytest.raises(SaccadeError, match="not found"):
        load(tmp_path / "x.toml")


def test_a_recipe_of_a_newer_version_is_reported(tmp_path):
    with pytest.raises(SaccadeError, match=r"has schema_version 99, this saccade reads up to 1.*pip install --upgrade"):
        load(write(tmp_path, "schema_version = 99\nfuture = true"))


@pytest.mark.parametrize("text", ["", "tiny = 5"])
def test_tiny_without_a_tiny_table_is_reported(tmp_path, text):
    with pytest.raises(SaccadeError, match=r"has no \[tiny\] table"):
        load(write(tmp_path, text), tiny=True)


def test_defaults_without_a_kind_are_the_first_kind():
    recipe = validate({"reader": {"stack": {"dim": 8, "heads": 2}}})
    assert recipe.reader.stack == TransformerStack(dim=8, heads=2)
    assert recipe.reader.positions == Sinusoidal()
