"""The scripts that train language models to their end, at toy size."""

import gzip
import json

import pytest

LETTERS = "To be, or not to be, that is the question.\n" * 60


def rows(path):
    return json.loads(path.read_text())["rows"]


def test_books_are_learned_by_both_contenders(script, command, tmp_path):
    pytest.importorskip("transformers")
    books = script("books")
    command("books.py", "--tiny", "--rates", "1e-3", "--out", tmp_path)
    books.main()
    ours, theirs = (row for row in rows(tmp_path / "books.json") if not row.get("detail"))
    assert ours["what"].endswith("saccade: bits per byte on valid") and 0 < ours["value"] < 8
    assert ours["peer_value"] == theirs["value"] and ours["ratio"] == round(ours["value"] / theirs["value"], 4)


def test_data_or_toy_sizes_are_asked_for(script, command, capsys):
    books = script("books")
    command("books.py")
    with pytest.raises(SystemExit):
        books.main()
    assert "give --data FOLDER, or --tiny" in capsys.readouterr().err


def test_schedule_of_the_other_contender_goes_up_and_down_to_a_tenth(script):
    cosine = script("books").get_cosine_factor
    assert cosine(0, 100) == pytest.approx(0.2) and cosine(4, 100) == cosine(5, 100) == 1.0
    assert cosine(100, 100) == pytest.approx(0.1)


def test_shakespeare_is_cut_and_measured(script, command, tmp_path):
    shakespeare = script("shakespeare")
    (tmp_path / "tinyshakespeare").mkdir()
    (tmp_path / "tinyshakespeare" / "input.txt.gz").write_bytes(gzip.compress(LETTERS.encode()))
    train, valid = shakespeare.split_text(tmp_path / "tinyshakespeare" / "input.txt.gz", tmp_path)
    assert train.read_text() + valid.read_text() == LETTERS and len(train.read_text()) == int(0.9 * len(LETTERS))

    small = ["writer.stack.layers=1", "writer.stack.dim=8", "writer.stack.heads=2", "writer.stack.ff=8"]
    few = ["train.steps=3", "train.valid_every=3", "train.save_every=3", "train.batch_tokens=512"]
    command("shakespeare.py", "--data", tmp_path, "--out", tmp_path, *small, *few)
    shakespeare.main()
    loss, seconds = rows(tmp_path / "shakespeare.json")
    assert 1 < loss["value"] < 6 and loss["seed"] == 1 and seconds["unit"] == "s"
