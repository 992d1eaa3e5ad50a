"""Parts of a campaign add up to the whole."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tallies import Tally, drop_option, print_sum, read_tallies

PROGRAM = """
import argparse, sys
from pathlib import Path
sys.path.append({folder!r})
from tallies import Tally, run_jobs
parser = argparse.ArgumentParser()
for name, kind in (("jobs", int), ("seed", int), ("tally", Path), ("shard", str), ("rounds", int), ("fail", str)):
    parser.add_argument(f"--{{name}}", type=kind)
options = parser.parse_args()
if options.jobs:
    sys.exit(run_jobs(options.jobs, options.seed))
number, count = map(int, options.shard.split("/"))
if options.fail == f"die {{number}}":
    sys.exit(3)
faults = {{"a fault": 1}} if options.fail == f"fault {{number}}" else {{}}
rounds = len(range(number - 1, options.rounds, count))
Tally("trial", options.seed, options.shard, {{"rounds": rounds}}, faults).append_to(options.tally)
"""


@pytest.mark.parametrize(
    ("fail", "code", "line"),
    [
        ("", 0, "trial: 10 in 3 parts, seeds [7]; 0 faults"),
        ("fault 2", 1, "trial: 10 in 3 parts, seeds [7]; 1 faults"),
        ("die 3", 1, "FAULT 1 of 3 processes ended without a tally"),
    ],
)
def test_jobs_share_the_rounds_and_a_fault_of_one_is_a_fault(tmp_path, fail, code, line):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(folder=str(Path(__file__).parent)))
    command = [sys.executable, str(program), "--jobs", "3", "--seed=7", "--rounds", "10", "--fail", fail]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert line in done.stdout.splitlines()


def test_tallies_are_added_and_of_some_values_the_largest_is_kept(tmp_path, capsys):
    for shard in ("1/2", "2/2"):
        Tally("fuzz", 3, shard, Counter(train=5), Counter(), {"slowest, s": float(shard[0])}).append_to(
            tmp_path / "all"
        )
    assert print_sum(read_tallies(tmp_path / "all"))
    assert [line.split() for line in capsys.readouterr().out.splitlines()[:2]] == [
        ["train", "10"],
        ["slowest,", "s", "2.0"],
    ]


def test_a_part_is_not_counted_twice(tmp_path):
    for _ in range(2):
        Tally("fuzz", 3, "1/2").append_to(tmp_path / "all")
    with pytest.raises(SystemExit, match="fuzz with seed 3, part 1/2 2 times"):
        read_tallies(tmp_path / "all")


def test_an_option_is_dropped_with_its_value():
    assert drop_option(["x", "--jobs", "4", "--seed=1", "--jobs=5", "y"], "--jobs") == ["x", "--seed=1", "y"]
