"""SCAN (Lake and Baroni 2018): commands into actions, scored by whole commands that are right.

    python benchmarks/scan.py --data FOLDER [--jobs bahdanau-simple,relative] [--out FOLDER] [--together 6]

FOLDER holds `scan/` with the gzipped files of the data set. Every job is `saccade train` and `saccade evaluate` in
processes of their own; a twentieth of the training commands is held out to choose the checkpoint. `relative` is the
Transformer with relative positions and no absolute ones, which has a chance on commands longer than any it has read.
"""

import argparse
import gzip
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from results import save
from translation import PYTHON, call, means, sharing

SPLITS = {"simple": "simple", "length": "length", "jump": "addprim_jump"}
WORDS = ["tokenizer.kind=words", "tokenizer.shared=false", "data.valid=0.05", "data.max_length=64", "predict.beam=1"]
EXACT = ["objectives=[{kind='next-token', smoothing=0.0}]", "train.metric=loss", "train.valid_predictions=0"]
BUDGET = ["train.steps=4000", "train.batch_tokens=4096", "train.valid_every=500", "train.save_every=4000"]


class System(NamedTuple):
    recipe: str
    settings: list[str]


def stacks(*settings: str, sides: tuple[str, ...] = ("reader", "writer")) -> list[str]:
    """The same settings of the stacks on both sides."""
    return [f"{side}.{setting}" for side in sides for setting in settings]


SMALL = stacks("stack.layers=3", "stack.dim=128", "stack.heads=8", "stack.ff=256", "stack.norm=pre")
SYSTEMS = {
    "bahdanau": System("bahdanau", ["writer.tie=output", *stacks("stack.dim=256")]),
    "transformer": System("multi30k", ["writer.tie=output", *SMALL, *stacks("dropout=0.1", "stack.dropout=0.1")]),
    "relative": System(
        "multi30k",
        [
            "writer.tie=output",
            *SMALL,
            *stacks("dropout=0.1", "stack.dropout=0.1", "positions={kind='shaw', distance=16}"),
        ],
    ),
}


class Job(NamedTuple):
    system: str
    split: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.system}-{self.split}-{self.seed}"


def jobs() -> Iterator[Job]:
    for system in ("bahdanau", "transformer"):
        for split in ("simple", "jump"):
            yield Job(system, split, 1)
    for system in ("bahdanau", "relative"):
        for seed in (1, 2, 3):
            yield Job(system, "length", seed)


def write_pairs(data: Path, split: str, folder: Path) -> list[Path]:
    """The commands and actions of a split as files with columns, for training and for the test."""
    files = []
    for part in ("train", "test"):
        path = folder / f"{split}.{part}.tsv"
        with gzip.open(data / "scan" / f"{SPLITS[split]}_{part}.txt.gz", "rt") as lines, path.open("w") as file:
            print("source\ttarget", file=file)
            for line in lines:
                command, actions = line.removeprefix("IN: ").strip().split(" OUT: ")
                print(command, actions, sep="\t", file=file)
        files.append(path)
    return files


def run(job: Job, args: argparse.Namespace) -> dict[str, Any]:
    """Trains and scores one model; returns its row."""
    system = SYSTEMS[job.system]
    train, test = (str(args.work / f"{job.split}.{part}.tsv") for part in ("train", "test"))
    folder, log = (args.work / f"{job.name}{end}" for end in ("", ".log"))
    settings = [*WORDS, *EXACT, *BUDGET, *system.settings, f"train.seed={job.seed}", *args.set]
    call([*PYTHON, "train", system.recipe, "--data", train, "--run", str(folder), *settings], log, args.limit)
    command = [*PYTHON, "evaluate", str(folder), "--data", test, "--metrics", "accuracy", "--json"]
    scored = json.loads(call(command, log))["scores"]
    seconds = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])["seconds"]
    what = f"SCAN, {job.split}, `{job.system}`: commands that are right"
    value = round(scored["accuracy"]["value"], 2)
    return {"what": what, "value": value, "unit": "%", "seed": job.seed, "minutes": round(seconds / 60, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--jobs", default="", help="beginnings of the names of the jobs to run, by commas")
    parser.add_argument("--work", type=Path, default=Path("runs/scan"), help="where runs and logs are kept")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--together", type=int, default=1)
    parser.add_argument("--limit", type=float, default=None, help="seconds one training may take")
    parser.add_argument("--set", nargs="*", default=[], help="overrides of all recipes, key=value")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    wanted = [job for job in jobs() if job.name.startswith(tuple(args.jobs.split(",")))]
    for split in {job.split for job in wanted}:
        write_pairs(args.data, split, args.work)
    rows: list[dict[str, Any]] = []
    begin = time.perf_counter()
    with ThreadPoolExecutor(args.together) as pool:
        for job, future in [(job, pool.submit(run, job, args)) for job in wanted]:
            try:
                rows.append(future.result())
            except (RuntimeError, OSError, subprocess.TimeoutExpired, ValueError, KeyError) as error:
                print(f"{job.name} failed: {error}", file=sys.stderr, flush=True)
            minutes = (time.perf_counter() - begin) / 60
            save("scan", rows + means(rows), minutes=minutes, folder=args.out, notes=sharing(args.together))
    for row in rows + means(rows):
        print(f"{row['value']:>8.2f} {row['unit']} {row['what']} {row.get('seed', '')}")


if __name__ == "__main__":
    main()
