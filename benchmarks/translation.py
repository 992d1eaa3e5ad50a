"""Whole training runs on real parallel text, scored with sacreBLEU: quality and minutes, as a user would get them.

    python benchmarks/translation.py --data FOLDER [--jobs multi30k-en-de,tatoeba] [--out FOLDER] [--together 3]

FOLDER holds `multi30k/` and `tatoeba-de-en/` with gzipped line-aligned files. Every job is `saccade train` and
`saccade evaluate` in processes of their own. Its minutes are given twice: as the run counts them, from the first
step to the last with all validations, and for the whole process, which also starts, reads and tokenises.
`--together N` runs N jobs at once on one device: their minutes are then an upper bound. Results are saved after
every job.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from results import save

PYTHON = [sys.executable, "-P", "-m", "saccade"]
Rows = list[dict[str, Any]]
SYSTEMS = ("sutskever", "bahdanau", "deep-att", "gnmt", "moe", "bytenet", "convs2s")  # of the lectures, one size each


@dataclass(frozen=True)
class Job:
    name: str
    recipe: str
    score: str  # what the score and the minutes are called, as the table that asks for them begins
    minutes: str
    files: tuple[tuple[str, str], ...]  # train, valid, test: source and target
    seed: int
    peer: tuple[str, float] | None = None  # measured elsewhere on the same data and kind of GPU


def jobs() -> Iterator[Job]:
    test = "test_2016_flickr"
    files = list_files("multi30k", ("train", "val", test), "en", "de")
    score = f"multi30k en->de, {test}, cased sacreBLEU (13a), beam 5, checkpoint chosen on val only"
    peer = ("JoeyNMT 2.3.0, 2.35 M parameters, average of 5, after 165 s", 37.6)
    minutes = "the same, minutes of training on one H200: multi30k en->de"
    for seed in (1, 2, 3):
        yield Job(f"multi30k-en-de-{seed}", "multi30k", score, minutes, files, seed, peer)
    for source, target in (("en", "fr"), ("de", "en")):
        files = list_files("multi30k", ("train", "val", test), source, target)
        what = f"multi30k en->fr and de->en, {test}: {source}->{target}"
        score, minutes = f"{what}, cased sacreBLEU (13a), beam 5", f"{what}, minutes of training"
        yield Job(f"multi30k-{source}-{target}-1", "multi30k", score, minutes, files, 1)
    files = list_files("tatoeba-de-en", ("train", "valid", "test"), "de", "en")
    score, minutes = "tatoeba de->en, test, cased sacreBLEU (13a), beam 5", "tatoeba de->en, minutes of training"
    peer = ("fairseq, 36.7 M parameters, after 404 s", 53.7)
    yield Job("tatoeba-de-en-1", "tatoeba", score, minutes, files, 1, peer)
    files = list_files("multi30k", ("train", "val", test), "en", "de")
    for recipe in SYSTEMS:
        what = f"`{recipe}`: multi30k en->de, {test}"
        yield Job(f"{recipe}-1", recipe, f"{what}, cased sacreBLEU (13a), beam 5", f"{what}, minutes", files, 1)


def list_files(pack: str, parts: Sequence[str], source: str, target: str) -> tuple[tuple[str, str], ...]:
    return tuple((f"{pack}/{part}.{source}.gz", f"{pack}/{part}.{target}.gz") for part in parts)


def run(job: Job, args: argparse.Namespace) -> Rows:
    """Train and evaluate one model; return its rows."""
    train, valid, test = ([str(args.data / name) for name in pair] for pair in job.files)
    folder, log, outputs = (args.work / f"{job.name}{end}" for end in ("", ".log", ".txt"))
    command = [*PYTHON, "train", job.recipe, "--data", *train, "--valid", *valid, "--run", str(folder)]
    begin = time.perf_counter()
    call([*command, f"train.seed={job.seed}", *args.set], log, args.limit)
    whole = (time.perf_counter() - begin) / 60
    counted = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])["seconds"] / 60
    scored = [*PYTHON, "evaluate", str(folder), "--data", *test, "--json", "--output", str(outputs), "beam=5"]
    bleu = json.loads(call(scored, log))["scores"]["bleu"]
    row = {"what": job.score, "value": round(bleu["value"], 2), "unit": "BLEU", "signature": bleu["signature"]}
    if job.peer is not None:
        row |= {"peer": job.peer[0], "peer_value": job.peer[1], "ratio": round(bleu["value"] / job.peer[1], 3)}
    return [
        {**row, "seed": job.seed},
        {"what": job.minutes, "value": round(counted, 2), "unit": "minutes", "seed": job.seed},
        {"what": f"{job.minutes}, the whole process", "value": round(whole, 2), "unit": "minutes", "seed": job.seed},
    ]


def call(command: Sequence[str], log: Path, limit: float | None = None) -> str:
    """Run a command to its end, write its output to `log`, and return its standard output."""
    with log.open("a") as file:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=file, text=True, timeout=limit, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {log.read_text()[-2000:]}")
    return done.stdout


def build_means(rows: Rows) -> Rows:
    """Return a row with the mean of each measurement that has several seeds."""
    added = []
    for what in dict.fromkeys(row["what"] for row in rows):
        same = [row for row in rows if row["what"] == what]
        if len(same) > 1:
            value = statistics.mean(row["value"] for row in same)
            mean = {**same[0], "what": f"{what}, mean of {len(same)} seeds: mean", "value": round(value, 2)}
            if "peer_value" in mean:
                mean["ratio"] = round(value / mean["peer_value"], 3)
            del mean["seed"]
            added.append(mean)
    return added


def format_sharing_note(together: int) -> str:
    return (
        f"Up to {together} trainings shared the device at a time, so minutes are upper bounds." if together > 1 else ""
    )


def parse_arguments(about: str, *, jobs: str, work: str) -> argparse.Namespace:
    """Parse the command line and create the folder for runs."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--jobs", default=jobs, help="beginnings of the names of the jobs to run, by commas")
    parser.add_argument("--work", type=Path, default=Path(work), help="where runs and logs are kept")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--name", help="of the file of results")
    parser.add_argument("--together", type=int, default=1)
    parser.add_argument("--limit", type=float, default=None, help="seconds one training may take")
    parser.add_argument("--set", nargs="*", default=[], help="overrides of the recipe, key=value")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    return args


def run_all(wanted: Sequence[Any], run: Callable[[Any, argparse.Namespace], Rows], args: argparse.Namespace) -> None:
    """Run jobs, several in parallel, save after each one, and print all rows at the end."""
    rows: Rows = []
    begin = time.perf_counter()
    with ThreadPoolExecutor(args.together) as pool:
        for job, future in [(job, pool.submit(run, job, args)) for job in wanted]:
            try:
                rows += future.result()
            except (RuntimeError, OSError, subprocess.TimeoutExpired, ValueError, KeyError) as error:
                print(f"{job.name} failed: {error}", file=sys.stderr, flush=True)
            minutes = (time.perf_counter() - begin) / 60
            save(
                args.name,
                rows + build_means(rows),
                minutes=minutes,
                folder=args.out,
                notes=format_sharing_note(args.together),
            )
    for row in rows + build_means(rows):
        print(f"{row['value']:>14,.2f} {row['unit']:<10} {row['what']} {row.get('seed', '')}")


def main() -> None:
    args = parse_arguments(__doc__, jobs="multi30k,tatoeba", work="runs/benchmark")
    args.name = args.name or "translation"
    run_all([job for job in jobs() if job.name.startswith(tuple(args.jobs.split(",")))], run, args)


if __name__ == "__main__":
    main()
