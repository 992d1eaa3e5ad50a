"""All commands with a language model."""

import json
import sys

import pytest


def test_prompt_and_completion_are_distinguished_in_json(cli, language_model):
    result = cli("predict", language_model, "abc", "--json")
    found = json.loads(result.out)
    assert (result.code, found["prompt"]) == (0, "abc")
    assert len(found["tokens"]) == len(found["log_probs"]) == len(found["completion"])
    assert found["log_prob"] == pytest.approx(sum(found["log_probs"]))
    assert found["finish"] in ("end", "length")
    assert cli("predict", language_model, "abc").out == found["completion"] + "\n"


def test_prompts_of_a_file_and_of_stdin_give_one_line_each(cli, language_model, tmp_path, monkeypatch):
    (tmp_path / "prompts.txt").write_text("abc\n\ndef\n")
    lines = cli("predict", language_model, "--input", "prompts.txt").out.splitlines()
    assert len(lines) == 3
    with (tmp_path / "prompts.txt").open() as prompts:
        monkeypatch.setattr(sys, "stdin", prompts)
        assert cli("predict", language_model, "--input", "-").out.splitlines() == lines


def test_on_a_terminal_the_prompt_is_dim_and_tokens_come_as_they_are_written(cli, language_model, monkeypatch):
    plain = cli("predict", language_model, "abc", "min_length=3").out
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda self: True)
    assert cli("predict", language_model, "abc", "min_length=3").out == f"\x1b[2mabc\x1b[0m{plain}"
    both = cli("predict", language_model, "abc", "def", "min_length=3").out
    assert both.startswith(f"\x1b[2mabc\x1b[0m{plain}\x1b[2mdef\x1b[0m")


def test_a_stop_text_may_be_given_alone(cli, language_model):
    whole = cli("predict", language_model, "abc", "min_length=5").out.rstrip("\n")
    assert (
        cli("predict", language_model, "abc", "min_length=5", f"stop={whole[2]!r}").out
        == whole[: whole.find(whole[2])] + "\n"
    )


def test_a_prompt_that_is_too_long_is_one_line_and_code_2(cli, language_model):
    result = cli("predict", language_model, "abc " * 20)
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "prompt 1 has 80 tokens" in result.err
    assert cli("predict", language_model, "abc " * 20, "truncate_prompt=true").code == 0


def test_evaluate_reports_perplexity_and_bits_per_byte(cli, language_model, tmp_path):
    (tmp_path / "a.txt").write_text("abc\n\ndef g.\n")
    result = cli("evaluate", language_model, "--data", "a.txt")
    assert result.code == 0
    assert [line.split()[0] for line in result.out.splitlines()] == ["loss", "perplexity", "bits", "2"]
    found = json.loads(cli("evaluate", language_model, "--data", "a.txt", "--json").out)
    assert (found["documents"], found["tokens"], found["bytes"]) == (2, 11, 9)
    assert found["scores"]["loss"] == pytest.approx(found["nll"] / 11)
    assert found["scores"]["bits_per_byte"] == pytest.approx(found["nll"] / 9 / 0.6931472)
    assert "500 documents" not in cli("evaluate", language_model).out  # its own validation data: 300


def test_nothing_to_evaluate_is_reported(cli, language_model, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": " "}\n')
    result = cli("evaluate", language_model, "--data", "a.jsonl")
    assert (result.code, "no text was given" in result.err) == (2, True)


def test_language_models_are_not_compared(cli, language_model):
    result = cli("compare", language_model, language_model)
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "was trained on texts without targets" in result.err and "`saccade evaluate` for each" in result.err


def test_attention_is_shown(cli, language_model):
    result = cli("view", language_model, "abc")  # without --part, the first part that the model has
    assert (result.code, "writer.stack.blocks.1.self" in result.out) == (0, True)
    assert cli("view", language_model, "abc", "--part", "writer").out == result.out
    assert "has no attention of --part cross" in cli("view", language_model, "abc", "--part", "cross").err
