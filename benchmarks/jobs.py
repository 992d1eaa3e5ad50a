"""Jobs of a benchmark: commands that are run one after the other or side by side, and their rows of results."""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from results import save

PYTHON = [sys.executable, "-P", "-m", "saccade"]
Rows = list[dict[str, Any]]


def list_files(pack: str, parts: Sequence[str], source: str, target: str) -> tuple[tuple[str, str], ...]:
    return tuple((f"{pack}/{part}.{source}.gz", f"{pack}/{part}.{target}.gz") for part in parts)


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


Run = Callable[[Any, argparse.Namespace], Rows]


def run_all(wanted: Sequence[Any], run: Run, args: argparse.Namespace, *, after: Run | None = None) -> None:
    """Run jobs, several in parallel, save after each one, and print all rows at the end.

    `after` measures what needs the machine alone: when all jobs are done, one job after the other.
    """
    rows: Rows = []
    begin = time.perf_counter()

    def keep(job: Any, future: Future[Rows]) -> bool:
        try:
            rows.extend(future.result())
        except (RuntimeError, OSError, subprocess.TimeoutExpired, ValueError, KeyError) as error:
            print(f"{job.name} failed: {error}", file=sys.stderr, flush=True)
            return False
        finally:
            minutes, notes = (time.perf_counter() - begin) / 60, format_sharing_note(args.together)
            save(args.name, rows + build_means(rows), minutes=minutes, folder=args.out, notes=notes)
        return True

    with ThreadPoolExecutor(args.together) as pool:
        futures = [(job, pool.submit(run, job, args)) for job in wanted]
        finished = [job for job, future in futures if keep(job, future)]
    with ThreadPoolExecutor(1) as pool:
        for job, future in [(job, pool.submit(after, job, args)) for job in finished if after]:
            keep(job, future)
    for row in rows + build_means(rows):
        print(f"{row['value']:>14,.2f} {row['unit']:<10} {row['what']} {row.get('seed', '')}")
