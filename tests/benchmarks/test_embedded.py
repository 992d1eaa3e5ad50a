"""The script that compares forms of systems on embedded data runs at toy size."""

import json

import pytest


def test_forms_are_scored_and_kept(script, command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["embedded.py", "questions", "--tiny", "--seeds", "1", "--run", tmp_path / "runs", "--out", tmp_path]
    command(*words)
    script("embedded").main()
    found = json.loads((tmp_path / "embedded_questions.json").read_text())
    rows = {row["what"]: row for row in found["rows"]}
    for form in script("embedded").COMPARISONS["questions"].forms:
        assert rows[f"{form}: accuracy"]["examples"] == 4  # of eight, behind those of validation
        assert rows[f"{form}: accuracy, one seed"]["value"] == round(rows[f"{form}: accuracy"]["value"], 2)
    assert rows["question alone: parameters"]["value"] < rows["show-ask-attend-answer: parameters"]["value"]
    capsys.readouterr()
    command(*words, "--forms", "question alone")
    script("embedded").main()
    said = capsys.readouterr()
    assert said.out == f"question alone, seed 1: {rows['question alone: accuracy']['value']}\n"
    assert "step" not in said.err  # it is not trained again


def test_hard_attention_begins_with_the_weights_of_soft_attention(script, command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    forms = ["soft attention", "hard attention"]
    command(
        "embedded.py", "captions", "--tiny", "--seeds", "1", "--run", tmp_path, "--out", tmp_path, "--forms", *forms
    )
    script("embedded").main()
    said = capsys.readouterr().err
    assert f"writer.init={tmp_path}/soft-attention-1: 14 of 15 tensors copied" in said  # all but the baseline
    rows = json.loads((tmp_path / "embedded_captions.json").read_text())["rows"]
    assert {row["what"].split(":")[0] for row in rows} == {*forms}


def test_an_unknown_form_is_refused(script, command, capsys):
    command("embedded.py", "captions", "--forms", "hard")
    with pytest.raises(SystemExit):
        script("embedded").main()
    assert "--forms are some of: soft attention; hard attention; hard" in capsys.readouterr().err
