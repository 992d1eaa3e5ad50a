"""Predict a corpus of many short lines in a pool of processes: throughput, and memory over time.

    python benchmarks/scale_corpora.py [--lines 1000000] [--processes 2] [--out FOLDER]

A small model for dates is trained, lines are made, and `saccade predict --corpus` decodes them greedily. The command is
killed (SIGKILL) after a tenth of the parts and started again, which skips the finished parts. Then all outputs are
counted, and a sample of them compared with those of the model for the same lines. Memory is the resident memory of each
process, looked at every few seconds; growth is the median of the last quarter of the second start against the second
quarter of it.
"""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from results import save

HERE = Path(__file__).resolve().parent
SMALL = [f"{side}.stack.{key}" for side in ("reader", "writer") for key in ("dim=16", "heads=2", "ff=32", "layers=1")]
DECODING = ["beam=1", "max_length=12"]
SAMPLE = 2000  # lines whose outputs are compared


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--steps", type=int, default=100, help="of the training of the small model")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    arguments = parser.parse_args()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = train(folder, arguments.steps)
        files = make_lines(folder / "corpus", arguments.lines)
        rows = measure(folder, run, files, arguments.lines, arguments.processes)
    for row in rows:
        print(f"{row['what']}: {row['value']:,} {row['unit']}")
    load = f"load average at the end {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, which other programs shared"
    print(save("scale_corpora", rows, minutes=(time.monotonic() - start) / 60, folder=arguments.out, notes=load))


def train(folder: Path, steps: int) -> Path:
    words = ["train", "dates", "--tiny", "--run", str(folder / "run"), f"train.steps={steps}", *SMALL]
    subprocess.run([sys.executable, "-P", "-m", "saccade", *words], check=True, capture_output=True)
    return folder / "run"


def make_lines(folder: Path, count: int) -> list[Path]:
    """Write lines to a text file and a .jsonl file; blank lines are among them."""
    folder.mkdir()
    months = ["January", "March", "May", "July", "August", "October"]
    texts = (f"{n % 28 + 1} {months[n % 6]} {1000 + n % 1900}" if n % 1000 else "" for n in range(count))
    with (folder / "a.txt").open("w") as plain:
        plain.writelines(f"{next(texts)}\n" for _ in range(count // 2))
    with (folder / "b.jsonl").open("w") as table:
        table.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    return [folder / "a.txt", folder / "b.jsonl"]


def measure(folder: Path, run: Path, files: list[Path], lines: int, processes: int) -> list[dict[str, Any]]:
    output = folder / "outputs"
    words = ["predict", str(run), "--corpus", str(folder / "corpus"), "--output", str(output), *DECODING]
    command = [sys.executable, "-P", "-m", "saccade", *words, "--processes", str(processes)]
    total = sum(-(-path.stat().st_size // 2**20) for path in files)
    first = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while first.poll() is None and len(list(output.glob("part-*"))) < total // 10:
        time.sleep(0.5)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    before = sum(count_lines(path) for path in output.glob("part-*.txt"))
    begin = time.monotonic()
    second = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    memory = [*sample_memory(second)]
    seconds = time.monotonic() - begin
    assert second.returncode == 0, second.stderr.read()
    found = [line for path in sorted(output.glob("part-*.txt")) for line in path.read_text().split("\n")[:-1]]
    assert len(found) == lines, (len(found), lines)
    check_sample(run, files, found)
    middle, end = memory[len(memory) // 4 : len(memory) // 2], memory[3 * len(memory) // 4 :]
    growth = statistics.median(map(sum, end)) / statistics.median(map(sum, middle)) - 1
    return [
        {"what": f"lines decoded per second by {processes} processes", "value": round((lines - before) / seconds),
         "unit": "lines/s"},
        {"what": "lines, outputs in their order", "value": len(found), "unit": "lines"},
        {"what": "lines finished before the kill, which the second start skipped", "value": before, "unit": "lines"},
        {"what": "growth of resident memory, last quarter against second", "value": round(100 * growth, 2),
         "unit": "%"},
        {"what": "largest resident memory of one process", "value": max(map(max, memory)), "unit": "MiB"},
        {"what": "resident memory of all processes over time", "value": len(memory), "unit": "samples", "detail": True,
         "series": [sum(each) for each in memory][:: max(1, len(memory) // 200)]},
    ]  # fmt: skip


def count_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def sample_memory(process: subprocess.Popen[str]) -> Iterator[list[int]]:
    """Yield the resident memory of a process and of its children in MiB, every two seconds until it ends."""
    while process.poll() is None:
        found = [read_memory(pid) for pid in (process.pid, *list_children(process.pid))]
        if len(found) > 1 and all(found):
            yield found
        time.sleep(2)


def list_children(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(word) for word in children.read_text().split()] if children.exists() else []


def read_memory(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) // 1024 for line in status.splitlines() if line.startswith("VmRSS")), 0)


def check_sample(run: Path, files: list[Path], found: list[str]) -> None:
    """Compare some outputs with those of the model in this process."""
    from saccade.config.load import override
    from saccade.predict.predictors.predictor import Predictor

    texts = files[0].read_text().split("\n")[:-1]
    texts += [json.loads(line)["text"] for line in files[1].read_text().splitlines()]
    predictor = Predictor.load(run)
    decoding = override(predictor.recipe, [f"predict.{word}" for word in DECODING], origin="settings").predict
    rows = sorted(random.Random(1).sample(range(len(texts)), min(SAMPLE, len(texts))))
    expected = predictor.predict([texts[row] for row in rows], decoding=decoding)
    assert [found[row] for row in rows] == expected


if __name__ == "__main__":
    main()
