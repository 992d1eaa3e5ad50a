"""Counts of campaigns that run in several processes, or one after the other, added up into one table.

Each process appends a line of JSON to a file of tallies; the table is the sum of all lines of one campaign. So parts of
a campaign may run anywhere: `--shard 1/2 --tally a.jsonl` here, `--shard 2/2 --tally b.jsonl` there, then
`cat a.jsonl b.jsonl > all.jsonl` and `python tests/fuzz/tallies.py all.jsonl`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Tally:
    """What one process, or all of them, have counted."""

    campaign: str
    seed: int
    shard: str
    counts: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    largest: dict[str, float] = field(default_factory=dict)  # of values whose maximum counts

    def append_to(self, path: Path) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(vars(self))}\n")


def read_tallies(path: Path) -> list[Tally]:
    """Read a file of tallies; the same part of a campaign must not be counted twice."""
    tallies = [Tally(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    parts = Counter((tally.campaign, tally.seed, tally.shard) for tally in tallies)
    for (campaign, seed, shard), count in parts.items():
        if count > 1:
            raise SystemExit(
                f"{path} has {campaign} with seed {seed}, part {shard} {count} times; each part counts once"
            )
    return tallies


def print_sum(tallies: list[Tally]) -> bool:
    """Print a table for each campaign; False if there were faults."""
    for campaign in dict.fromkeys(tally.campaign for tally in tallies):
        own = [tally for tally in tallies if tally.campaign == campaign]
        counts = sum((Counter(tally.counts) for tally in own), Counter[str]())
        faults = sum((Counter(tally.faults) for tally in own), Counter[str]())
        largest: dict[str, float] = {}
        for name, value in (item for tally in own for item in tally.largest.items()):
            largest[name] = max(value, largest.get(name, value))
        for name, count in sorted(counts.items()):
            print(f"{name:<60}{count:>8,}")
        print("".join(f"{name:<60}{value:>8,.1f}\n" for name, value in largest.items()), end="")
        seeds = sorted({tally.seed for tally in own})
        print(f"{campaign}: {counts.total():,} in {len(own)} parts, seeds {seeds}; {faults.total()} faults")
        print("".join(f"FAULT {count:>6}  {name}\n" for name, count in faults.most_common()), end="", flush=True)
    return not any(tally.faults for tally in tallies)


def run_jobs(jobs: int, seed: int, kept: Path | None = None) -> int:
    """Run this program in several processes, each with a part of the cases; print the sum and return an exit code.

    What they count is added to the file `kept`.
    """
    arguments = drop_option(drop_option(sys.argv, "--jobs"), "--seed")
    with tempfile.TemporaryDirectory(prefix="saccade-tallies-") as name:
        tally = Path(name, "tallies")
        part = [sys.executable, *arguments, "--seed", str(seed), "--tally", str(tally)]
        running = [subprocess.Popen([*part, "--shard", f"{number}/{jobs}"]) for number in range(1, jobs + 1)]
        failed = sum(process.wait() != 0 for process in running)
        tallies = read_tallies(tally) if tally.exists() else []
    if kept is not None:
        for part in tallies:
            part.append_to(kept)
    good = print_sum(tallies)
    missing = jobs - len({tally.shard for tally in tallies})
    if missing:
        print(f"FAULT {missing} of {jobs} processes ended without a tally", flush=True)
    return 0 if good and not failed and not missing else 1


def drop_option(arguments: list[str], name: str) -> list[str]:
    """Remove `NAME VALUE` and `NAME=VALUE` from a command line."""
    kept, skip = list[str](), False
    for word in arguments:
        if not skip and word != name and not word.startswith(f"{name}="):
            kept.append(word)
        skip = word == name
    return kept


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    return 0 if print_sum(read_tallies(parser.parse_args().file)) else 1


if __name__ == "__main__":
    sys.exit(main())
