"""`saccade recipes`: list, show, copy."""

import pytest

from saccade.config.load import get_recipe_path, list_recipes, load


@pytest.mark.parametrize("words", [("recipes",), ("recipes", "list")])
def test_every_recipe_is_listed_with_what_it_is(cli, words):
    result = cli(*words)
    assert result.code == 0
    assert [line.split()[0] for line in result.out.splitlines()] == list_recipes()
    assert all(" et al. " in line or " and " in line for line in result.out.splitlines())


def test_show_prints_the_file(cli):
    assert cli("recipes", "show", "dates").out == get_recipe_path("dates").read_text()


def test_a_copy_is_the_same_recipe(cli, tmp_path):
    result = cli("recipes", "copy", "dates", "mine.toml")
    assert (result.code, result.out) == (0, "mine.toml\n")
    assert load(tmp_path / "mine.toml").train == load("dates").train


def test_a_copy_is_called_after_the_recipe(cli, tmp_path):
    assert cli("recipes", "copy", "dates").out == "dates.toml\n"
    assert (tmp_path / "dates.toml").exists()


def test_copy_never_overwrites(cli, tmp_path):
    (tmp_path / "mine.toml").write_text("mine")
    result = cli("recipes", "copy", "dates", "mine.toml")
    assert (result.code, result.err) == (2, "error: 'mine.toml' exists already; give another name\n")
    assert (tmp_path / "mine.toml").read_text() == "mine"


def test_a_copy_must_be_a_toml_file(cli):
    assert cli("recipes", "copy", "dates", "mine").err == "error: a recipe's file name ends in .toml, got 'mine'\n"


def test_copy_into_a_folder_that_is_not_there(cli):
    result = cli("recipes", "copy", "dates", "none/mine.toml")
    assert (result.code, result.err) == (2, "error: no such file or directory: 'none/mine.toml'\n")


def test_an_unknown_name_is_reported(cli):
    result = cli("recipes", "show", "date")
    assert result.code == 2
    assert result.err.startswith("error: unknown recipe 'date'; did you mean 'dates'?")
