"""`make kill`: kill and resume trainings of every kind, and damage runs, caches and exports. Prints its seed."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported
os.environ |= {"HF_HUB_OFFLINE": "1", "SACCADE_DEVICE": "cpu"}

sys.path.append(str(Path(__file__).parents[1] / "fuzz"))

from full_disk import fill_disk, mount_disk
from kills import Campaign
from matrix import list_trainings
from tallies import Tally, run_jobs


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests/kill", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="default: a new one, which is printed")
    parser.add_argument("--kills", type=int, default=300, help="kills over all trainings")
    parser.add_argument("--seconds", type=float, default=3600.0, help="stop after this many seconds")
    parser.add_argument("--only", default="", help="trainings whose name contains this")
    parser.add_argument("--shard", default="1/1", metavar="K/N", help="the K-th of N parts of the trainings")
    parser.add_argument("--jobs", type=int, default=1, help="processes, each with a part of the trainings")
    parser.add_argument("--tally", type=Path, default=None, help="file to which the counts are added, see tallies.py")
    return parser.parse_args()


def run_kills(options: argparse.Namespace, folder: Path, seed: int) -> bool:
    """Kill each training equally often; prints a line for each."""
    import torch

    from saccade.train import finish

    torch.set_num_threads(1)
    finish.plot_loss = lambda run: None
    kernels = folder / "kernels"
    kernels.mkdir(mode=0o700)
    os.environ["SACCADE_CACHE"] = str(folder / "cache")
    (folder / "cache").mkdir()
    (folder / "cache" / "kernels").symlink_to(kernels)
    number, count = map(int, options.shard.split("/"))
    matching = [item for item in list_trainings(folder).items() if options.only in item[0]]
    chosen = matching[number - 1 :: count]
    tallies, known, covered = [], set[str](), set[str]()
    for at, (name, training) in enumerate(chosen):
        (folder / str(at)).mkdir()
        campaign = Campaign(name, training, folder / str(at), kernels)
        kills, seconds = options.kills / len(matching), options.seconds / len(chosen)
        kill_one(campaign, covered, Random(f"{seed}-{name}"), kills=kills, seconds=seconds)
        tallies.append(campaign.tally)
        known |= {*campaign.kinds}
    killed = {kind for tally in tallies for kind in tally.moments} & known
    full = run_full_disk(folder, kernels, options)
    kills, wrong = sum(tally.kills.total() for tally in tallies), sum(len(tally.wrong) for tally in tallies)
    during = f"{len(killed)} of {len(known)} kinds of writes"
    print(f"{kills} kills in {len(tallies)} trainings, during {during}; {wrong} wrong")
    if options.tally:
        named = [(name, tally) for (name, _), tally in zip(chosen, tallies, strict=True)]
        faults = Counter(line for tally in tallies for line in tally.wrong)
        counts = Counter({name: tally.kills.total() for name, tally in named})
        Tally("kills", seed, options.shard, counts, faults).append_to(options.tally)
        counts = Counter({name: tally.identical for name, tally in named})
        Tally("resumed runs that were identical", seed, options.shard, counts).append_to(options.tally)
    return not wrong and full


def run_full_disk(folder: Path, kernels: Path, options: argparse.Namespace) -> bool:
    """Train on a disk that is full; skipped for a shard or a choice of trainings."""
    if options.only not in ("", "full disk") or not options.shard.startswith("1/"):
        return True
    (folder / "full").mkdir()
    campaign = Campaign("full disk", list_trainings(folder)["text, best step"], folder / "full", kernels)
    good = True
    with mount_disk(folder / "disk") as disk:
        if disk is None:
            print("full disk: skipped, a tmpfs cannot be mounted here")
            return True
        for part in ("run", "cache"):
            refused, wrong = fill_disk(campaign, disk, part=part)
            print(f"full disk, {part}: {refused} refused with one line, {len(wrong)} wrong", flush=True)
            print("".join(f"WRONG {line}\n" for line in wrong), end="", flush=True)
            good &= not wrong
    return good


def kill_one(campaign: Campaign, covered: set[str], random: Random, *, kills: float, seconds: float) -> None:
    begin = time.monotonic()
    moments, tally = campaign.draw_moments(random, covered), campaign.tally
    while tally.kills.total() < kills and time.monotonic() - begin < seconds:
        campaign.run_one(moments, random)
    counts = ", ".join(f"{count} {name}" for name, count in sorted(tally.kills.items()))
    kinds = len(tally.moments & {*campaign.kinds})
    print(
        f"{campaign.name:<32}{tally.kills.total():>4} kills ({counts}), during {kinds} kinds of writes; "
        f"{tally.identical} runs identical, {len(tally.wrong)} not", flush=True,
    )  # fmt: skip
    for line in tally.wrong:
        print(f"WRONG {line}", flush=True)


def main() -> int:
    options = parse_arguments()
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    if options.jobs > 1:
        return run_jobs(options.jobs, seed)
    print(f"seed {seed}", flush=True)
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="saccade-kill-", dir=memory) as name:
        good = run_kills(options, Path(name), seed)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
