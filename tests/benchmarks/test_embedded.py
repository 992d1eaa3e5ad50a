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
    command(*words, "--only", "question alone")
    script("embedded").main()
    said = capsys.readouterr()
    assert said.out == f"question alone, seed 1: {rows['question alone: accuracy']['value']}\n"
    assert "step" not in said.err  # it is not trained again


def test_an_unknown_form_is_refused(script, command, capsys):
    command("embedded.py", "captions", "--only", "hard")
    with pytest.raises(SystemExit):
        script("embedded").main()
    assert "--only is one of: soft attention; hard attention, 4 samples" in capsys.readouterr().err


def test_all_forms_of_captions_are_valid_recipes(script):
    from saccade.config.load import load

    forms = script("embedded").COMPARISONS["captions"].forms
    recipes = {what: load(name, tiny=True, overrides=list(settings)) for what, (name, settings) in forms.items()}
    hard = [what for what, recipe in recipes.items() if recipe.writer.stack.hard_attention]
    assert hard == ["hard attention, 4 samples", "hard attention, 1 sample"]
    assert {recipe.train.steps for recipe in recipes.values()} == {2000}
