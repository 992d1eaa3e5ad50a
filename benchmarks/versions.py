"""This tree beside another commit on this CPU: the cases of `make bench`, in turn, each tree in a process of its own.

    python benchmarks/versions.py [--commit 088a6fd] [--rounds 3] [--only WORDS] [--out FOLDER] [--tiny]

A turn runs the same step in both trees, one right after the other, and gives one ratio of CPU times. A round is the
median of its turns; the table shows the median of the rounds. Above 1, this tree is faster.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent.parent
RELEASE = "088a6fd"  # 0.8.0
NAMES_OF_0_8 = {"build_decoding_cases": "decoding", "build_training_cases": "training", "time_once": "once"}
TURNS = 15
TRANSLATIONS = 8  # cases of bench_decoding.py


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commit", default=RELEASE, help="the tree to compare with")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="cases with these words in their names")
    parser.add_argument("--out", type=Path, help="folder for versions_cpu.json; without it nothing is written")
    parser.add_argument("--tiny", action="store_true", help="toy sizes, to test the script")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        return work(tiny=arguments.tiny)
    from results import save

    start, rows = time.monotonic(), []
    with check_out(arguments.commit) as old:
        trees = [start_process(HERE, tiny=arguments.tiny), start_process(old, tiny=arguments.tiny)]
        names = [answer(tree)["names"] for tree in trees]
        for name in [name for name in names[0] if name in names[1] and arguments.only in name]:
            for tree in trees:
                ask(tree, {"make": name})
            rounds = [run_round(trees, turns=2 if arguments.tiny else TURNS) for _ in range(arguments.rounds)]
            new, other, ratio = (statistics.median(values) for values in zip(*rounds, strict=True))
            print(f"{name}: {1000 * new:.2f} ms, then {1000 * other:.2f} ms, ratio {ratio:.3f}", flush=True)
            value, peer = round(1000 * new, 3), round(1000 * other, 3)
            rows.append({"what": name, "value": value, "unit": "ms", "peer": f"saccade at {arguments.commit}",
                         "peer_value": peer, "ratio": round(ratio, 3), "detail": True})  # fmt: skip
        for tree in trees:
            tree.stdin.close()
            tree.wait()
    if arguments.out:
        notes = f"One thread, CPU time; {arguments.rounds} rounds of {TURNS} turns. Above 1, this tree is faster."
        print(save("versions_cpu", rows, minutes=(time.monotonic() - start) / 60, folder=arguments.out, notes=notes))


def run_round(trees: list[Any], *, turns: int) -> tuple[float, float, float]:
    """Return the median seconds of both trees and of their ratio per turn; the trees alternate in going first."""
    seconds: list[list[float]] = [[], []]
    for turn in range(turns):
        for number in (0, 1) if turn % 2 else (1, 0):
            seconds[number].append(ask(trees[number], {"run": True})["seconds"])
    ratios = [old / new for new, old in zip(*seconds, strict=True)]
    return statistics.median(seconds[0]), statistics.median(seconds[1]), statistics.median(ratios)


@contextmanager
def check_out(commit: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(HERE), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def start_process(tree: Path, *, tiny: bool) -> Any:
    """Start a process that runs the steps of one tree on request."""
    paths = os.pathsep.join([str(tree), str(tree / "benchmarks")])
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--worker", *(["--tiny"] if tiny else [])]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ask(tree: Any, question: dict[str, Any]) -> dict[str, Any]:
    tree.stdin.write(json.dumps(question) + "\n")
    tree.stdin.flush()
    return answer(tree)


def answer(tree: Any) -> dict[str, Any]:
    line = tree.stdout.readline()
    if not line:
        sys.exit("a process of the benchmark ended; its message is above")
    found: dict[str, Any] = json.loads(line)
    return found


def work(*, tiny: bool) -> None:
    """Serve a tree's process: build the requested step, and run it on each request."""
    del sys.path[0]  # the folder of this file; PYTHONPATH has that of the tree
    import bench
    import bench_decoding
    import bench_training
    import torch

    build_decoding_cases = find_function(bench_decoding, "build_decoding_cases")
    build_training_cases = find_function(bench_training, "build_training_cases")
    time_once = find_function(bench, "time_once")
    torch.set_num_threads(1)
    output, sys.stdout = sys.stdout, sys.stderr
    size = bench.TINY if tiny else bench.Size()
    translations = build_decoding_cases(size)  # the folder of its models is there until it is exhausted
    cases = {case.what: case for case in [*build_training_cases(size), *itertools.islice(translations, TRANSLATIONS)]}
    print(json.dumps({"names": list(cases)}), file=output, flush=True)
    step = None
    for line in sys.stdin:
        question = json.loads(line)
        found = {}
        if "make" in question:
            step = cases[question["make"]].makers[bench.OURS]()
            time_once(step)
        else:
            assert step is not None
            found = {"seconds": time_once(step)}
        print(json.dumps(found), file=output, flush=True)


def find_function(module: Any, name: str) -> Any:
    """The function of this name, which has another one in the tree of 0.8."""
    return getattr(module, name if hasattr(module, name) else NAMES_OF_0_8[name])


if __name__ == "__main__":
    main()
