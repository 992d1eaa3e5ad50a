"""Classifiers on the command line: train, predict, evaluate, compare, view."""

import json
from pathlib import Path

import pytest

FEW = [
    "train.steps=3", "train.epochs=none", "train.valid_every=3", "train.save_every=3", "train.batch_tokens=512",
    "train.device=cpu", "tokenizer.kind=words", "reader.stack={layers=1, dim=8, heads=2, ff=9}",
]  # fmt: skip


@pytest.fixture
def files(tmp_path):
    rows = [f"text {i}\t{'yes' if i % 2 else 'no'}" for i in range(40)]
    (tmp_path / "train.tsv").write_text("sentence\tlabel\n" + "\n".join(rows))
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\n" + "\n".join(rows[:10]))
    return tmp_path


@pytest.fixture
def train_run(cli, files):
    def train(name="x"):
        assert cli("train", "classify", "--data", "train.tsv", "--valid", "dev.tsv", "--run", name, *FEW).code == 0
        return f"runs/{name}"

    return train


def test_labels_of_another_kind_than_the_writer_predicts(cli, train_run, files):
    labels = Path(train_run(), "labels.json")
    labels.write_text(labels.read_text().replace('"label"', '"tags"'))
    result = cli("predict", "x", "text 1")
    assert result.code == 2
    assert "has labels of the kind 'tags', the writer of recipe.toml predicts 'label'; is one" in result.err


def test_a_classifier_from_files_to_a_table(cli, train_run, files):
    train_run()
    (files / "a.txt").write_text("text 1\ntext 2\n")
    assert cli("predict", "x", "text 1", "text 2").out == cli("predict", "x", "--input", "a.txt").out
    found = json.loads(cli("predict", "x", "text 1", "--json").out)
    assert found["label"] in ("no", "yes")
    assert sum(found["probabilities"].values()) == pytest.approx(1)
    said = cli("evaluate", "x").out
    assert "is \\ said" in said
    measured = json.loads(cli("evaluate", "x", "--data", "dev.tsv", "--json").out)
    assert measured["scores"].keys() == {"accuracy", "f1", "matthews"}
    assert sum(map(sum, measured["counts"])) == 10
    with (files / "dev.tsv").open("a") as dev:
        dev.write("\ntext without a label\t\n\tyes\n")
    found = cli("evaluate", "x", "--data", "dev.tsv")
    assert "note: 2 rows without a text or a label left out; the first one is dev.tsv:12\n" in found.err
    assert "reader.stack.blocks.0.self" in cli("view", "x", "text 1").out
    assert "Y  outputs, A V" in cli("lectures", "trace", "x", "text 1").out


def test_runs_are_compared_by_their_labels(cli, train_run):
    train_run("x"), train_run("y")
    found = json.loads(cli("compare", "x", "y", "--metric", "f1", "--json").out)
    assert (found["metric"], found["sentences"]) == ("f1", 10)
    assert "accuracy %" in cli("compare", "x", "y").out
    assert "these runs cannot be compared by 'bleu', only by accuracy or f1 or matthews" in fails(
        cli, "compare", "x", "y", "--metric", "bleu"
    )


def test_columns_of_training_are_those_of_other_files(cli, files):
    for name in ("train", "dev"):
        rows = [line.split("\t") for line in (files / f"{name}.tsv").read_text().splitlines()[1:]]
        (files / f"{name}.tsv").write_text("\n".join(f"x\t{label}\t*\t{text}" for text, label in rows))
    columns = 'data.train.0.columns=["4", "2"]'
    cli("train", "classify", "--data", "train.tsv", "--valid", "dev.tsv", "--run", "x", *FEW, columns)
    assert "10 texts" in cli("evaluate", "x", "--data", "dev.tsv").out


def test_what_a_user_did_wrong_is_reported(cli, train_run, files):
    train_run()
    (files / "other.tsv").write_text("sentence\tlabel\na\tmaybe\n")
    assert "text 1: unknown label 'maybe'" in fails(cli, "evaluate", "x", "--data", "other.tsv")
    assert "load it alone" in fails(cli, "predict", "x,x", "a")
    assert "CTranslate2 cannot express writer.kind = 'label'" in fails(
        cli, "predict", "x", "a", "--engine", "ctranslate2"
    )
    (files / "runs" / "x" / "labels.json").unlink()
    assert "has no labels.json" in fails(cli, "predict", "x", "a")


def fails(cli, *words):
    found = cli(*words)
    assert found.code == 2
    return found.err
