import json

import pytest


@pytest.mark.slow
def test_commands_and_the_first_step_are_timed(script, command, tmp_path):
    command("start_times.py", "--repeat", "1", "--out", tmp_path)
    script("start_times").main()
    rows = json.loads((tmp_path / "start_times.json").read_text())["rows"]
    assert len(rows) == 5 and all(0 < row["value"] < 120 for row in rows)
    assert rows[-1]["what"].endswith("--run first; aim: 10 s")
