"""The scripts that train language models to their end, at toy size."""

import json

import pytest


def rows(path):
    return json.loads(path.read_text())["rows"]


@pytest.mark.slow
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
