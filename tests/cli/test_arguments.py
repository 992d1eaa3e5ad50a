"""Parsing of `--data` with one or two values, and of key=value overrides."""

import pytest

from saccade.cli.arguments import check_overrides, join_paired_values, parse_corpora, split_overrides
from saccade.errors import SaccadeError


def parse_line(line: str, name: str = "--data") -> tuple[list[list[str]], list[str]]:
    """Parse a command line: the corpora of option `name`, and the remaining arguments."""
    words = join_paired_values(line.split())
    mine = [word.partition("=")[2] for word in words if word.startswith(f"{name}=")]
    return parse_corpora(mine), [word for word in words if not word.startswith(f"{name}=")]


@pytest.mark.parametrize(
    ("line", "found", "left"),
    [
        ("train x --data a.en a.de", [["a.en", "a.de"]], ["train", "x"]),
        ("train --data a.en a.de x", [["a.en", "a.de"]], ["train", "x"]),
        ("train x --data=a.en a.de", [["a.en", "a.de"]], ["train", "x"]),
        ("train x --data a.tsv", [["a.tsv"]], ["train", "x"]),
        ("train --data a.tsv x", [["a.tsv"]], ["train", "x"]),
        ("train --data a.jsonl.gz x", [["a.jsonl.gz"]], ["train", "x"]),
        ("train --data embedded:dates x", [["embedded:dates"]], ["train", "x"]),
        ("train x --data a b --data c.csv", [["a", "b"], ["c.csv"]], ["train", "x"]),
        ("train x --data user/set train.steps=3", [["user/set"]], ["train", "x", "train.steps=3"]),
        ("train x --data user/set --tiny", [["user/set"]], ["train", "x", "--tiny"]),
        ("predict x -- --data a", [], ["predict", "x", "--", "--data", "a"]),
    ],
)
def test_data_takes_one_or_two_values(line, found, left):
    assert parse_line(line) == (found, left)


def test_valid_is_parsed_in_the_same_way():
    assert parse_line("train x --data a b --valid c d", "--valid")[0] == [["c", "d"]]


def test_names_with_spaces_and_quotes_survive():
    assert parse_corpora([join_paired_values(["--data", 'a "b".en', "ü d.de"])[0].partition("=")[2]]) == [
        ['a "b".en', "ü d.de"]
    ]


@pytest.mark.parametrize("line", ["train x --data", "train x --data --tiny", "train x --data train.steps=3"])
def test_data_without_a_value_is_reported(line):
    with pytest.raises(SaccadeError, match="--data needs one or two values: --data SRC TGT"):
        join_paired_values(line.split())


def test_overrides_must_be_key_and_value():
    assert check_overrides(["train.steps=3"]) == ["train.steps=3"]
    with pytest.raises(SaccadeError, match="unexpected argument 'extra'; expected key=value"):
        check_overrides(["train.steps=3", "extra"])


def test_a_file_too_many_is_answered_with_the_option_for_a_further_corpus(tmp_path):
    path = tmp_path / "b.tsv"
    path.touch()
    with pytest.raises(SaccadeError, match=f"a further corpus has an option of its own: --data {path}$"):
        check_overrides([str(path)])


def test_texts_and_settings_are_distinguished():
    words = ["x = 3", "beam=4", "predict.top_k=2", "1+1=2", "a sentence", "prefix=Das ist"]
    assert split_overrides(words) == (["x = 3", "1+1=2", "a sentence"], ["beam=4", "predict.top_k=2", "prefix=Das ist"])
