"""One training in all layouts: losses and weights against one process, also after kill -9; processes, memory, faults.

    python benchmarks/scale.py [--only exact eps kill float32 repeat bytes restarts] [--steps 200] [--out FOLDER]

CPU, gloo, two Transformer blocks of width 16 as encoder and decoder with dropout, G = 4 micro-batches a step. What each
row must reach is in its column `limit`. Takes about an hour on two cores; `tests/train/test_parallel_table.py` runs
shorter forms of the same rows. Each row is saved when it is measured.
"""

import argparse
import itertools
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from datetime import date
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests" / "train")]
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["SACCADE_DEVICE"] = "cpu"

import layouts  # type: ignore[import-not-found]  # noqa: E402
import results  # noqa: E402
import small  # type: ignore[import-not-found]  # noqa: E402
import torch  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

CHANGED = ("one", "ddp-2", "fsdp-4", "tensor-2", "tensor-2-fsdp-2")  # all ordered pairs of these are resumed
COMPARED = ("ddp-2", "ddp-4", "fsdp-2", "fsdp-4", "tensor-2", "tensor-2-fsdp-2")
KINDS = ("ddp-2", "fsdp-2", "tensor-2", "tensor-2-fsdp-2")
BANNER, RESUMED, ANEW = "training 'transformer' on", " resumes from step ", " begins anew"  # what trainings print
KEYS = "[key]"  # at the end of the name of biases of keys
KEY_PLACES = {"project.bias": 1, "memory.bias": 0}  # of the keys among the projections (H, 3 or 2, E)
TABLE = {"accumulate": 4, "batch_tokens": 64, "valid_predictions": 0, "ema": 0.0, "save_every": 10**6}
EXACT = 1e-10
TIMEOUT = 1200  # seconds for one training
WAIT = 60  # seconds that processes wait for a killed one: gloo does not always notice it, and torchrun is not there
CONSTANT = 4096  # bytes: parameters whose shape the processes cannot share evenly
Row = dict[str, Any]


class Bench:
    def __init__(self, folder: Path, *, steps: int, processes: Any, pairs: Collection[str] = ()) -> None:
        """`processes` is a context of multiprocessing; `pairs` are those of layouts for "kill", all if empty."""
        self.folder, self.steps, self.pairs = folder, steps, pairs
        self.group = layouts.Group(processes, folder)

    def train(self, layout: str, run: str, **settings: Any) -> dict[Any, Any]:
        result: dict[Any, Any] = self.group.run([(layout, run, {**TABLE, **settings})], timeout=TIMEOUT)
        return result

    def resume(self, layout: str, run: str) -> dict[Any, Any]:
        result: dict[Any, Any] = self.group.run([(layout, run, {"resume": True})], timeout=TIMEOUT)
        return result

    def compare(self, run: str, expected: str) -> tuple[float, float]:
        """Return the largest difference of the losses of all steps, and that of the final weights.

        Both runs must have logged the same steps and validations, each of them once.
        """
        same, losses = compare_metrics(self.folder / run, self.folder / expected)
        differences = self.compare_weights(run, expected)
        if not same:
            raise AssertionError(f"{run} has logged other steps than {expected}")
        return losses, max(differences.values())

    def compare_weights(self, run: str, expected: str) -> dict[str, float]:
        """Return the largest difference of each parameter's final values; biases of keys are entries of their own."""
        weights, other = (load_file(self.folder / name / "model.safetensors") for name in (run, expected))
        if weights.keys() != other.keys():
            raise AssertionError(f"{run} has other weights than {expected}")
        parts = [
            (part, difference)
            for name in weights
            for part, difference in split_key_bias(name, (weights[name] - other[name]).abs())
        ]
        return {name: float(difference.max()) for name, difference in parts}


def measure_exact(bench: Bench) -> Iterator[Row]:
    """Float64: each layout against one process."""
    settings: Row = {"steps": bench.steps, "valid_every": bench.steps}
    bench.train("one", "exact-one", **settings)
    for layout in COMPARED:
        bench.train(layout, f"exact-{layout}", **settings)
        losses, weights = bench.compare(f"exact-{layout}", "exact-one")
        yield build_row("float64", layout, losses=losses, weights=weights, limit=EXACT, steps=bench.steps)


def measure_recipe_eps(bench: Bench) -> Iterator[Row]:
    """Float64 with the epsilon of Adam that recipes have, 1e-9: each kind of layout against one process.

    Biases of keys are shown apart: softmax does not depend on them, so that their gradient is rounding noise alone.
    """
    eps = small.small().train.optimizer.eps
    settings: Row = {"steps": bench.steps, "valid_every": bench.steps, "optimizer": {"eps": eps}}
    bench.train("one", "eps-one", **settings)
    for layout in KINDS:
        bench.train(layout, f"eps-{layout}", **settings)
        losses, _ = bench.compare(f"eps-{layout}", "eps-one")
        found = bench.compare_weights(f"eps-{layout}", "eps-one")
        keys = max(value for name, value in found.items() if name.endswith(KEYS))
        weights = max(value for name, value in found.items() if not name.endswith(KEYS))
        row = build_row(f"float64, eps {eps:g}", layout, losses=losses, weights=weights, limit=EXACT, steps=bench.steps)
        yield row | {"key_biases": keys}


def measure_kills(bench: Bench) -> Iterator[Row]:
    """Float64: kill -9 at a random step, and another layout after it.

    The batches that both parts have taken must be those of one process in its order, from the first one to the kill and
    from the checkpoint to the end; the losses of all steps are compared, and none is missing or logged twice.
    """
    steps = bench.steps
    whole: Row = {"steps": steps, "valid_every": steps, "save_every": max(2, steps // 20)}
    expected = bench.train("one", "kill-one", **whole)[0, 0]["batches"]
    rng = random.Random(1)
    for first, second in itertools.permutations(CHANGED, 2):
        begin_time, run = time.time(), f"kill-{first}-then-{second}"
        step, victim = rng.randrange(3, steps - 2), rng.randrange(layouts.LAYOUTS[first][0])
        if bench.pairs and f"{first}:{second}" not in bench.pairs:
            continue
        log = bench.folder / f"{run}-batches"
        log.mkdir()
        killed: Row = {"fault": ("kill", step, victim), "batch_log": str(log), "parallel": {"timeout": WAIT}}
        bench.train(first, run, **whole, **killed)
        saved = layouts.small.checkpoint.list_steps(bench.folder / run / "checkpoints")
        after = bench.resume(second, run)
        before = [layouts.get_batch_log(log, rank).read_text().split() for rank in list_batch_ranks(first)]
        begin = saved[0] if saved else 0  # the first checkpoint may not have been complete yet
        rest = join_ranks([after[0, rank]["batches"] for rank in list_batch_ranks(second)])
        taken = join_ranks(before)
        same_order = rest == expected[begin * TABLE["accumulate"] :] and taken == expected[: len(taken)]
        losses, weights = bench.compare(run, "kill-one")
        row = build_row("kill -9", f"{first} -> {second}", losses=losses, weights=weights, limit=EXACT, steps=steps)
        shutil.rmtree(bench.folder / run)
        row |= {"killed_at": step, "resumed_from": begin, "batches_before": len(taken), "same_order": same_order}
        enough = len(taken) >= step * TABLE["accumulate"]
        yield row | {"seconds": round(time.time() - begin_time, 1), "holds": row["holds"] and same_order and enough}


def list_batch_ranks(layout: str) -> range:
    """Return the ranks of a layout that have batches of their own: one of each group of tensor parallelism."""
    world, parallel = layouts.LAYOUTS[layout]
    return range(0, world, parallel.get("tensor", 1))


def join_ranks(batches: list[list[str]]) -> list[str]:
    """Return the batches of all ranks in the order of the micro-batches; a killed one may have taken fewer."""
    return [batch for group in zip(*batches, strict=False) for batch in group]


def measure_float32(bench: Bench) -> Iterator[Row]:
    """Float32 without dropout; the unit is one process against itself with each micro-batch split in two.

    Losses and weights have a limit each: three times what they differ by in one process.
    """
    part = {"stack": {**layouts.STACK, "dropout": 0.0}, "dropout": 0.0}
    settings: Row = {"steps": 50, "valid_every": 50, "dtype": "float32", "parts": {"reader": part, "writer": part}}
    bench.train("one", "single-one", **settings)
    bench.train("one", "single-split", **settings, split=2)
    losses_limit, weights_limit = (3 * difference for difference in bench.compare("single-split", "single-one"))
    for layout in COMPARED:
        bench.train(layout, f"single-{layout}", **settings)
        losses, weights = bench.compare(f"single-{layout}", "single-one")
        row = build_row("float32", layout, losses=losses, weights=weights, limit=losses_limit, steps=50)
        holds = losses <= losses_limit and weights <= weights_limit
        yield row | {"weights_limit": weights_limit, "holds": holds}


def measure_repeats(bench: Bench) -> Iterator[Row]:
    """The same layout twice with train.deterministic: bit for bit."""
    for layout in COMPARED:
        for run in ("first", "second"):
            bench.train(layout, f"{run}-{layout}", steps=10, valid_every=10, deterministic=True, dtype="float32")
        losses, weights = bench.compare(f"first-{layout}", f"second-{layout}")
        yield build_row("repeated", layout, losses=losses, weights=weights, limit=0.0, steps=10)


def measure_bytes(bench: Bench) -> Iterator[Row]:
    """Bytes of gradients and optimizer in each process of FSDP2 against the whole."""
    wide: Row = {"stack": {"dim": 64, "ff": 128}}
    whole = bench.train("one", "bytes-one", steps=1, valid_every=1, **wide)[0, 0]["bytes"]
    found = bench.train("fsdp-4", "bytes-fsdp-4", steps=1, valid_every=1, **wide)
    total = whole["gradients"] + whole["optimizer"]
    largest = max(result["bytes"]["gradients"] + result["bytes"]["optimizer"] for result in found.values())
    share = (largest - CONSTANT) / total
    row = {"what": "bytes", "layout": "fsdp-4", "largest": largest, "whole": total, "constant": CONSTANT}
    yield row | {"share": share, "limit": 0.26, "holds": share <= 0.26}


def measure_restarts(bench: Bench, *, kills: int = 20) -> Iterator[Row]:
    """kill -9 of random workers of torchrun, again and again, against the same two processes undisturbed.

    Not against one process: from rounding alone, losses of 120 steps in float32 come to differ by 1e-2.
    """
    settings = ["train.steps=120", "train.valid_every=120", "train.save_every=2", "train.report_every=1"]
    settings += ["train.valid_predictions=0", "train.batch_tokens=64", "train.accumulate=4", "train.optimizer.eps=1e-6"]
    program = ["saccade", "train", "transformer", "--tiny", *settings, "--run"]
    environment = {**os.environ, "SACCADE_RUNS": str(bench.folder / "runs"), "GLOO_SOCKET_IFNAME": "lo"}
    environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # see docs/scale.md
    torchrun = [sys.executable, "-P", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    subprocess.run([*torchrun, "-m", "--", *program, "calm"], check=True, env=environment, stderr=subprocess.DEVNULL)
    log = bench.folder / "restarts.log"
    with log.open("w") as file:
        started = [*torchrun, f"--max-restarts={kills + 1}", "-m", "--", *program, "killed"]
        process = subprocess.Popen(started, env=environment, stderr=file)
        done, recovered = kill_workers(process, log, kills)
        process.wait(900)
    same, losses = compare_metrics(bench.folder / "runs/killed", bench.folder / "runs/calm")
    counts = {name: log.read_text().count(text) for name, text in {"resumed": RESUMED, "begun_anew": ANEW}.items()}
    row = {"what": "restarts", "layout": "ddp-2", "kills": done, "recoveries": recovered, **counts}
    row |= {"losses": losses, "limit": 0.0}
    exact = done == recovered == sum(counts.values()) == kills
    yield row | {"holds": process.returncode == 0 and exact and same and losses == 0}


def kill_workers(process: subprocess.Popen[bytes], log: Path, kills: int, *, workers: int = 2) -> tuple[int, int]:
    """Kill one of the workers whenever a group of them has trained some steps; `log` is what they print.

    Return how many were killed, and after how many of these another group has trained further; the next one is not
    killed before that.
    """
    rng, done, recovered = random.Random(2), 0, 0
    wanted = rng.randint(1, 4)
    while process.poll() is None and recovered < kills:
        time.sleep(0.05)
        groups = log.read_text().split(BANNER)
        if len(groups) - 1 <= done or groups[-1].count("\nstep ") < wanted:
            continue
        recovered, found = len(groups) - 2, list_children(process)
        if done < kills and len(found) == workers:
            os.kill(rng.choice(found), signal.SIGKILL)
            done, wanted = done + 1, rng.randint(1, 4)
    return done, recovered


def list_children(process: subprocess.Popen[bytes]) -> list[int]:
    listed = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=False)
    return sorted(map(int, listed.stdout.split()))


def run_two_agents(folder: Path) -> Row:
    """Start two agents of torchrun on 127.0.0.1, as on two machines, and kill a worker before the first checkpoint."""
    port = layouts.find_port()
    settings = ["train.steps=12", "train.valid_every=12", "train.save_every=8", "train.report_every=1"]
    settings += ["train.valid_predictions=0", "train.batch_tokens=64", "train.accumulate=4", "train.optimizer.eps=1e-6"]
    program = ["saccade", "train", "transformer", "--tiny", *settings, "--run"]
    environment = {**os.environ, "SACCADE_RUNS": str(folder), "GLOO_SOCKET_IFNAME": "lo"}
    environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # see docs/scale.md
    subprocess.run(
        [sys.executable, "-P", "-m", *program, "calm"], check=True, env=environment, stderr=subprocess.DEVNULL
    )
    torchrun = [
        sys.executable,
        "-P",
        "-m",
        "torch.distributed.run",
        "--nnodes=2",
        "--nproc-per-node=1",
        "--max-restarts=2",
    ]
    torchrun += ["--rdzv-id=two", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--local-addr=127.0.0.1"]
    log = folder / "agents.log"
    with log.open("w") as file:
        command = [*torchrun, "-m", "--", *program, "agents"]
        agents = [subprocess.Popen(command, env=environment, stderr=file, stdout=file) for _ in range(2)]
        killed, recovered = kill_workers(agents[0], log, 1, workers=1)
        codes = [agent.wait(600) for agent in agents]
    same, losses = compare_metrics(folder / "agents", folder / "calm")
    row = {"what": "two agents", "layout": "ddp-2", "kills": killed, "recoveries": recovered, "codes": codes}
    row |= {"losses": losses, "limit": 1e-4}
    return row | {"holds": codes == [0, 0] and killed == recovered == 1 and same and losses <= 1e-4}


def compare_metrics(run: Path, expected: Path) -> tuple[bool, float]:
    """Return whether two runs have logged the same steps once each, and the largest difference of their losses."""
    own, other = (
        [(line["event"], line["step"], line["loss"]) for line in small.read_metrics(path)] for path in (run, expected)
    )
    same = [line[:2] for line in own] == [line[:2] for line in other]
    return same, max(abs(one[2] - two[2]) for one, two in zip(own, other, strict=True)) if same else float("inf")


def split_key_bias(name: str, values: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield a parameter; those that hold the bias of keys as two parts."""
    place = next((place for end, place in KEY_PLACES.items() if name.endswith(end)), None)
    if place is None:
        yield name, values
    else:
        yield f"{name}{KEYS}", values[:, place]
        yield name, values[:, [other for other in range(values.shape[1]) if other != place]]


def build_row(what: str, layout: str, *, losses: float, weights: float, limit: float, steps: int) -> Row:
    holds = losses <= limit and weights <= limit
    differences = {"losses": losses, "weights": weights, "limit": limit, "holds": holds}
    return {"what": what, "layout": layout, "steps": steps, **differences}


CASES: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "exact": measure_exact,
    "eps": measure_recipe_eps,
    "kill": measure_kills,
    "float32": measure_float32,
    "repeat": measure_repeats,
    "bytes": measure_bytes,
    "restarts": measure_restarts,
}


def join_rows(path: Path, rows: list[Row]) -> list[Row]:
    """Return these rows and those of earlier invocations that they do not replace, each with its commit and date."""
    content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"rows": []}
    own = {key: content[key] for key in ("commit", "date") if key in content}
    measured = {(row["case"], row["layout"]) for row in rows}
    earlier = [own | row for row in content["rows"] if (row["case"], row["layout"]) not in measured]
    order = {name: number for number, name in enumerate(dict.fromkeys(row["case"] for row in [*earlier, *rows]))}
    return sorted([*earlier, *rows], key=lambda row: order[row["case"]])


def read_printed_rows(log: Path, commit: str) -> list[Row]:
    """Read the rows that an invocation of a commit has printed, which was stopped; described ones as they are."""
    day = date.fromtimestamp(log.stat().st_mtime).isoformat()
    lines = [line for line in log.read_text(encoding="utf-8").splitlines() if line.startswith("{")]
    rows = [json.loads(line) for line in lines]
    return [(row if "case" in row else describe_row(row)) | {"commit": commit, "date": day} for row in rows]


def describe_row(row: Row) -> Row:
    """Add the name, value and unit by which the page of results shows a row."""
    name, case = f"{row['what']}, {row['layout']}", row["what"]
    if "weights" in row:
        steps = f", {row['steps']} steps" if "steps" in row else ""
        apart = f" but biases of keys, which differ by {row['key_biases']:.1e}" if "key_biases" in row else ""
        shown = {"what": f"{name}{steps}: largest difference of weights{apart}", "value": row["weights"], "unit": ""}
    elif "share" in row:
        shown = {"what": f"{name}: largest share of gradients and optimizer state", "value": row["share"], "unit": ""}
    else:
        kills = f"{name}: recoveries from {row['kills']} kills"
        shown = {"what": kills, "value": row["recoveries"], "unit": "restarts"}
    return {**row, "case": case, **shown}


def save(rows: list[Row], *, folder: Path, minutes: float) -> None:
    """Write the rows so far, so that an invocation that is stopped loses none."""
    notes = (
        "CPU, gloo; differences are the largest absolute ones against one process, of restarts against two. Rows of "
        "several invocations are joined by the script: each row has its commit and date; command, commit and minutes "
        "above are those of the last one."
    )
    results.save("scale", join_rows(folder / "scale.json", rows), minutes=minutes, folder=folder, notes=notes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--steps", type=int, default=200, help="steps of the comparisons in float64")
    pairs = [f"{first}:{second}" for first, second in itertools.permutations(CHANGED, 2)]
    parser.add_argument("--pairs", nargs="+", choices=pairs, default=[], help="layouts of the case kill; default all")
    parser.add_argument(
        "--printed", nargs=2, metavar=("LOG", "COMMIT"), action="append", default=[],
        help="join the rows that an invocation printed which was stopped; can be given several times",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, default=HERE / "results")
    arguments = parser.parse_args()
    begin, rows = time.time(), list[Row]()
    for log, commit in arguments.printed:
        rows += read_printed_rows(Path(log), commit)
    if rows:
        save(rows, folder=arguments.out, minutes=0.0)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SACCADE_CACHE"] = f"{folder}/cache"
        processes = multiprocessing.get_context("fork")
        bench = Bench(Path(folder), steps=arguments.steps, processes=processes, pairs=arguments.pairs)
        for name in arguments.only:
            for row in CASES[name](bench):
                print(json.dumps(row), flush=True)
                rows.append(describe_row(row) | {"commit": results.commit(), "date": date.today().isoformat()})
                save(rows, folder=arguments.out, minutes=(time.time() - begin) / 60)
    if not all(row["holds"] for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
