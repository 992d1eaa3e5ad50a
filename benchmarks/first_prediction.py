"""How long one sentence takes from Enter to its translation, in a fresh process, with cold and with warm caches.

    python benchmarks/first_prediction.py [--recipe multi30k] [--device auto] [--repeat 3] [--out benchmarks/results]

A model of the size of the recipe is trained for two steps on made sentences. With cold caches, the folders in which
Triton, torch and saccade keep compiled kernels are empty; with warm ones they are those of the process before. The
median counts. The last row is for a file of so many sentences that kernels and CUDA graphs are prepared.
"""

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from results import save

WORDS = ["a", "two", "man", "woman", "dogs", "children", "red", "running", "through", "snow", "the", "street", "ball"]
SENTENCE = "two dogs running through the snow"
CACHES = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "SACCADE_CACHE")
SENTENCES = 1000  # of the file


def write_sentences(folder: Path, count: int = 400) -> list[str]:
    """Write two files of random sentences; return their paths."""
    rng, paths = random.Random(0), [str(folder / "train.a"), str(folder / "train.b")]
    lines = [" ".join(rng.choices(WORDS, k=rng.randint(4, 12))) for _ in range(count)]
    for path in paths:
        Path(path).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return paths


def time_command(arguments: Sequence[str], environment: Mapping[str, str]) -> float:
    """Run a command of saccade in a fresh process; return seconds."""
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-P", "-m", "saccade", *arguments], env=dict(environment), capture_output=True, text=True
    )
    seconds = time.perf_counter() - begin
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return seconds


def measure(folder: Path, *, recipe: str, device: str, repeat: int) -> list[dict[str, object]]:
    """Train a model in the folder; return rows with the seconds of its predictions."""
    caches = {name: str(folder / "caches" / name) for name in CACHES}
    environment = {**os.environ, **caches}
    data, run = write_sentences(folder), str(folder / "run")
    tiny = ["train.steps=2", "tokenizer.size=300", "data.valid=0.05"]
    time_command(["train", recipe, "--data", *data, "--run", run, *tiny], environment | {"SACCADE_DEVICE": "cpu"})
    predict, environment["SACCADE_DEVICE"] = ["predict", run], device
    cold, warm = [], []
    for _ in range(repeat):
        shutil.rmtree(folder / "caches", ignore_errors=True)
        cold.append(time_command([*predict, SENTENCE], environment))
        warm.append(time_command([*predict, SENTENCE], environment))
    many = folder / "many.txt"
    many.write_text(f"{SENTENCE}\n" * SENTENCES, encoding="utf-8")
    long = [time_command([*predict, "--input", str(many)], environment) for _ in range(2)]
    what = f"{recipe}, {'CPU' if device == 'cpu' or not torch.cuda.is_available() else torch.cuda.get_device_name()}"
    return [
        {"what": f"first prediction, cold caches, {what}", "value": round(statistics.median(cold), 2), "unit": "s"},
        {"what": f"first prediction, warm caches, {what}", "value": round(statistics.median(warm), 2), "unit": "s"},
        {"what": f"{SENTENCES:,} sentences, kernels not compiled yet, {what}", "value": round(long[0], 2), "unit": "s"},
        {"what": f"{SENTENCES:,} sentences, warm caches, {what}", "value": round(long[1], 2), "unit": "s"},
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="multi30k")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "results")
    options = parser.parse_args()
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(Path(folder), recipe=options.recipe, device=options.device, repeat=options.repeat)
    for row in rows:
        print(f"{row['what']}: {row['value']} {row['unit']}")
    notes = "Two steps of training, so the outputs are noise; model and kernels are those of the recipe's size."
    print(save("first_prediction", rows, minutes=(time.perf_counter() - begin) / 60, folder=options.out, notes=notes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
