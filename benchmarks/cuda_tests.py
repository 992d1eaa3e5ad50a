"""Run the fast tests on a machine with a GPU, with CUDA visible and hidden, in shards, and count the results.

    python benchmarks/cuda_tests.py [--shards 8] [--only 3 4] [--cuda visible hidden] [--workers 4]

A shard that takes more than nine minutes is stopped and counted as such. Counts of each shard are kept in the folder
--work, so that shards can be run one by one; once all are there for this commit, `cuda_tests.json` is written.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import results

ROOT = Path(__file__).resolve().parent.parent
MODES = ("visible", "hidden")
MAX_SECONDS = 540  # of a shard
COUNTS = ("passed", "failed", "errors", "skipped")


def run_shard(shard: int, shards: int, *, mode: str, workers: int, work: Path) -> dict[str, Any]:
    """Run one shard of the fast tests; return counts, the names of what failed, and whether it was stopped."""
    report = work / f"{mode}-{shard}-of-{shards}.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-n", str(workers), "--dist", "loadfile", "-m", "not slow"]
    command += ["--shard", f"{shard}/{shards}", f"--junitxml={report}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"} | ({"CUDA_VISIBLE_DEVICES": ""} if mode == "hidden" else {})
    begin = time.monotonic()
    process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)
    try:
        process.wait(MAX_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # its workers too
        process.wait()
    counted = count_results(report.read_text("utf-8")) if report.is_file() else {}
    return {"commit": results.commit(), "seconds": time.monotonic() - begin, **counted}


def count_results(report: str) -> dict[str, Any]:
    """Return the counts of a JUnit report, and the names of the tests that did not pass."""
    cases = list(ElementTree.fromstring(report).iter("testcase"))
    kinds = [{part.tag for part in case} & {"failure", "error", "skipped"} for case in cases]
    counts = {
        "passed": sum(not kind for kind in kinds),
        "failed": sum("failure" in kind for kind in kinds),
        "errors": sum("error" in kind for kind in kinds),
        "skipped": sum("skipped" in kind for kind in kinds),
    }
    names = [f"{case.get('classname')}::{case.get('name')}" for case in cases]
    return counts | {"names": [name for name, kind in zip(names, kinds, strict=True) if kind & {"failure", "error"}]}


def build_rows(parts: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Add up the shards of each mode; a shard without counts was stopped."""
    rows: list[dict[str, Any]] = []
    for mode, shards in parts.items():
        title = f"fast tests with CUDA {mode}"
        for name in COUNTS:
            value = sum(shard.get(name, 0) for shard in shards)
            rows.append({"what": f"{title}: {name}", "value": value, "unit": "tests"})
        stopped = sum("passed" not in shard for shard in shards)
        rows.append({"what": f"{title}: stopped", "value": stopped, "unit": "shards"})
    return rows


def read_part(path: Path) -> dict[str, Any]:
    """Return the counts of a shard; {} if it was not run at this commit."""
    found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return found if found.get("commit") == results.commit() else {}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--only", type=int, nargs="+", metavar="K", help="shards to run; default: all")
    parser.add_argument("--cuda", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--workers", type=int, default=4, help="processes, which share the GPU")
    parser.add_argument("--work", type=Path, default=ROOT / "runs" / "cuda-tests")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    paths = {
        mode: [options.work / f"{mode}-{shard}-of-{options.shards}.json" for shard in range(1, options.shards + 1)]
        for mode in MODES
    }
    for mode in options.cuda:
        for shard in options.only or range(1, options.shards + 1):
            found = run_shard(shard, options.shards, mode=mode, workers=options.workers, work=options.work)
            paths[mode][shard - 1].write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            print(f"CUDA {mode}, shard {shard}/{options.shards}: {found}")
    parts = {mode: [read_part(path) for path in paths[mode]] for mode in MODES}
    shards = [shard for mode in MODES for shard in parts[mode]]
    if missing := shards.count({}):
        print(f"{missing} of {len(shards)} shards are not run yet at this commit")
        return 0
    rows, names = build_rows(parts), sorted({name for shard in shards for name in shard.get("names", ())})
    minutes = sum(shard["seconds"] for shard in shards) / 60
    print(results.save("cuda_tests", rows, minutes=minutes, folder=options.out, notes="; ".join(names)))
    return int(any(row["value"] for row in rows if not row["what"].endswith(("passed", "skipped"))))


if __name__ == "__main__":
    sys.exit(main())
