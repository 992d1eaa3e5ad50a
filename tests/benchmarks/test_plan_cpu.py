import json

import pytest


def test_a_training_is_compared_with_its_prediction(script, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command("plan_cpu.py", "--out", tmp_path, "--tiny", "--steps", "8")
    script("plan_cpu").main()
    [row] = json.loads((tmp_path / "plan_cpu.json").read_text())["rows"]
    assert row["what"].startswith("dates --tiny: a step, planned in ") and row["value"] > 0
    assert row["ratio"] == pytest.approx(row["value"] / row["peer_value"], rel=0.01)
