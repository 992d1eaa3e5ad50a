"""`make fuzz`: run commands, requests and C kernels on inputs that nobody thought of. Prints its seed."""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported

from campaign import Summary, replay, run_campaign
from cases import WEIGHTS
from damage import DamageSummary, run_damage
from tallies import Tally, run_jobs

CAP_DAC_READ_SEARCH = 1 << 2
CORPUS = Path(__file__).parent / "corpus"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests/fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="default: a new one, which is printed")
    parser.add_argument("--rounds", type=int, default=10**9, help="stop after this many cases")
    parser.add_argument("--seconds", type=float, default=300.0, help="stop after this many seconds")
    parser.add_argument("--shard", default="1/1", metavar="K/N", help="the K-th of N parts of the cases")
    parser.add_argument("--jobs", type=int, default=1, help="processes, each with a part of the cases")
    parser.add_argument("--tally", type=Path, default=None, help="file to which the counts are added, see tallies.py")
    parser.add_argument("--save", type=Path, default=None, help="folder for minimised failing cases")
    parser.add_argument("--replay", action="store_true", help="run the cases of the corpus instead of new ones")
    parser.add_argument("--damage", action="store_true", help="damage each file of runs and exports instead")
    parser.add_argument("--verbs", nargs="*", default=[], choices=WEIGHTS, help="only cases of these commands")
    parser.add_argument("--only", default="", help="with --damage: commands that contain this")
    options = parser.parse_args()
    # Campaigns change the working folder.
    options.tally, options.save = (path and path.absolute() for path in (options.tally, options.save))
    return options


def print_summary(summary: Summary, seed: int) -> None:
    for verb, count in sorted(summary.cases.items()):
        print(f"{verb:<16}{count:>8,}")
    print(f"{'all':<16}{summary.cases.total():>8,}  in {summary.seconds:.0f} s, seed {seed}")
    print(f"exit codes: {', '.join(f'{code}: {count:,}' for code, count in sorted(summary.codes.items()))}")
    print(
        f"slowest {summary.slowest:.1f} s, silent {summary.silent:.1f} s, largest {summary.largest_bytes / 1e6:.0f} MB"
    )
    for fault, count in summary.faults.most_common():
        print(f"FAULT {count:>6}  {fault}")


def print_replay(faults: dict[str, str]) -> int:
    print("\n".join(f"FAULT {name}: {fault}" for name, fault in faults.items() if fault))
    print(f"{len(faults)} cases of the corpus, {sum(map(bool, faults.values()))} faults")
    return 1 if any(faults.values()) else 0


def print_damage(summary: DamageSummary) -> int:
    for way, count in summary.cases.items():
        print(f"{way:<12}{count:>6} cases, {summary.refused[way]:>5} refused with one line")
    print(f"{summary.cases.total()} cases of damage, {len(summary.faults)} faults")
    return 1 if summary.faults else 0


def leave_root(save: Path, tally: Path | None) -> None:
    """Start again as an unprivileged user who may read everything: fuzzed paths must not change files of the system."""
    if os.getuid() != 0:
        return
    save.chmod(0o777)
    if tally is not None:
        tally.touch()
        tally.chmod(0o666)
    command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    [held] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapPrm")]
    if int(held.split()[1], 16) & CAP_DAC_READ_SEARCH:
        command += ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    os.execvp("setpriv", [*command, sys.executable, *sys.argv, "--save", str(save)])


def main() -> int:
    options = parse_arguments()
    save = options.save or Path(tempfile.mkdtemp(prefix="saccade-faults-"))
    save.mkdir(parents=True, exist_ok=True)
    leave_root(save, options.tally)
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    number, _, count = options.shard.partition("/")
    if options.replay:
        return print_replay(replay(CORPUS))
    if options.jobs > 1:
        return run_jobs(options.jobs, seed, options.tally)
    if options.damage:
        found = run_damage(lambda line: print(line, flush=True), options.only, (int(number), int(count)))
        if options.tally:
            Tally("damage", seed, options.shard, found.cases, Counter(found.faults)).append_to(options.tally)
        return print_damage(found)
    print(f"seed {seed}", flush=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    summary = run_campaign(
        seed=seed, rounds=options.rounds, seconds=options.seconds, shard=(int(number), int(count)), save=save,
        show=lambda line: print(line, flush=True), verbs=options.verbs,
    )  # fmt: skip
    print_summary(summary, seed)
    if options.tally:
        largest = {
            "slowest, s": summary.slowest,
            "silent, s": summary.silent,
            "largest, MB": summary.largest_bytes / 1e6,
        }
        Tally("fuzz", seed, options.shard, summary.cases, summary.faults, largest).append_to(options.tally)
    if summary.faults:
        print(f"minimised cases are in {save}; copy them to {CORPUS}")
    return 1 if summary.faults else 0


if __name__ == "__main__":
    sys.exit(main())
