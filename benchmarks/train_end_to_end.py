"""End-to-end training speed of `saccade train`, with data loading, and the seconds to reach a given score.

    python benchmarks/train_end_to_end.py [--data FOLDER] [--jobs base,small,score] [--out FOLDER]

base: Transformer-base on generated pairs of mixed lengths (log-normal, median 22 words), 32,000 words.
small: the 2.35 M model that others train on multi30k, about 4,200 target tokens an update.
score: multi30k en->de from the start of the process until greedy BLEU on the whole of val reaches 38.
FOLDER holds `multi30k/` with gzipped line-aligned files; `base` needs none. Every job is a process of its own.
"""

import argparse
import gzip
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from results import save

PYTHON = [sys.executable, "-P", "-m", "saccade", "train"]
FAIRSEQ = ("fairseq, 2.35 M parameters, same data and kind of GPU", 86_399)
GOAL = 38.0
SMALL = "train the 2.35 M multi30k model at the peer's batch (about 4,200 target tokens an update), target tok/s, H200"
QUIET = ["train.save_every=100000", "train.valid_every=100000"]


def generate(folder: Path, *, pairs: int, words: int = 32000) -> list[str]:
    """Write random pairs with a given vocabulary size and target lengths within 20% of the source's; reproducible."""
    draw = random.Random(1)
    paths = [folder / "train.source", folder / "train.target"]
    with paths[0].open("w") as sources, paths[1].open("w") as targets:
        for _ in range(pairs):
            length = math.exp(draw.gauss(math.log(22), 0.55))
            for file, size in ((sources, length), (targets, length * draw.uniform(0.8, 1.2))):
                count = min(max(round(size), 4), 96) - 1  # one more for the end
                print(*(f"w{draw.randrange(words)}" for _ in range(count)), file=file)
    return [str(path) for path in paths]


def train(command: list[str], folder: Path) -> list[dict[str, Any]]:
    """Run `saccade train` to its end and return the lines of its metrics."""
    subprocess.run([*PYTHON, *command, "--run", str(folder / "run")], check=True)
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["event"] == "train"]


def base(folder: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    folder.mkdir(parents=True, exist_ok=True)
    data = generate(folder, pairs=2000 if args.tiny else 60_000)
    size = [
        "train.batch_tokens=1024",
        "train.steps=40",
        "train.report_every=10",
        *stacks(layers=1, dim=32, heads=2, ff=64),
    ]
    full = ["train.batch_tokens=25600", "train.steps=400", "train.report_every=50", "train.compile=true"]
    words = ["tokenizer.kind=words", "tokenizer.size=32004"]
    reports = train(["transformer", "--data", *data, *words, *QUIET, *(size if args.tiny else full)], folder)
    late = reports[len(reports) // 2 :]
    return [
        {
            "what": "the same through `saccade train` end to end, data included: Transformer-base, mixed lengths, H200",
            "value": round(statistics.median(line["tokens_per_second"] for line in late)),
            "unit": "real source+target tokens/s",
        },
        {
            "what": "the same, share of the time that the loop waits for data",
            "value": statistics.median(line["data_wait"] for line in late),
            "unit": "",
        },
    ]


def stacks(**sizes: int) -> list[str]:
    return [f"{part}.stack.{key}={value}" for part in ("reader", "writer") for key, value in sizes.items()]


def small(folder: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    model = stacks(layers=4, dim=128, heads=4, ff=256)
    settings = ["tokenizer.size=8000", "objectives=[{kind='next-token'}]", "train.batch_tokens=4500"]
    steps = 40 if args.tiny else 3000
    more = [f"train.steps={steps}", f"train.report_every={steps // 10}", *QUIET]
    reports = train(["multi30k", *multi30k(args), *model, *settings, *more], folder)
    late = reports[len(reports) // 2 :]
    speed = statistics.median(line["tokens_per_second"] for line in late) * target_share(folder / "run", args)
    return [
        {
            "what": SMALL,
            "value": round(speed),
            "unit": "target tokens/s",
            "peer": FAIRSEQ[0],
            "peer_value": FAIRSEQ[1],
            "ratio": round(speed / FAIRSEQ[1], 2),
        }
    ]


def target_share(run: Path, args: argparse.Namespace) -> float:
    """Return the share of target tokens in the training data."""
    from saccade.data.tokenization.tokenizers import Tokenizers

    tokenizers, counts = Tokenizers.load(run), []
    for side, tokenizer in (("en", tokenizers.source), ("de", tokenizers.target)):
        with gzip.open(args.data / "multi30k" / f"train.{side}.gz", "rt", encoding="utf-8") as file:
            counts.append(sum(map(len, tokenizer.encode_all(file.read().splitlines()))))
    return counts[1] / sum(counts)


def multi30k(args: argparse.Namespace) -> list[str]:
    pack = args.data / "multi30k"
    train, valid = ([str(pack / f"{part}.{side}.gz") for side in ("en", "de")] for part in ("train", "val"))
    return ["--data", *train, "--valid", *valid]


def score(folder: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure the time to a score from outside the process: imports, tokenization, compilation and validation count."""
    steps = 42 if args.tiny else 4200
    settings = [f"train.steps={steps}", f"train.valid_every={steps // 6}", f"train.save_every={steps}"]
    metrics, begin = folder / "run" / "metrics.jsonl", time.perf_counter()
    command = [*PYTHON, "multi30k", *multi30k(args), *settings, "train.valid_predictions=1014"]
    process = subprocess.Popen([*command, "--run", str(folder / "run")])
    seconds, best = None, 0.0
    while seconds is None and process.poll() is None:
        time.sleep(0.05)
        for line in metrics.read_text().splitlines() if metrics.exists() else []:
            values = json.loads(line) if line.endswith("}") else {}
            best = max(best, values.get("bleu", 0.0))
        if best >= GOAL:
            seconds = time.perf_counter() - begin
    process.terminate()
    process.wait()
    what = f"multi30k en->de to {GOAL:g} BLEU on val, wall time from the start of the process, H200"
    unit = "seconds" if seconds else f"not reached: {best:.1f} BLEU in {time.perf_counter() - begin:.0f} s"
    return [{"what": what, "value": seconds and round(seconds, 1), "unit": unit}]


JOBS = {"base": base, "small": small, "score": score}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("."))
    parser.add_argument("--jobs", default="base,small,score")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--work", type=Path, default=None, help="keep the runs here")
    parser.add_argument("--tiny", action="store_true", help="toy sizes, to test the script")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    begin = time.perf_counter()
    for name in args.jobs.split(","):
        with tempfile.TemporaryDirectory() as folder:
            rows += JOBS[name](args.work / name if args.work else Path(folder), args)
        save("train_end_to_end", rows, minutes=(time.perf_counter() - begin) / 60, folder=args.out)
    for row in rows:
        print(f"{row['value'] or 0:>14,.2f} {row['unit']:<30} {row['what']}")


if __name__ == "__main__":
    main()
