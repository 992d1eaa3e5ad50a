"""The script that fills in seeds within a time: its order, its budget, and one whole result."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_seeds.sh"
FAKE = """#!/bin/sh
[ "$2" = --list ] && { echo '[{"name": "done", "recorded": {"values": {"1": 1, "2": 1, "3": 1}}}, {"name": "todo",
"recorded": {"values": {"1": 1}}}]'; exit 0; }
echo "$@" >> "$CALLS"
exit 1
"""


def run_script(tmp_path, *words, **environment):
    command = ["bash", SCRIPT, *map(str, words)]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, cwd=tmp_path)


@pytest.fixture
def fake(tmp_path):
    program = tmp_path / "saccade"
    program.write_text(FAKE)
    program.chmod(0o755)
    return {"SACCADE": str(program), "CALLS": str(tmp_path / "calls"), "SEEDS": "2"}


def read_calls(tmp_path):
    return [line.split() for line in (tmp_path / "calls").read_text().splitlines()]


def test_the_first_seeds_come_first_and_the_budget_is_the_time_left(tmp_path, fake):
    out = tmp_path / "out"
    done = run_script(tmp_path, "DATA", out, 7, "a", "b", **fake)
    assert done.returncode == 0, done.stderr
    calls = read_calls(tmp_path)
    assert [(words[1], words[3]) for words in calls] == [("a", "1"), ("b", "1"), ("a", "2"), ("b", "2")]
    assert all(words[4:9] == ["--only-new", "--data-folder", "DATA", "--out", str(out)] for words in calls)
    assert all(int(words[words.index("--budget") + 1]) in (6, 7) for words in calls)
    assert "a, seed 1: exit code 1" in done.stdout


def test_without_names_it_trains_what_lacks_seeds(tmp_path, fake):
    run_script(tmp_path, "DATA", tmp_path / "out", 7, **fake)
    assert {words[1] for words in read_calls(tmp_path)} == {"todo"}


def test_without_time_nothing_is_started(tmp_path, fake):
    done = run_script(tmp_path, "DATA", tmp_path / "out", 0, "a", **fake)
    assert "a, seed 1: no time left" in done.stdout and not (tmp_path / "calls").exists()


def test_usage_is_printed(tmp_path):
    done = run_script(tmp_path, "DATA")
    assert done.returncode == 2 and "gpu_seeds.sh DATA OUT MINUTES [NAME ...]" in done.stderr


@pytest.mark.slow
def test_a_result_is_filled_in_and_kept(tmp_path):
    saccade = f"{sys.executable} -m saccade"
    for seeds in ("4", "5"):  # the first three are recorded, and their test is not scored again
        done = run_script(
            tmp_path,
            tmp_path,
            tmp_path / "out",
            5,
            "set-encoder-sums",
            SACCADE=saccade,
            SEEDS=seeds,
            OMP_NUM_THREADS="1",
        )
        assert "# set-encoder-sums: not compared" in done.stdout
    card = json.loads((tmp_path / "out" / "set-encoder-sums" / "card.json").read_text())
    assert len(card["seeds"]) == 2 and all(item["times_scored"] == 1 for item in card["seeds"])
