"""A stream of many gigabytes, resumed at 90%: seconds to the first batch, and what a process reads and holds.

    python benchmarks/scale_stream.py [--gigabytes 10] [--micro-batches 4] [--processes 1 2 4] [--out FOLDER]

Lines of text and of JSON are written to a temporary folder, half of the bytes each. For each number of processes, each
rank is a process of its own, one after the other: it opens the stream at the position at which 90% of the file ranges
of each micro-batch are read, and takes some steps. The batches of all ranks together must be the same for every number
of processes. The position is computed from the list of ranges instead of by reading the first 90%; tests compare
positions that were reached by reading. Counted are the seconds from opening to the first batch, the bytes that a rank
reads after that for a number of batches, and its largest resident memory, which is compared with that of a stream of a
hundredth of the size.
"""

import argparse
import hashlib
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from results import save

HERE = Path(__file__).resolve().parent
STEPS = 30  # taken after the position
WORDS = 5000
BLOCK_LINES = 100_000  # different ones, which the files repeat with other numbers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=10)
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--processes", type=int, nargs="+", default=(1, 2, 4))
    parser.add_argument("--folder", type=Path, help="where the files are made; deleted at the end")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        print(json.dumps(run_rank(**json.loads(arguments.rank))))
        return
    start = time.monotonic()
    folder = Path(tempfile.mkdtemp(dir=arguments.folder))
    try:
        rows = measure(folder, arguments.gigabytes, arguments.micro_batches, arguments.processes)
    finally:
        shutil.rmtree(folder)
    for row in rows:
        print(f"{row['what']}: {row['value']:,} {row['unit']}")
    load = f"load average at the end {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, which other programs shared"
    print(save("scale_stream", rows, minutes=(time.monotonic() - start) / 60, folder=arguments.out, notes=load))


def make_files(folder: Path, num_bytes: int) -> Path:
    """Write two files of lines of random words; a block of them is repeated with another number in each line."""
    folder.mkdir()
    draw = random.Random(1)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(WORDS)]
    texts = [" ".join(draw.choices(words, k=draw.randint(5, 25))) for _ in range(BLOCK_LINES)]
    for name, template in (("a.txt", "######## {}\n"), ("b.jsonl", '{{"text": "######## {}"}}\n')):
        lines, block = "".join(map(template.format, texts)).encode(), 0
        with (folder / name).open("wb") as file:
            while file.tell() < num_bytes // 2:
                file.write(lines.replace(b"########", b"%08d" % block))
                block += 1
    return folder


def measure(folder: Path, gigabytes: float, group: int, processes: list[int]) -> list[dict[str, Any]]:
    small = make_files(folder / "small", int(gigabytes * 1e7))
    few = start_rank(folder=str(small), rank=0, world=1, group=group, share=0.9)
    large = make_files(folder / "large", int(gigabytes * 1e9))
    size = sum(path.stat().st_size for path in large.iterdir())
    rows: list[dict[str, Any]] = [{"what": "size of the stream", "value": round(size / 1e9, 2), "unit": "GB"}]
    orders: dict[int, list[str]] = {}
    for world in processes:
        ranks = [start_rank(folder=str(large), rank=rank, world=world, group=group, share=0.9) for rank in range(world)]
        own = [iter(rank["batches"]) for rank in ranks]
        orders[world] = [next(own[number % world]) for _ in range(STEPS) for number in range(group)]
        what = f"of the slowest of {world} processes" if world > 1 else "of one process"
        rows += [
            {"what": f"seconds to the first batch after resuming at 90%, {what}",
             "value": round(max(rank["seconds"] for rank in ranks), 2), "unit": "s"},
            {"what": f"bytes read for {STEPS} steps, {what.replace('slowest', 'one that reads most')}",
             "value": round(max(rank["read"] for rank in ranks) / 1e6, 1), "unit": "MB"},
            {"what": f"peak resident memory, {what.replace('slowest', 'largest')}",
             "value": max(rank["memory"] for rank in ranks), "unit": "MiB"},
        ]  # fmt: skip
    assert len({tuple(order) for order in orders.values()}) == 1, "the order depends on the number of processes"
    rows.append(
        {"what": "batches in the same order for all numbers of processes", "value": STEPS * group, "unit": "batches"}
    )
    rows.append({"what": f"peak resident memory with a stream of {size / 1e11:.1f} GB, one process",
                 "value": few["memory"], "unit": "MiB"})  # fmt: skip
    return rows


def start_rank(**settings: Any) -> dict[str, Any]:
    command = [sys.executable, __file__, "--rank", json.dumps(settings)]
    result: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return result


def run_rank(folder: str, rank: int, world: int, group: int, share: float) -> dict[str, Any]:
    """Resume one rank of a stream after a share of it; return the seconds, and the hashes of its next batches."""
    from saccade.config.load import load
    from saccade.data.prepare import prepare

    recipe = load("gpt2", tiny=True, overrides=[f'data.train=["{folder}"]', "data.stream=true", "data.valid=[]",
                                                "tokenizer.kind=bpe", "tokenizer.size=2000"])  # fmt: skip
    train = prepare(recipe, report=lambda text: None).train
    stream = train.open_batches(batch_tokens=4096, seed=1, rank=rank, world=world, micro_batches=group)
    state = make_state(train, stream, group, share)
    train_seconds, before = time.monotonic(), read_bytes()
    stream.restore(state)
    batches = [hash_batch(next(stream))]
    seconds, first = time.monotonic() - train_seconds, read_bytes() - before
    batches += [hash_batch(next(stream)) for _ in range(STEPS * group // world - 1)]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return {"seconds": seconds, "read": read_bytes() - before, "first": first, "memory": memory, "batches": batches}


def make_state(train: Any, stream: Any, group: int, share: float) -> dict[str, Any]:
    """Return the position after a share of the ranges of every micro-batch, as a run would have saved it."""
    from saccade.data.sources.ranges import Share

    lanes = {}
    for number in range(group):
        documents = train.open_documents(Share(number, group))
        [corpus] = documents.corpora
        at = int(share * len(corpus.ranges.ranges))
        corpus.ranges.place.range = at
        lanes[str(number)] = {"epoch": 0, "pool": 1_000_000, "batch": 0, "place": documents.place}
    made_for = stream._get_dependencies()
    return {"lanes": lanes, "num_lanes": group, "files": train.hash_files(), "made_for": made_for}


def read_bytes() -> int:
    """Return how many bytes this process has read from files."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("rchar"))


def hash_batch(batch: Any) -> str:
    field = batch["target"]
    return hashlib.sha256(field.ids.numpy().tobytes() + repr(tuple(field.ids.shape)).encode()).hexdigest()[:16]


if __name__ == "__main__":
    main()
