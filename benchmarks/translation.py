"""Whole training runs on real parallel text, scored with sacreBLEU: quality and minutes, as a user would get them.

    python benchmarks/translation.py --data FOLDER [--jobs multi30k-en-de,tatoeba] [--out FOLDER] [--together 3]

FOLDER holds `multi30k/` and `tatoeba-de-en/` with gzipped line-aligned files. Every job is `saccade train` and
`saccade evaluate` in processes of their own; its minutes are those of the whole training process, with start,
tokenising, compilation and validation. `--together N` runs N jobs at once on one device: their minutes are then an
upper bound. Results are saved after every job.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from results import save

PYTHON = [sys.executable, "-m", "saccade"]
BEAM = ["beam=5"]


@dataclass(frozen=True)
class Job:
    name: str
    recipe: str
    what: str  # begins as the table that asks for it
    files: tuple[tuple[str, str], tuple[str, str], tuple[str, str]]  # train, valid, test: source and target
    seed: int


def jobs() -> Iterator[Job]:
    for source, target in (("en", "de"), ("en", "fr"), ("de", "en")):
        files = tuple((f"multi30k/{p}.{source}.gz", f"multi30k/{p}.{target}.gz") for p in ("train", "val", TEST))
        what = f"multi30k {source}->{target}, {TEST}"
        for seed in (1, 2, 3) if (source, target) == ("en", "de") else (1,):
            yield Job(f"multi30k-{source}-{target}-{seed}", "multi30k", what, files, seed)
    files = tuple((f"tatoeba-de-en/{part}.de.gz", f"tatoeba-de-en/{part}.en.gz") for part in ("train", "valid", "test"))
    yield Job("tatoeba-de-en-1", "tatoeba", "tatoeba de->en, test", files, 1)


TEST = "test_2016_flickr"


def run(job: Job, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Trains and scores one model; returns its rows."""
    train, valid, test = ([str(args.data / name) for name in pair] for pair in job.files)
    folder = args.work / job.name
    command = [*PYTHON, "train", job.recipe, "--data", *train, "--valid", *valid, "--run", str(folder)]
    begin = time.perf_counter()
    call([*command, f"train.seed={job.seed}", *args.set], args.work / f"{job.name}.train.log", args.limit)
    minutes = (time.perf_counter() - begin) / 60
    scores = json.loads(
        call([*PYTHON, "evaluate", str(folder), "--data", *test, "--json", *BEAM], args.work / f"{job.name}.test.log")
    )
    bleu = scores["scores"]["bleu"]
    common = {"seed": job.seed}
    return [
        {"what": f"{job.what}, cased sacreBLEU (13a), beam 5", "value": round(bleu["value"], 2), "unit": "BLEU",
         "signature": bleu["signature"], **common},
        {"what": f"{job.what}, minutes of training", "value": round(minutes, 2), "unit": "minutes", **common},
        {"what": f"{job.what}, parameters", "value": scores["parameters"], "unit": "parameters", **common},
    ]  # fmt: skip


def call(command: Sequence[str], log: Path, limit: float | None = None) -> str:
    """Runs a command to its end, keeps what it says in `log`, and returns its standard output."""
    with log.open("w") as file:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=file, text=True, timeout=limit, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {log.read_text()[-2000:]}")
    return done.stdout


def means(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for the mean of everything that was measured with several seeds."""
    added = []
    for what in dict.fromkeys(row["what"] for row in rows):
        same = [row for row in rows if row["what"] == what]
        if len(same) > 1 and what.endswith(("beam 5", "minutes of training")):
            mean = {key: value for key, value in same[0].items() if key != "seed"}
            values = [row["value"] for row in same]
            added.append({**mean, "what": f"{what}, mean of {len(same)} seeds: mean", "value": statistics.mean(values)})
    return added


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--jobs", default="multi30k,tatoeba", help="beginnings of the names of the jobs to run")
    parser.add_argument("--work", type=Path, default=Path("runs/benchmark"), help="where runs and logs are kept")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--name", default="translation")
    parser.add_argument("--together", type=int, default=1)
    parser.add_argument("--limit", type=float, default=None, help="seconds one training may take")
    parser.add_argument("--set", nargs="*", default=[], help="overrides of the recipe, key=value")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    wanted = [job for job in jobs() if job.name.startswith(tuple(args.jobs.split(",")))]
    rows: list[dict[str, Any]] = []
    begin = time.perf_counter()
    with ThreadPoolExecutor(args.together) as pool:
        for job, future in [(job, pool.submit(run, job, args)) for job in wanted]:
            try:
                rows += future.result()
            except (RuntimeError, subprocess.TimeoutExpired, ValueError, KeyError) as error:
                print(f"{job.name} failed: {error}", file=sys.stderr, flush=True)
            save(args.name, rows + means(rows), minutes=(time.perf_counter() - begin) / 60, folder=args.out)
    for row in rows + means(rows):
        print(f"{row['value']:>14,.2f} {row['unit']:<10} {row['what']} {row.get('seed', '')}")


if __name__ == "__main__":
    main()
