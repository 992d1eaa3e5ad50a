"""How fast saccade is on this machine's CPU, beside Hugging Face, CTranslate2 and `nn.Transformer`: `make bench`.

    python benchmarks/bench.py [--part training|decoding] [--out FOLDER] [--tiny]

All contenders do the same work in one process with one thread, in float32 unless noted: a Transformer of 3 + 3 layers
of width 256 with 8,000 words. Contenders take turns; each turn gives a ratio, and the table shows the median ratio.
Time is the CPU time of this process, so that other programs matter little. Packages that are not installed are skipped.
"""

import argparse
import gc
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")  # read when torch and CTranslate2 are loaded

OURS = "saccade"
PEERS = ("nn.Transformer", "Hugging Face", "CTranslate2")
MISSING = "not installed"
Step = Callable[[], object]


class Size(NamedTuple):
    layers: int = 3
    dim: int = 256
    heads: int = 4
    ff: int = 1024
    words: int = 8000  # of the vocabulary, all included
    tokens: int = 1000  # of a training batch, on each side
    length: int = 20  # of sources and outputs in decoding
    rows: int = 32  # of a large batch in decoding


TINY = Size(layers=1, dim=16, heads=2, ff=32, words=60, tokens=64, length=5, rows=3)


class Case(NamedTuple):
    """One kind of work; `makers` build the step of each contender, and raise ImportError if it is not installed."""

    what: str
    makers: dict[str, Callable[[], Step]]
    tokens: int  # that one step trains on or writes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("training", "decoding"), help="only one of both")
    parser.add_argument("--out", type=Path, help="folder for bench.json; without it nothing is written")
    parser.add_argument("--tiny", action="store_true", help="toy sizes, to test the script")
    arguments = parser.parse_args()
    import torch
    from bench_decoding import build_decoding_cases
    from bench_training import build_training_cases
    from results import save

    torch.set_num_threads(1)
    size, start = TINY if arguments.tiny else Size(), time.monotonic()
    parts = {"training": build_training_cases, "decoding": build_decoding_cases}
    rows = []
    for name in [arguments.part] if arguments.part else parts:
        for case in parts[name](size):
            print(f"{case.what} ...", file=sys.stderr, flush=True)
            rows.append(build_row(case, race_contenders(case, seconds=0.1 if arguments.tiny else 7.0)))
    print_table(rows)
    if arguments.out:
        notes = "One thread, CPU time of the process, medians of ratios of turns; above 1 we are faster."
        minutes = (time.monotonic() - start) / 60
        print(
            save(
                "bench",
                [flat for row in rows for flat in flatten_row(row)],
                minutes=minutes,
                folder=arguments.out,
                notes=notes,
            )
        )


def race_contenders(case: Case, *, seconds: float) -> dict[str, list[float] | str]:
    """Return the seconds of each contender's steps in 3 to 9 turns, or why it could not run."""
    steps: dict[str, Step] = {}
    times: dict[str, list[float] | str] = {}
    for name, make in case.makers.items():
        try:
            steps[name] = make()
            time_once(steps[name])
            times[name] = []
        except ImportError:
            times[name] = MISSING
    begin, turns = time.process_time(), 0
    while turns < 3 or (turns < 9 and time.process_time() - begin < seconds):
        for name, step in steps.items():
            times[name].append(time_once(step))  # type: ignore[union-attr]
        turns += 1
    return times


def time_once(step: Step) -> float:
    gc.collect()
    begin = time.process_time()
    step()
    return time.process_time() - begin


def build_row(case: Case, times: dict[str, list[float] | str]) -> dict[str, Any]:
    """Return our tokens per second, and for each peer the median of its time over ours, or why it could not run."""
    ours = times[OURS]
    assert isinstance(ours, list), "saccade itself is there"
    ratios: dict[str, float | str] = {}
    for name, theirs in times.items():
        if isinstance(theirs, str):
            ratios[name] = theirs
        elif name != OURS:
            ratios[name] = statistics.median(a / b for a, b in zip(theirs, ours, strict=True))
    return {"what": case.what, "speed": case.tokens / statistics.median(ours), "ratios": ratios}


def flatten_row(row: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one row of results for each peer."""
    speed = round(row["speed"], 1)
    rows = []
    for peer, ratio in row["ratios"].items():
        found = {"what": row["what"], "value": speed, "unit": "tok/s", "peer": peer, "detail": True}
        if isinstance(ratio, float):
            found |= {"peer_value": round(speed / ratio, 1), "ratio": round(ratio, 3)}
        else:
            found["peer"] = f"{peer} ({ratio})"
        rows.append(found)
    return rows


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    """Print the table."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="saccade on one thread, and how many times as fast as others it is")
    table.add_column("work")
    for name in ("saccade, tok/s", *PEERS):
        table.add_column(name, justify="right")
    for row in rows:
        cells = [format_ratio(row["ratios"].get(peer)) for peer in PEERS]
        table.add_row(row["what"], f"{row['speed']:,.0f}", *cells)
    Console(width=None if sys.stdout.isatty() else 110).print(table)


def format_ratio(ratio: float | str | None) -> str:
    if isinstance(ratio, float):
        return f"{ratio:.2f}x"
    return ratio or ""


if __name__ == "__main__":
    main()
