"""The script that trains on SCAN and counts whole commands, at toy size."""

import gzip
import json

import pytest

COMMANDS = ["jump", "walk", "run twice", "turn left", "look and jump"]
TINY = ["train.steps=2", "train.batch_tokens=64", "train.valid_every=2", "train.save_every=2", "data.valid=0.3"]
SMALL = [f"{side}.stack.{key}" for side in ("reader", "writer") for key in ("dim=8", "heads=2", "layers=1", "ff=8")]


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data" / "scan"
    folder.mkdir(parents=True)
    for part in ("train", "test"):
        with gzip.open(folder / f"length_{part}.txt.gz", "wt") as file:
            file.writelines(f"IN: {text} OUT: I_{text.upper().replace(' ', ' I_')}\n" for text in COMMANDS * 2)
    return folder.parent


def test_a_job_trains_and_counts_whole_commands(script, command, data, tmp_path):
    module = script("scan")
    folders = ("--work", tmp_path / "work", "--out", tmp_path / "out")
    command("scan.py", "--data", data, "--jobs", "relative-length-1", *folders, "--set", *TINY, *SMALL)
    module.main()
    [row] = json.loads((tmp_path / "out" / "scan.json").read_text())["rows"]
    assert row["what"] == "SCAN, length, `relative`: commands that are right"
    assert row["unit"] == "%" and 0 <= row["value"] <= 100
    pairs = (tmp_path / "work" / "length.train.tsv").read_text().splitlines()
    assert pairs[:2] == ["source\ttarget", "jump\tI_JUMP"]
