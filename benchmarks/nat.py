"""Non-autoregressive translation with fertilities, whole: teacher, distillation, student, BLEU and speed, three seeds.

    python benchmarks/nat.py --data FOLDER [--jobs nat-1,nat-2,nat-3] [--out FOLDER] [--work FOLDER] [--set key=value]

FOLDER holds `multi30k/` with gzipped line-aligned files. For each seed: a teacher (`multi30k`) is trained, `saccade
distill` translates its training sources, a student (`nat`) begins with the teacher's weights and learns from them. All
settings are those of the recipes; the test set is decoded once in each way: with the most probable fertilities, with
noisy parallel decoding of 10 candidates by the teacher, and by the teacher. With --together 3 the seeds share the
device. When all are done, nat_speed.py measures sentences a second, one at a time, with nothing beside it. What is
there already in --work is used again, and trainings are resumed, so that an interrupted command continues.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs import PYTHON, Rows, call, list_files, parse_arguments, run_all

from saccade.runs import CARD, CHECKPOINTS, METRICS, read_metrics

TEST = "test_2016_flickr"
NPD = 10  # candidates
SENTENCES = 300  # of the test, whose speed is measured
WAYS = {"one pass": [], f"noisy parallel decoding, {NPD} candidates": [f"npd={NPD}"]}


@dataclass(frozen=True)
class Job:
    name: str
    seed: int


def jobs() -> list[Job]:
    return [Job(f"nat-{seed}", seed) for seed in (1, 2, 3)]


def run(job: Job, args: argparse.Namespace) -> Rows:
    """Train teacher and student of one seed; return the rows of BLEU, minutes and speed."""
    files = list_files("multi30k", ("train", "val", TEST), "en", "de")
    train, valid, test = ([str(args.data / name) for name in pair] for pair in files)
    teacher, student = (args.work / f"{role}-{job.seed}" for role in ("teacher", "student"))
    corpus, log = args.work / f"distilled-{job.seed}.tsv", args.work / f"{job.name}.log"
    seeded = [f"train.seed={job.seed}", *args.set]
    train_or_resume(teacher, ["multi30k", "--data", *train, "--valid", *valid, *seeded], log, args.limit)
    if not corpus.exists() or corpus.with_name(f"{corpus.name}.progress").exists():
        call([*PYTHON, "distill", str(teacher), "--output", str(corpus)], log)
    command = ["nat", "--data", str(corpus), "--valid", *valid, f"init={teacher}", "tokenizer.kind=init", *seeded]
    train_or_resume(student, command, log, args.limit)
    about = f"`nat` with fertilities, distilled: multi30k en->de, {TEST}"
    rows: Rows = [score(f"{about}, its teacher, beam 5", teacher, test, ["beam=5"], log)]
    for way, settings in WAYS.items():
        chosen = [*settings, f"teacher={teacher}"] if settings else []
        rows.append(score(f"{about}, {way}", student, test, chosen, log))
    rows.append({"what": f"{about}, minutes of training", "value": get_minutes(teacher, student), "unit": "minutes"})
    return [{**row, "seed": job.seed} for row in rows]


def train_or_resume(folder: Path, command: list[str], log: Path, limit: float | None) -> None:
    """Train a run unless it is finished; one with a checkpoint is resumed."""
    if (folder / CARD).exists():
        return
    if any((folder / CHECKPOINTS).glob("*")):
        call([*PYTHON, "train", "--resume", str(folder)], log, limit)
    else:
        call([*PYTHON, "train", *command, "--run", str(folder), "--overwrite"], log, limit)


def get_minutes(*runs: Path) -> float:
    """Return the minutes of training that the logs of runs say, those before an interruption included."""
    seconds = sum(max((line.get("seconds", 0.0) for line in read_metrics(run / METRICS)), default=0.0) for run in runs)
    return round(seconds / 60, 2)


def score(what: str, folder: Path, test: list[str], settings: list[str], log: Path) -> dict[str, Any]:
    command = [*PYTHON, "evaluate", str(folder), "--data", *test, "--json", *settings]
    bleu = json.loads(call(command, log))["scores"]["bleu"]
    return {
        "what": f"{what}, cased sacreBLEU (13a)",
        "value": round(bleu["value"], 2),
        "unit": "BLEU",
        "signature": bleu["signature"],
    }


def measure_speed(job: Job, args: argparse.Namespace) -> Rows:
    """Return the rows of nat_speed.py in sentences a second."""
    out, log = args.work / f"speed-{job.seed}", args.work / f"{job.name}.log"
    out.mkdir(exist_ok=True)
    [files] = list_files("multi30k", (TEST,), "en", "de")
    runs = [str(args.work / f"{role}-{job.seed}") for role in ("student", "teacher")]
    script, test = str(Path(__file__).with_name("nat_speed.py")), [str(args.data / name) for name in files]
    call([sys.executable, script, *runs, "--data", *test, "--limit", str(SENTENCES), "--out", str(out)], log)
    [file] = out.glob("nat_speed_*.json")
    rows = json.loads(file.read_text())["rows"]
    return [{**row, "seed": job.seed} for row in rows if row["unit"] == "sentences/s"]


def main() -> None:
    args = parse_arguments(__doc__, jobs="nat", work="runs/benchmark-nat")
    args.name = args.name or "nat"
    wanted = [job for job in jobs() if job.name.startswith(tuple(args.jobs.split(",")))]
    run_all(wanted, run, args, after=measure_speed)


if __name__ == "__main__":
    main()
