"""The script about acting runs at toy size."""

import json


def test_a_script_plays_scores_and_saves(script, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command("interact.py", "--tiny", "--episodes", "3", "--out", tmp_path, "writer.stack.dim=8")
    script("interact").main()
    found = json.loads((tmp_path / "interact.json").read_text())
    rows = {row["what"]: row for row in found["rows"]}
    assert rows["soft attention: success"]["signature"]
    assert rows["soft attention: attention_lift"]["value"] > 0
    assert "no attention: attention_lift" not in rows and rows["no attention: steps"]["value"] >= 1
    assert rows["no attention: parameters"]["value"] > 0
    assert "writer.stack.dim=8" in found["notes"]


def test_streams_are_compared_in_the_waiting_room_and_seeds_averaged(script, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command("interact.py", "--streams", "--tiny", "--episodes", "3", "--seeds", "1", "2", "--out", tmp_path)
    script("interact").main()
    rows = json.loads((tmp_path / "interact_streams.json").read_text())["rows"]
    for form in ("soft attention", "no attention"):
        values = [row["value"] for row in rows if row["what"] == f"{form}: success"]
        [mean] = [row["value"] for row in rows if row["what"] == f"{form}: success, mean of 2 seeds"]
        assert len(values) == 2 and abs(mean - sum(values) / 2) < 0.01
