"""SCAN (Lake and Baroni 2018): commands into actions, scored by whole commands that are right.

    python benchmarks/scan.py --data FOLDER [--jobs bahdanau-simple,relative] [--out FOLDER] [--together 6]

FOLDER holds `scan/` with the gzipped files of the data set. Every job is `saccade train` and `saccade evaluate` in
processes of their own; a twentieth of the training commands is held out to choose the checkpoint. `relative` is the
Transformer with relative positions and no absolute ones, which has a chance on commands longer than any it has read.
"""

import argparse
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from translation import PYTHON, Rows, call, parse_arguments, run_all

SPLITS = {"simple": "simple", "length": "length", "jump": "addprim_jump"}
WORDS = ["tokenizer.kind=words", "tokenizer.shared=false", "data.valid=0.05", "data.max_length=64"]
WORDS += ["predict.beam=1", "predict.max_length=63"]  # some actions are longer than twice their command and 20
EXACT = ["objectives=[{kind='next-token', label_smoothing=0.0}]", "train.metric=loss", "train.valid_predictions=0"]
BUDGET = ["train.steps=4000", "train.batch_tokens=4096", "train.valid_every=500", "train.save_every=4000"]


class System(NamedTuple):
    recipe: str
    settings: list[str]


def stacks(*settings: str, sides: tuple[str, ...] = ("reader", "writer")) -> list[str]:
    """Return the same stack settings for reader and writer."""
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
            *stacks("dropout=0.1", "stack.dropout=0.1", "positions={kind='shaw', max_distance=16}"),
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
    """Write the commands and actions of a split as two-column files for training and test."""
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


def run(job: Job, args: argparse.Namespace) -> Rows:
    """Train and evaluate one model; return its row in a list."""
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
    return [{"what": what, "value": value, "unit": "%", "seed": job.seed, "minutes": round(seconds / 60, 2)}]


def main() -> None:
    args = parse_arguments(__doc__, jobs="", work="runs/scan")
    args.name = args.name or "scan"
    wanted = [job for job in jobs() if job.name.startswith(tuple(args.jobs.split(",")))]
    for split in {job.split for job in wanted}:
        write_pairs(args.data, split, args.work)
    run_all(wanted, run, args)


if __name__ == "__main__":
    main()
