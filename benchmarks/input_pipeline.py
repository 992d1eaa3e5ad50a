"""How fast batches come from memory-mapped tokens, against what a GPU takes: is the input ever what it waits for?

    python benchmarks/input_pipeline.py [--pairs 500000] [--out FOLDER]

A corpus of random tokens with the lengths of sentences is written as `saccade train` keeps it, and read through the
same stream: shuffled, cut into batches of like length, gathered, packed into one row each. Once alone (seconds of the
thread's own CPU time), and once in a thread, while the loop beside it calls operators without a pause, which is more
than a training loop does (seconds on the clock).
"""

import argparse
import queue
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from results import save

from saccade.data.batching.batch import Batch
from saccade.data.batching.batches import BatchStream
from saccade.data.store.arrays import ArrayWriter, Store, write_store
from saccade.train.batches.pack import pack_batch
from saccade.train.batches.prefetch import PREFETCHED_BATCHES

SIDES = ("source", "target")
VOCABULARY = 32_000
SECONDS = 4.0  # of every measurement
NEED = 1_500_000  # source + target tokens a second: Transformer-base in training on one H200
HEADLINE = "Transformer-base", "packed", "in a thread beside a busy loop"  # what the front page shows
BUDGETS = {"multi30k": 4_096, "Transformer-base": 25_600}  # tokens of a batch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=500_000)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "results")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(write_random_pairs(Path(folder) / "store", pairs=arguments.pairs))
    for row in rows:
        print(f"{row['what']}: {row['value']:,} {row['unit']}, {row['ratio']:.1f} x {row['peer']}")
    notes = f"{arguments.pairs:,} generated pairs; one torch thread, two cores."
    print(save("input_pipeline", rows, minutes=(time.monotonic() - start) / 60, folder=arguments.out, notes=notes))


def write_random_pairs(folder: Path, *, pairs: int) -> Store:
    """Write random pairs of 2 to 100 tokens, mean 27, with targets about as long as the sources."""
    generator = np.random.default_rng(1)
    source = np.clip(generator.gamma(2.5, 11, size=pairs), 2, 100).astype(np.int64)
    target = np.clip(source * generator.normal(1, 0.15, size=pairs), 2, 100).astype(np.int64)

    def fill(inside: Path) -> dict[str, Any]:
        written = {}
        for side, lengths in zip(SIDES, (source, target), strict=True):
            with ArrayWriter(inside, name=f"{side}-0", dtype="uint16") as appender:
                for part in np.array_split(lengths, 50):
                    tokens = generator.integers(4, VOCABULARY, size=part.sum())
                    appender.append(np.split(tokens, np.cumsum(part)[:-1]))
            written |= appender.get_files()
        longest = int(max(source.max(), target.max()))
        dropped: dict[str, list[int]] = {"empty": [], "long": []}
        return {
            "dtype": "uint16", "sides": SIDES, "bytes": 0, "parts": [pairs], "variants": 1, "longest": longest,
            "total": pairs, "files": written,
            **dropped,
        }  # fmt: skip

    write_store(folder, fill)
    return Store(folder)


def measure(store: Store) -> list[dict[str, Any]]:
    """Measure tokens per second of padded and packed batches, alone and beside a busy loop."""
    rows = []
    for use, budget in BUDGETS.items():
        for form, shape in (("padded", None), ("packed", lambda batch, most=budget: pack_batch(batch, budget=most))):
            for where, speed in (("alone", measure_alone), ("in a thread beside a busy loop", measure_beside_loop)):
                batches, tokens = speed(BatchStream(store, batch_tokens=budget, seed=1), shape)
                what = f"{form} batches of {budget:,} tokens ({use}), {where}: {batches:,.0f} batches a second"
                rows.append(
                    {
                        "what": what, "value": round(tokens), "unit": "source+target tok/s",
                        "peer": "what a training step takes", "peer_value": NEED, "ratio": round(tokens / NEED, 2),
                        "detail": (use, form, where) != HEADLINE,
                    }
                )  # fmt: skip
    return rows


Shape = Callable[[Batch], Batch] | None


def measure_alone(stream: Iterator[Batch], shape: Shape) -> tuple[float, float]:
    """Return batches and tokens per second of CPU time."""
    made = count_tokens(stream, shape)
    next(made)
    start, batches, tokens = time.thread_time(), 0, 0
    while time.thread_time() - start < SECONDS:
        batches, tokens = batches + 1, tokens + next(made)
    seconds = time.thread_time() - start
    return batches / seconds, tokens / seconds


def measure_beside_loop(stream: Iterator[Batch], shape: Shape) -> tuple[float, float]:
    """Return batches and tokens per second of wall time, while the main thread runs small operators in Python."""
    ready: queue.Queue[int] = queue.Queue(maxsize=PREFETCHED_BATCHES)
    stop = threading.Event()

    def work() -> None:
        for count in count_tokens(stream, shape):
            ready.put(count)
            if stop.is_set():
                return

    thread = threading.Thread(target=work)
    thread.start()
    ready.get()
    small = torch.ones(8, 8)
    start, batches, tokens = time.perf_counter(), 0, 0
    while time.perf_counter() - start < SECONDS:
        small + small  # a call of the kind that launches a kernel
        if not ready.empty():
            batches, tokens = batches + 1, tokens + ready.get()
    seconds = time.perf_counter() - start
    stop.set()
    while thread.is_alive():
        while not ready.empty():
            ready.get()
        thread.join(0.01)
    return batches / seconds, tokens / seconds


def count_tokens(stream: Iterator[Batch], shape: Shape) -> Iterator[int]:
    """Yield the number of real tokens of each batch."""
    for batch in stream:
        yield sum((shape(batch) if shape else batch).counts.values())


if __name__ == "__main__":
    main()
