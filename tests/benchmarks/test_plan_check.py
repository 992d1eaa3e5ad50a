import json

import pytest


@pytest.fixture
def plan_check(script, command, tmp_path, monkeypatch):
    """Runs the script, and reads the rows that it wrote."""
    monkeypatch.chdir(tmp_path)

    def run(job, *words, wrote):
        command("plan_check.py", job, "--out", tmp_path, *words)
        script("plan_check").main()
        return json.loads((tmp_path / f"{wrote}.json").read_text())["rows"]

    return run


def test_predictions_are_written(plan_check):
    memory, step, *others = plan_check("predict", wrote="plan_predictions")
    assert (memory["what"], step["what"]) == ("transformer: peak memory", "transformer: a training step")
    assert 5 < memory["value"] < 10  # GB
    assert 20 < step["value"] < 80  # ms
    names = ["gpt2: peak memory", "gpt2: a training step", "bert: peak memory", "bert: a training step"]
    assert [row["what"] for row in others] == names


def test_a_training_is_compared_with_its_prediction(plan_check):
    predicted = plan_check("predict", wrote="plan_predictions")
    found = plan_check("measure", "--tiny", "--steps", "10", wrote="plan_check")
    assert [row["peer_value"] for row in found] == [row["value"] for row in predicted]
    for memory, step in (found[:2], found[2:4], found[4:]):
        assert memory["value"] is None or memory["value"] > 0  # without a GPU there is none
        assert step["ratio"] == pytest.approx(step["value"] / step["peer_value"], abs=0.001)
