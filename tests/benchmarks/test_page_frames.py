"""The script that measures the attention page, on a small one."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "page_frames.py"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="frames are counted in chromium; install it")
def test_script_counts_frames(tmp_path):
    pytest.importorskip("playwright")
    command = [sys.executable, SCRIPT, "--tokens", "300", "--heads", "1", "--out", tmp_path]
    subprocess.run(command, check=True, capture_output=True)
    rows = json.loads((tmp_path / "page_frames.json").read_text())["rows"]
    rates = [row["value"] for row in rows if row["unit"] == "frames/s"]
    assert len(rates) == 7
    assert min(rates) > 0
