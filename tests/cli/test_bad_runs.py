"""A run whose files are damaged, do not belong together, or come from the future: one line, exit code 2."""

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def damaged(run, tmp_path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "damaged"))


def refused(cli, path: Path) -> str:
    result = cli("predict", path, "3 May")
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith("error: ")
    assert result.err.count("\n") == 1
    return result.err


def test_truncated_weights(cli, damaged):
    weights = damaged / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert "is not a whole safetensors file" in refused(cli, damaged)


def test_weights_that_are_something_else(cli, damaged):
    (damaged / "model.safetensors").write_bytes(b"no weights at all")
    assert "is not a whole safetensors file" in refused(cli, damaged)


def test_no_weights_yet(cli, damaged):
    (damaged / "model.safetensors").unlink()
    assert f"go on training with `saccade train --resume {damaged}`" in refused(cli, damaged)


def test_a_tokenizer_that_does_not_match_the_weights(cli, damaged):
    shutil.copy(damaged / "tokenizer.target.json", damaged / "tokenizer.source.json")
    assert "the tokenizer does not match the weights" in refused(cli, damaged)


def test_a_run_from_a_newer_version(cli, damaged):
    recipe = damaged / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("schema_version = 1", "schema_version = 2"))
    assert "has schema_version 2, this saccade reads up to 1" in refused(cli, damaged)


def test_a_recipe_that_was_damaged(cli, damaged):
    (damaged / "recipe.toml").write_text("reader = [[[")
    assert "is not valid TOML" in refused(cli, damaged)


def test_a_run_can_be_moved(cli, run, tmp_path):
    before = cli("predict", run, "3 May").out
    for name in ("recipe.toml", "model.safetensors", "tokenizer.source.json", "tokenizer.target.json"):
        (tmp_path / "moved").mkdir(exist_ok=True)
        shutil.copy(run / name, tmp_path / "moved" / name)
    assert cli("predict", tmp_path / "moved", "3 May").out == before
