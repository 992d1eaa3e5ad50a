"""Run `saccade demo` with three seeds: exact match on dates of held-out years, and training time.

    python benchmarks/demo.py [--out benchmarks/results]

Run it on an idle machine: two threads that compete with other programs lose more than half of their speed.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from results import save

from saccade.demo.dates import run_demo

EXACT = "`make demo`, exact match on dates of held-out years"
SECONDS = "`make demo`, seconds of training on 2 cores"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    out = parser.parse_args().out
    begin, rows = time.perf_counter(), []
    for seed in (1, 2, 3):
        with tempfile.TemporaryDirectory() as folder:
            outcome = run_demo(run=f"{folder}/demo", seed=seed)
        rows.append({"what": EXACT, "value": round(outcome.correct, 2), "unit": "%", "seed": seed})
        rows.append({"what": SECONDS, "value": round(outcome.seconds, 1), "unit": "seconds", "seed": seed})
    for what in (EXACT, SECONDS):
        same = [row for row in rows if row["what"] == what]
        value = round(statistics.mean(row["value"] for row in same), 2)
        rows.append({"what": f"{what}: mean", "value": value, "unit": same[0]["unit"]})
    save("demo", rows, minutes=(time.perf_counter() - begin) / 60, folder=out)


if __name__ == "__main__":
    main()
