"""`--template` and `--examples` with an untrained language model."""

import json
from pathlib import Path

import pytest

TEMPLATE = r"a{q}b {a}"


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    (tmp_path / "examples.jsonl").write_text('{"q": "c", "a": "d"}\n')
    (tmp_path / "tasks.jsonl").write_text('{"q": "d", "a": "g"}\n{"q": "e", "a": "f"}\n')
    (tmp_path / "text.txt").write_text("abc\n")
    return tmp_path


def test_texts_and_rows_become_the_same_prompts(cli, language_model, rows):
    made = ("--template", TEMPLATE, "--examples", "examples.jsonl")
    found = json.loads(cli("predict", language_model, "d", *made, "--json").out)
    assert found["prompt"] == "acb d\nadb"
    lines = cli("predict", language_model, "--input", "tasks.jsonl", *made, "--json").out.splitlines()
    every = [json.loads(line) for line in lines]
    assert [item["prompt"] for item in every] == ["acb d\nadb", "acb d\naeb"]
    assert every[0]["completion"] == found["completion"]
    typed = json.loads(cli("predict", language_model, "acb d\nadb", r"stop=\n", "--json").out)
    assert (typed["prompt"], typed["completion"]) == (found["prompt"], found["completion"])
    plain = cli("predict", language_model, "d", *made).out
    assert plain == found["completion"].strip() + "\n"


def test_answers_are_scored(cli, language_model, rows):
    made = ("--data", "tasks.jsonl", "--template", TEMPLATE, "--examples", "examples.jsonl")
    result = cli("evaluate", language_model, *made, "--json", "--output", "out.txt")
    found = json.loads(result.out)
    assert (result.code, found["sentences"], list(found["scores"])) == (0, 2, ["accuracy"])
    assert len((rows / "out.txt").read_text().splitlines()) == 2
    chosen = json.loads(cli("evaluate", language_model, *made, "--options", "g, f", "--json").out)
    assert list(chosen["scores"]) == ["accuracy", "accuracy per byte"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["predict", "RUN", "d", "--examples", "examples.jsonl"], "--examples needs a prompt template"),
        (["evaluate", "RUN", "--options", "a,b", "--data", "tasks.jsonl"], "--options needs a prompt template"),
        (["predict", "RUN", "d", "--template", "{q} {b} {a}"], "has the fields q, b, so that one text is not enough"),
        (["predict", "RUN", "--input", "tasks.jsonl", "--template", "{z}: {a}"], ":1: the template asks for {z}"),
        (["predict", "OTHER", "d", "--template", TEMPLATE], "--template builds prompts for a language model"),
        (["evaluate", "RUN", "--template", TEMPLATE], "--template needs tasks with reference answers"),
        (["evaluate", "RUN", "--data", "tasks.jsonl", "--template", "{q} {z}"], ":1: the template asks for {z}"),
        (["evaluate", "RUN", "--data", "text.txt", "--metrics", "bleu"], "unknown metric 'bleu' of a language"),
        (["evaluate", "RUN", "--data", "text.txt", "--lowercase"], "without --metrics and --lowercase"),
    ],
)  # fmt: skip
def test_invalid_prompt_options_are_one_line_and_code_2(cli, language_model, run, rows, words, message):
    result = cli(*({"RUN": language_model, "OTHER": run}.get(word, word) for word in words))
    assert (result.code, result.err.count("\n")) == (2, 1) and message in result.err


def test_log_probabilities_of_all_tokens_can_be_written(cli, language_model, tmp_path):
    (tmp_path / "text.txt").write_text("abc\ndef g.\n")
    total = json.loads(cli("evaluate", language_model, "--data", "text.txt", "--output", "values.jsonl", "--json").out)
    values = [json.loads(line) for line in (tmp_path / "values.jsonl").read_text().splitlines()]
    assert [item["text"] for item in values] == ["abc", "def g."]
    assert values[0]["tokens"] == ["a", "b", "c", "<end>"]
    assert -sum(sum(item["log_probs"]) for item in values) == pytest.approx(total["nll"])
