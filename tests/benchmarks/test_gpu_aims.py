"""The script that chooses settings on held-out data: what it starts, its time, and the scores at its end."""

import json
import os
import shlex
import subprocess
from pathlib import Path

from saccade.reproduce.seeds import Options, Trial
from saccade.reproduce.spec import find_specs

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_aims.sh"
FAKE = """#!/bin/sh
printf '%s\\t' "$@" >> "$CALLS"
echo >> "$CALLS"
"""


def run_script(tmp_path, *words, **environment):
    program = tmp_path / "saccade"
    program.write_text(FAKE)
    program.chmod(0o755)
    known = {"SACCADE": shlex.quote(str(program)), "CALLS": str(tmp_path / "calls")}
    command = ["bash", SCRIPT, *map(str, words)]
    return subprocess.run(command, env={**os.environ, **known, **environment}, capture_output=True, text=True)


def read_calls(tmp_path):
    return [line.rstrip("\t").split("\t") for line in (tmp_path / "calls").read_text().splitlines()]


def test_every_candidate_is_a_result_with_settings_that_it_has(tmp_path):
    done = run_script(tmp_path, "DATA", tmp_path / "out", 7)
    assert done.returncode == 0, done.stderr
    calls, seen = read_calls(tmp_path), set()
    assert len(calls) > 8
    for words in calls:
        assert words[:1] + words[2:5] == ["reproduce", "--heldout", "--seeds", "1"]
        assert words[5:9] == ["--data-folder", "DATA", "--out", str(tmp_path / "out")]
        [spec] = find_specs([words[1]])
        assert words[9:] or spec.name not in seen, "the first candidate of a result is the record"
        seen.add(spec.name)
        if spec.before:  # its recipe is that of a run
            assert not words[9:]
            continue
        recipe = Trial(spec, Options(tmp_path, tmp_path, heldout=True, overrides=words[9:]), 1).build_recipe((), {})
        assert recipe.train.schedule.warmup_steps < recipe.train.steps


def test_some_results_several_at_a_time_and_no_time(tmp_path):
    done = run_script(tmp_path, "DATA", tmp_path / "out", 7, "an4", TOGETHER="3")
    assert {words[1] for words in read_calls(tmp_path)} == {"an4"} and "an4: exit code 0" in done.stdout
    (tmp_path / "calls").unlink()
    done = run_script(tmp_path, "DATA", tmp_path / "out", 1, "an4")
    assert "an4: no time left" in done.stdout and not (tmp_path / "calls").exists()


def test_scores_are_listed_at_the_end(tmp_path):
    folder = tmp_path / "out" / "an4"
    folder.mkdir(parents=True)
    for name, words, scores in (("seed-1-heldout", [], {"wer": 20.0}), ("seed-1-heldout-1a", ["train.steps=9"], {})):
        found = {"settings": {"overrides": words}, "scores": scores, "diverged": "loss is nan", "minutes": 2.5}
        (folder / f"{name}.json").write_text(json.dumps(found))
    lines = run_script(tmp_path, "DATA", tmp_path / "out", 0).stdout.splitlines()
    assert lines[-2:] == ["an4 train.steps=9 | loss is nan | 2.5 min", "an4 | wer 20.00 | 2.5 min"]


def test_usage_is_printed(tmp_path):
    done = run_script(tmp_path, "DATA")
    assert done.returncode == 2 and "gpu_aims.sh DATA OUT MINUTES [RESULT ...]" in done.stderr
