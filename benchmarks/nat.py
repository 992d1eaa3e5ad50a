"""Non-autoregressive translation with fertilities, whole: teacher, distillation, student, BLEU and speed, three seeds.

    python benchmarks/nat.py --data FOLDER [--jobs nat-1,nat-2,nat-3] [--out FOLDER] [--work FOLDER] [--set key=value]

FOLDER holds `multi30k/` with gzipped line-aligned files. For each seed: a teacher (`multi30k`) is trained, `saccade
distill` translates its training sources, a student (`nat`) begins with the teacher's weights and learns from them. All
settings are those of the recipes; the test set is decoded once in each way: with the most probable fertilities, with
noisy parallel decoding of 10 candidates by the teacher, and by the teacher. Then nat_speed.py measures sentences a
second, one at a time. What is there already in --work is used again, so that an interrupted command continues.
"""

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs import PYTHON, Rows, call, list_files, parse_arguments, run_all

from saccade.runs import CARD

TEST = "test_2016_flickr"
NPD = 10  # candidates
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
    begin = time.perf_counter()
    if not is_finished(teacher):
        command = [*PYTHON, "train", "multi30k", "--data", *train, "--valid", *valid, "--run", str(teacher)]
        call([*command, *seeded], log, args.limit)
    if not corpus.exists() or corpus.with_name(f"{corpus.name}.progress").exists():
        call([*PYTHON, "distill", str(teacher), "--output", str(corpus)], log)
    if not is_finished(student):
        command = [*PYTHON, "train", "nat", "--data", str(corpus), "--valid", *valid, "--run", str(student)]
        call([*command, f"init={teacher}", "tokenizer.kind=init", *seeded], log, args.limit)
    minutes = (time.perf_counter() - begin) / 60
    about = f"`nat` with fertilities, distilled: multi30k en->de, {TEST}"
    rows: Rows = [score(f"{about}, its teacher, beam 5", teacher, test, ["beam=5"], log)]
    for way, settings in WAYS.items():
        chosen = [*settings, f"teacher={teacher}"] if settings else []
        rows.append(score(f"{about}, {way}", student, test, chosen, log))
    rows.append({"what": f"{about}, minutes of all", "value": round(minutes, 2), "unit": "minutes"})
    rows += measure_speed(student, teacher, test, args, log)
    return [{**row, "seed": job.seed} for row in rows]


def is_finished(folder: Path) -> bool:
    """Whether a run has been trained to its end; one that was interrupted is removed by hand."""
    return (folder / CARD).exists()


def score(what: str, folder: Path, test: list[str], settings: list[str], log: Path) -> dict[str, Any]:
    command = [*PYTHON, "evaluate", str(folder), "--data", *test, "--json", *settings]
    bleu = json.loads(call(command, log))["scores"]["bleu"]
    return {
        "what": f"{what}, cased sacreBLEU (13a)",
        "value": round(bleu["value"], 2),
        "unit": "BLEU",
        "signature": bleu["signature"],
    }


def measure_speed(student: Path, teacher: Path, test: list[str], args: argparse.Namespace, log: Path) -> Rows:
    """Return the rows of nat_speed.py in sentences a second."""
    out = args.work / f"speed-{student.name}"
    out.mkdir(exist_ok=True)
    script = str(Path(__file__).with_name("nat_speed.py"))
    call([sys.executable, script, str(student), str(teacher), "--data", *test, "--out", str(out)], log)
    [file] = out.glob("nat_speed_*.json")
    return [row for row in json.loads(file.read_text())["rows"] if row["unit"] == "sentences/s"]


def main() -> None:
    args = parse_arguments(__doc__, jobs="nat", work="runs/benchmark-nat")
    args.name = args.name or "nat"
    run_all([job for job in jobs() if job.name.startswith(tuple(args.jobs.split(",")))], run, args)


if __name__ == "__main__":
    main()
