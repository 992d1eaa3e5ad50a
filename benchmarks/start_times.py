"""How long commands take that should answer at once, and how soon after Enter a training prints its first step.

    python benchmarks/start_times.py [--repeat 5] [--out benchmarks/results]

Each command is a process of its own, with everything on disk in the cache of the operating system; the best of the
repetitions counts, since other programs only make it slower. The load of the machine is recorded.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from results import save

COMMANDS = {  # seconds that each may take
    "--help": 0.3,
    "recipes": 0.5,
    "lectures list": 1.0,
    "explain train.schedule.lr": 0.5,
}
TRAINING = "train dates --tiny train.steps=1000 train.report_every=1 --run first"
FIRST_STEP_SECONDS = 10.0


def run_command(words: str) -> float:
    """Run a command; return its seconds."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-P", "-m", "saccade", *words.split()], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begin


def wait_for_first_step(folder: Path) -> float:
    """Start a training; return the seconds until it prints its first step, and end it."""
    begin = time.perf_counter()
    command = [sys.executable, "-P", "-m", "saccade", *TRAINING.split(), "--overwrite"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=folder) as process:
        assert process.stderr is not None, "opened as a pipe"
        first = next((line for line in process.stderr if line.startswith("step 1")), None)
        seconds = time.perf_counter() - begin
        process.kill()
    if first is None:
        raise RuntimeError("the training printed no step")
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    args = parser.parse_args()
    begin, rows = time.perf_counter(), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as folder:
        measured = {f"saccade {words}": min(run_command(words) for _ in range(args.repeat)) for words in COMMANDS}
        first = min(wait_for_first_step(Path(folder)) for _ in range(args.repeat))
    aims = [*COMMANDS.values(), FIRST_STEP_SECONDS]
    for (what, seconds), aim in zip(
        [*measured.items(), (f"first step of saccade {TRAINING}", first)], aims, strict=True
    ):
        rows.append({"what": f"{what}; aim: {aim:g} s", "value": round(seconds, 3), "unit": "s", "detail": True})
        print(f"{what:<40} {seconds:>8.2f} s  aim {aim:g} s")
    notes = f"Load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; best of {args.repeat}."
    save("start_times", rows, minutes=(time.perf_counter() - begin) / 60, folder=args.out, notes=notes)


if __name__ == "__main__":
    main()
