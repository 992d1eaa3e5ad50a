"""Runs with damaged, inconsistent or too new files: one line of error and exit code 2."""

import json
import shutil
from pathlib import Path

import pytest


@pytest.fixture
def damaged_run(run, tmp_path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "damaged"))


def get_refusal(cli, path: Path) -> str:
    result = cli("predict", path, "3 May")
    assert result.code == 2
    assert result.out == ""
    assert result.err.startswith("error: ")
    assert result.err.count("\n") == 1
    return result.err


def test_truncated_weights(cli, damaged_run):
    weights = damaged_run / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert "is not a whole safetensors file" in get_refusal(cli, damaged_run)


def test_a_weights_file_that_is_not_safetensors(cli, damaged_run):
    (damaged_run / "model.safetensors").write_bytes(b"no weights at all")
    assert "is not a whole safetensors file" in get_refusal(cli, damaged_run)


def test_no_weights_yet(cli, damaged_run):
    (damaged_run / "model.safetensors").unlink()
    assert f"go on training with `saccade train --resume {damaged_run}`" in get_refusal(cli, damaged_run)


def test_a_tokenizer_that_does_not_match_the_weights(cli, damaged_run):
    shutil.copy(damaged_run / "tokenizer.target.json", damaged_run / "tokenizer.source.json")
    assert "the tokenizer does not match the weights" in get_refusal(cli, damaged_run)


def test_a_tokenizer_with_an_id_far_beyond_its_tokens(cli, damaged_run):
    """Each id gets a row of the embedding: 3 billion of them would fill the memory."""
    path = damaged_run / "tokenizer.source.json"
    settings = json.loads(path.read_text())
    vocabulary = settings["model"]["vocab"]
    vocabulary[max(vocabulary, key=vocabulary.get)] = 3_000_000_000
    path.write_text(json.dumps(settings))
    assert "but an id of 3,000,000,000; expected ids below" in get_refusal(cli, damaged_run)


def test_a_tokenizer_that_puts_unknown_tokens_around_texts(cli, damaged_run):
    path = damaged_run / "tokenizer.source.json"
    settings = json.loads(path.read_text())
    token = {"id": "<end>", "ids": [777], "tokens": ["<end>"]}
    settings["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<end>", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<end>": token},
    }
    path.write_text(json.dumps(settings))
    assert "puts a token of the id 777 around texts, but has none" in get_refusal(cli, damaged_run)


def test_a_run_from_a_newer_version(cli, damaged_run):
    recipe = damaged_run / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("schema_version = 1", "schema_version = 2"))
    assert "has schema_version 2, this saccade reads up to 1" in get_refusal(cli, damaged_run)


def test_a_recipe_that_was_damaged(cli, damaged_run):
    (damaged_run / "recipe.toml").write_text("reader = [[[")
    assert "is not valid TOML" in get_refusal(cli, damaged_run)


def test_a_run_can_be_moved(cli, run, tmp_path):
    before = cli("predict", run, "3 May").out
    for name in ("recipe.toml", "model.safetensors", "tokenizer.source.json", "tokenizer.target.json"):
        (tmp_path / "moved").mkdir(exist_ok=True)
        shutil.copy(run / name, tmp_path / "moved" / name)
    assert cli("predict", tmp_path / "moved", "3 May").out == before
