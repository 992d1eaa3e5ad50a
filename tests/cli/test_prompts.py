"""Templates and examples on the command line, with a language model that has learned nothing."""

import json
from pathlib import Path

import pytest

TEMPLATE = r"a{q}b {a}"


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    (tmp_path / "examples.jsonl").write_text('{"q": "c", "a": "d"}\n')
    (tmp_path / "tasks.jsonl").write_text('{"q": "d", "a": "g"}\n{"q": "e", "a": "f"}\n')
    return tmp_path


def test_texts_and_rows_become_the_same_prompts(cli, written, rows):
    made = ("--template", TEMPLATE, "--examples", "examples.jsonl")
    found = json.loads(cli("predict", written, "d", *made, "--json").out)
    assert found["prompt"] == "acb d\nadb"
    lines = cli("predict", written, "--input", "tasks.jsonl", *made, "--json").out.splitlines()
    every = [json.loads(line) for line in lines]
    assert [item["prompt"] for item in every] == ["acb d\nadb", "acb d\naeb"]
    assert every[0]["completion"] == found["completion"]
    typed = json.loads(cli("predict", written, "acb d\nadb", r"stop=\n", "--json").out)
    assert (typed["prompt"], typed["completion"]) == (found["prompt"], found["completion"])
    plain = cli("predict", written, "d", *made).out
    assert plain == found["completion"].strip() + "\n"


def test_answers_are_scored(cli, written, rows):
    made = ("--data", "tasks.jsonl", "--template", TEMPLATE, "--examples", "examples.jsonl")
    result = cli("evaluate", written, *made, "--json", "--output", "out.txt")
    found = json.loads(result.out)
    assert (result.code, found["sentences"], list(found["scores"])) == (0, 2, ["accuracy"])
    assert len((rows / "out.txt").read_text().splitlines()) == 2
    chosen = json.loads(cli("evaluate", written, *made, "--options", "g, f", "--json").out)
    assert list(chosen["scores"]) == ["accuracy", "accuracy per byte"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["predict", "RUN", "d", "--examples", "examples.jsonl"], "--examples needs a template"),
        (["evaluate", "RUN", "--options", "a,b", "--data", "tasks.jsonl"], "--options needs a template"),
        (["predict", "RUN", "d", "--template", "{q} {b} {a}"], "has the fields q, b, so that one text is not enough"),
        (["predict", "RUN", "--input", "tasks.jsonl", "--template", "{z}: {a}"], ":1: the template asks for {z}"),
        (["predict", "OTHER", "d", "--template", TEMPLATE], "--template makes prompts for a language model"),
        (["evaluate", "RUN", "--template", TEMPLATE], "--template needs tasks with their right answers"),
        (["evaluate", "RUN", "--data", "tasks.jsonl", "--template", "{q} {z}"], ":1: the template asks for {z}"),
        (["evaluate", "RUN", "--data", "tasks.jsonl", "--metrics", "bleu"], "unknown metric 'bleu' of a language"),
        (["evaluate", "RUN", "--data", "tasks.jsonl", "--lowercase"], "--metrics and --lowercase say nothing"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_is_one_line_and_code_2(cli, written, run, rows, words, message):
    result = cli(*({"RUN": written, "OTHER": run}.get(word, word) for word in words))
    assert (result.code, result.err.count("\n")) == (2, 1) and message in result.err


def test_every_token_of_a_text_can_be_kept_with_its_value(cli, written, tmp_path):
    (tmp_path / "text.txt").write_text("abc\ndef g.\n")
    total = json.loads(cli("evaluate", written, "--data", "text.txt", "--output", "values.jsonl", "--json").out)
    values = [json.loads(line) for line in (tmp_path / "values.jsonl").read_text().splitlines()]
    assert [item["text"] for item in values] == ["abc", "def g."]
    assert values[0]["tokens"] == ["a", "b", "c", "<end>"]
    assert -sum(sum(item["log_probs"]) for item in values) == pytest.approx(total["nll"])
