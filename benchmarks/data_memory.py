"""Memory of the data pipeline as a corpus grows: generated pairs are prepared and read as batches.

    python benchmarks/data_memory.py [--pairs 100000 2000000] [--multi30k FOLDER] [--out FOLDER]

Every size runs in a process of its own, from text files to batches of a second epoch: a BPE tokenizer is learned, the
pairs are tokenised into memory-mapped arrays, shuffled, sorted and batched. Counted is private memory at its peak
(Private_Dirty of /proc/self/smaps_rollup, looked at every 20 ms); pages of mapped files belong to the system's cache.
With FOLDER (`train.en.gz`, `train.de.gz`) the padding and the speed of batches on Multi30k are measured too.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from results import save

HERE = Path(__file__).resolve().parent
EPOCHS = 2  # of the stream; all of the first, a few batches of the second
BATCH_TOKENS = 4096
VOCABULARY = 8000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, nargs=2, default=(100_000, 2_000_000))
    parser.add_argument("--multi30k", type=Path, help="folder with train.en.gz and train.de.gz")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--measure", nargs=2, metavar=("SOURCE", "TARGET"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(*arguments.measure)))
        return
    start = time.monotonic()
    rows = compare_sizes(*arguments.pairs)
    if arguments.multi30k:
        found = measure_in_process(arguments.multi30k / "train.en.gz", arguments.multi30k / "train.de.gz")
        what = f"multi30k en-de, bpe {VOCABULARY}, batches of {BATCH_TOKENS} tokens"
        rows.append({"what": f"padding on {what}, both sides", "value": round(found["padding"] * 100, 2), "unit": "%"})
        rows.append({"what": f"batches made a second, {what}", "value": found["speed"], "unit": "source+target tok/s"})
    for row in rows:
        print(f"{row['what']}: {row['value']:,} {row['unit']}")
    print(save("data_memory", rows, minutes=(time.monotonic() - start) / 60, folder=arguments.out))


def compare_sizes(small: int, large: int) -> list[dict[str, Any]]:
    """Return the peak private memory at two sizes, and the bytes per additional pair."""
    peaks = {}
    for pairs in (small, large):
        with tempfile.TemporaryDirectory() as folder:
            files = generate(Path(folder), pairs)
            peaks[pairs] = measure_in_process(*files)["peak"]
    per_pair = (peaks[large] - peaks[small]) / (large - small)
    rows: list[dict[str, Any]] = [
        {"what": f"peak private memory with {pairs:,} pairs", "value": round(peak / 2**20, 1), "unit": "MiB"}
        for pairs, peak in peaks.items()
    ]
    what = f"private memory per added pair, from {small:,} to {large:,} pairs"
    return [{"what": what, "value": round(per_pair, 2), "unit": "bytes"}, *rows]


def generate(folder: Path, pairs: int) -> tuple[Path, Path]:
    """Write random sentences whose word frequencies follow Zipf's law."""
    rng = random.Random(1)
    words = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(1, 9))) for _ in range(20_000)]
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    files = folder / "train.xx", folder / "train.yy"
    with files[0].open("w") as source, files[1].open("w") as target:
        for _ in range(0, pairs, 1000):
            drawn = rng.choices(words, weights, k=16_000)
            for first in range(0, 16_000, 16):
                length = rng.randint(3, 13)
                source.write(" ".join(drawn[first : first + length]) + "\n")
                target.write(" ".join(drawn[first + 2 : first + 2 + length]) + "\n")
    return files


def measure_in_process(source: Path, target: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--measure", str(source), str(target)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def measure(source: str, target: str) -> dict[str, float]:
    """Prepare the pairs and read batches into the second epoch; all imports happen before measuring."""
    from saccade.config.schema import Data, Recipe, Tokenizer
    from saccade.data.batching.batches import BatchStream
    from saccade.data.prepare import prepare

    recipe = Recipe(data=Data(train=[source, target]), tokenizer=Tokenizer(size=VOCABULARY))
    with tempfile.TemporaryDirectory() as cache, Peak() as peak:
        stream = BatchStream(prepare(recipe, cache=Path(cache)).train, batch_tokens=BATCH_TOKENS, seed=1)
        start, tokens = time.perf_counter(), 0
        while stream.epoch < EPOCHS - 1:
            batch = next(stream)
            tokens += sum(batch.counts.values())
        speed = tokens / (time.perf_counter() - start)
        padding = stream.padding_ratio
        for _ in range(50):
            next(stream)
    return {"peak": peak.value, "padding": padding, "speed": round(speed)}


class Peak:
    """Context manager that samples the peak private memory of this process."""

    def __enter__(self) -> "Peak":
        self.value = read_private_memory()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.02):
            self.value = max(self.value, read_private_memory())


def read_private_memory() -> int:
    """Return the bytes of pages that belong to no file; the system can drop pages of mapped files."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no Anonymous in /proc/self/smaps_rollup")


if __name__ == "__main__":
    main()
