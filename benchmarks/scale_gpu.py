"""Training of one process with NCCL against plain training on one GPU, and the largest GPT form that fits on it.

    python benchmarks/scale_gpu.py [--only ddp-gpt2 ...] [--minutes 4] [--out FOLDER] [--tiny]

A process group of one process costs all that layouts cost except the transfer to others: flat gradients, collective
operations, gathered and sharded parameters. Steps must be CUDA graphs in all layouts; users get these with shards over
several processes if they set train.cuda_graphs=true. Batches are random tokens. Speeds are medians of three windows,
plain and layout in turn. `plan` chooses the largest of four forms of GPT-3 that fits with recomputed activations; it
trains 20 steps without a checkpoint, and the next form must be refused before it takes memory. A case that would begin
after `--minutes` is left for `--only`; each row is saved as it comes. Without a GPU (`--tiny`): gloo, small models.
"""

import argparse
import dataclasses
import gc
import json
import math
import random
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import results
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import saccade
from saccade.config.load import load
from saccade.config.schema import Recipe
from saccade.data.batching.batch import Batch, pad
from saccade.data.tokenization.tokenizers import END, train_tokenizers
from saccade.errors import SaccadeError
from saccade.model.run import pick_device
from saccade.plan.estimate import Plan, PlanRequest, make_plan
from saccade.plan.hardware import GIB
from saccade.train.assemble import build_session
from saccade.train.distributed.mesh import DIMENSIONS
from saccade.train.distributed.ranks import Ranks
from saccade.train.distributed.shard import build_sharded_model
from saccade.train.loop import optimizer_step, prepare_cuda_graphs
from saccade.train.machine import deterministic_mode
from saccade.train.session import Session
from saccade.train.transfer.model import build_initial_model

BATCHES = 6  # different ones, taken in turn, so that the same shapes come again
ROUNDS = 3
FIRST_ID = 4  # ids below are special tokens
BIG_STEPS = 20
MEMORY_TOLERANCE = 0.1
LOSS_TOLERANCE = 0.02  # of mean losses in bfloat16
Row = dict[str, Any]


class System(NamedTuple):
    recipe: str
    overrides: list[str]
    tiny: list[str]
    vocabulary: int
    length: float  # tokens of a sequence: the median of log-normal lengths, or of all rows
    sides: tuple[str, ...] = ("source", "target")


def set_stacks(*, parts: tuple[str, ...] = ("reader", "writer"), **sizes: int) -> list[str]:
    return [f"{part}.stack.{key}={value}" for part in parts for key, value in sizes.items()]


SMALL = {"layers": 1, "dim": 32, "heads": 2, "ff": 64}
SYSTEMS = {
    "transformer": System("transformer", ["train.batch_tokens=25000"], set_stacks(**SMALL), 37000, 22),
    "gpt2": System(
        "gpt2",
        ["train.batch_tokens=32768", "train.accumulate=1"],
        [*set_stacks(parts=("writer",), **SMALL), "data.max_length=32"],
        50257,
        1024,
        ("target",),
    ),
    "multi30k": System("multi30k", [], set_stacks(**SMALL), 8000, 13),
}
LIMITS = {  # least speed of a layout, plain training is 1
    "ddp-transformer": 0.97,
    "ddp-gpt2": 0.97,
    "ddp-multi30k": 0.97,
    "fsdp-gpt2": 0.95,
    "fsdp-transformer": 0.85,
}
GPT_FORMS = {  # Brown et al. 2020, table 2.1: layers, width, heads
    "1.3B": (24, 2048, 16),
    "2.7B": (32, 2560, 32),
    "6.7B": (32, 4096, 32),
    "13B": (40, 5120, 40),
}
TINY_FORMS = {"tiny": (1, 32, 2), "impossible": (1, 2**17, 1024)}


class Bench:
    """The device, its process group, and the sizes of the run."""

    def __init__(self, *, tiny: bool, folder: Path, out: Path, seconds: float) -> None:
        self.tiny, self.folder, self.out, self.seconds = tiny, folder, out, seconds
        self.device, backend, settings = pick_device("auto"), "gloo", dict[str, Any]()
        if self.device.type == "cuda":
            self.device, backend = torch.device("cuda", 0), "nccl"
            settings = {"device_id": self.device}
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, **settings)
        self.ranks = Ranks(slow_group=dist.new_group(backend="gloo"))

    def load(self, system: System) -> Recipe:
        common = ["train.steps=1000000", "train.valid_predictions=0", "train.metric=loss", "train.ema=0"]
        common += ["tokenizer.kind=words", f"tokenizer.size={system.vocabulary}"]
        small = [*system.tiny, "train.batch_tokens=256", "tokenizer.size=64"] if self.tiny else []
        return load(system.recipe, overrides=[*system.overrides, *common, *small])

    def open(self, recipe: Recipe, system: System, layout: str) -> Session:
        """Build a session that trains on random batches, in a layout: "plain", "ddp" or "fsdp"."""
        words = " ".join(f"w{number}" for number in range(recipe.tokenizer.size))
        tokenizers = train_tokenizers(recipe.tokenizer, lambda: [(words, words)])
        ranks = Ranks() if layout == "plain" else self.ranks
        if layout == "fsdp":
            mesh = init_device_mesh(self.device.type, (1, 1, 1), mesh_dim_names=DIMENSIONS)
            group = mesh["data", "shard"]._flatten("batch").get_group()
            ranks = dataclasses.replace(ranks, mesh=mesh, batch_group=group)
            model, _ = build_sharded_model(recipe, tokenizers, ranks=ranks, device=self.device, fresh=True)
        else:
            with self.device:
                model, _ = build_initial_model(recipe, tokenizers, fresh=True)
        data: Any = SimpleNamespace(
            tokenizers=tokenizers, train=None, valid=None, valid_pairs=[], notes=[], filtered={}, bad_rows=[]
        )
        batches = make_batches(system, recipe, tokenizers.source.size)
        run = self.folder / f"{recipe.name}-{layout}"
        run.mkdir(exist_ok=True)
        s = build_session(recipe, run, data=data, model=model, stream=MadeStream(batches), ranks=ranks)
        prepare_cuda_graphs(s)
        return s

    def reset_peak(self) -> int:
        """Begin to measure the peak memory of the GPU; return the bytes that are in use now."""
        release_memory()
        if self.device.type != "cuda":
            return 0
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class MadeStream:
    """The same batches again and again."""

    epoch = 0.0

    def __init__(self, batches: list[Batch]) -> None:
        self.batches = cycle(batches)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        return next(self.batches)

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        pass


def make_batches(system: System, recipe: Recipe, vocabulary: int) -> list[Batch]:
    """Make batches of random tokens: rows of full length for a language model, else pairs of similar mixed lengths."""
    draw, size = random.Random(1), recipe.train.batch_tokens
    if len(system.sides) == 1:
        length = recipe.data.max_length
        return [build_batch(system, draw, [(length,)] * (size // length), vocabulary) for _ in range(BATCHES)]
    longest = min(96, size // 4)
    lengths = []
    for _ in range(max(2000, 30 * size // round(system.length))):
        source = min(max(round(math.exp(draw.gauss(math.log(system.length), 0.55))), 4), longest)
        lengths.append((source, min(max(round(source * draw.uniform(0.8, 1.2)), 4), longest)))
    lengths.sort(key=max)
    groups: list[list[tuple[int, ...]]] = [[]]
    for pair in lengths:
        if (len(groups[-1]) + 1) * max(pair) > size:
            groups.append([])
        groups[-1].append(pair)
    chosen = [groups[(2 * number + 1) * len(groups) // (2 * BATCHES)] for number in range(BATCHES)]
    return [build_batch(system, draw, group, vocabulary) for group in chosen]


def build_batch(system: System, draw: random.Random, lengths: list[tuple[int, ...]], vocabulary: int) -> Batch:
    columns = zip(*lengths, strict=True)
    rows = [
        [[*draw.choices(range(FIRST_ID, vocabulary), k=length - 1), END] for length in column] for column in columns
    ]
    return Batch(dict(zip(system.sides, map(pad, rows), strict=True)))


def measure_speed(bench: Bench, s: Session, steps: int) -> float:
    """Return the real tokens per second of these steps."""
    tokens = s.prefetcher.tokens.total()
    bench.synchronize()
    begin = time.perf_counter()
    for _ in range(steps):
        optimizer_step(s)
    bench.synchronize()
    return (s.prefetcher.tokens.total() - tokens) / (time.perf_counter() - begin)


def choose_steps(bench: Bench, s: Session) -> int:
    """Warm up until all shapes have occurred three times; return the steps of a window, all batches equally often."""
    measure_speed(bench, s, 2 * BATCHES)
    begin = time.perf_counter()
    measure_speed(bench, s, BATCHES)
    return BATCHES * max(1, round(bench.seconds / (time.perf_counter() - begin)))


def compare_layout(bench: Bench, name: str) -> Iterator[Row]:
    """The speed of a layout over that of plain training, in windows that take turns."""
    layout, _, key = name.partition("-")
    system = SYSTEMS[key]
    recipe = bench.load(system)
    sessions = {kind: bench.open(recipe, system, kind) for kind in ("plain", layout)}
    steps = min(choose_steps(bench, s) for s in sessions.values())
    speeds: dict[str, list[float]] = {kind: [] for kind in sessions}
    for _ in range(1 if bench.tiny else ROUNDS):
        for kind, s in sessions.items():
            speeds[kind].append(measure_speed(bench, s, steps))
    losses = {kind: s.meter.read(s.ranks)["loss"] for kind, s in sessions.items()}
    graphs = {kind: s.cuda_graphs is not None and bool(s.cuda_graphs.captured) for kind, s in sessions.items()}
    for s in sessions.values():
        s.prefetcher.close()
    value, plain = (statistics.median(speeds[kind]) for kind in (layout, "plain"))
    ratio = round(value / plain, 3)
    row = {"what": f"{key}, {layout.upper()} of one process: training speed", "value": round(value), "unit": "tokens/s"}
    row |= {"peer": "plain training", "peer_value": round(plain), "ratio": ratio, "limit": LIMITS[name]}
    row |= {"steps": steps, "speeds": {kind: [round(one) for one in each] for kind, each in speeds.items()}}
    same = math.isclose(losses[layout], losses["plain"], rel_tol=LOSS_TOLERANCE)
    captured = all(graphs.values()) or bench.device.type != "cuda"
    holds = same and captured and (bench.tiny or ratio >= LIMITS[name])
    yield row | {"cuda_graphs": graphs, "losses": losses, "holds": holds}


def plan_form(bench: Bench, form: tuple[int, int, int]) -> Plan:
    layers, dim, heads = form
    sizes = set_stacks(parts=("writer",), layers=layers, dim=dim, heads=heads, ff=4 * dim)
    settings = ["train.batch_tokens=8192", "train.accumulate=1", "train.recompute=true", "train.precision=bf16"]
    settings += [
        "tokenizer.kind=words",
        *(["data.max_length=32", "train.batch_tokens=256", "tokenizer.size=64"] if bench.tiny else []),
    ]
    rate = 0.01 if bench.tiny else 0.0001
    common = ["train.steps=1000000", "train.valid_predictions=0", f"train.schedule={{kind='constant', lr={rate}}}"]
    recipe = load("gpt2", overrides=[*sizes, *settings, *common])
    return make_plan(recipe, PlanRequest(gpu="H200"))


def train_largest(bench: Bench) -> Iterator[Row]:
    """The largest form that fits by `plan`: its peak memory over the predicted one, and the refusal of the next."""
    forms = TINY_FORMS if bench.tiny else GPT_FORMS
    plans = {name: plan_form(bench, form) for name, form in forms.items()}
    possible = [name for name, plan in plans.items() if (plan.memory.find_largest_batch() or 0) >= plan.batch_tokens]
    name, plan = possible[-1], plans[possible[-1]]
    predicted = plan.memory.get_batch_peak(plan.batch_tokens)
    assert predicted is not None and len(possible) < len(forms)
    before = bench.reset_peak()
    begin = time.perf_counter()
    s = bench.open(plan.recipe, SYSTEMS["gpt2"], "plain")
    built = time.perf_counter() - begin
    first = train_steps(s, 1)
    speed = measure_speed(bench, s, BIG_STEPS - 2)
    last = train_steps(s, 1)
    s.prefetcher.close()
    peak = round((torch.cuda.max_memory_allocated() - before) / GIB, 2) if bench.device.type == "cuda" else None
    ratio = peak and round(peak * GIB / predicted, 3)
    row = {"what": f"GPT {name}, recomputed activations, {BIG_STEPS} steps: peak memory", "value": peak, "unit": "GiB"}
    row |= {"peer": "predicted by saccade plan", "peer_value": round(predicted / GIB, 2), "ratio": ratio}
    row |= {"parameters": sum(p.numel() for p in s.model.parameters()), "tokens_per_second": round(speed)}
    row |= {"first_loss": first, "last_loss": last, "seconds_to_build": round(built, 1), "limit": MEMORY_TOLERANCE}
    yield row | {"holds": ratio is None or (abs(ratio - 1) <= MEMORY_TOLERANCE and last < first)}
    del s
    following = list(forms)[list(forms).index(name) + 1]
    yield refuse_form(bench, following, plans[following])


def train_steps(s: Session, steps: int) -> float:
    """Train and return the mean loss."""
    s.meter.clear()
    for _ in range(steps):
        optimizer_step(s)
    return s.meter.read(s.ranks)["loss"]


def refuse_form(bench: Bench, name: str, plan: Plan) -> Row:
    """Train a form that does not fit, as a user would; it must be refused before it takes memory."""
    text = bench.folder / "text.txt"
    text.write_text("".join(f"w{number} w{number + 1}\n" for number in range(2000)))
    before = bench.reset_peak()
    begin, message = time.perf_counter(), ""
    try:
        saccade.train(plan.recipe, data=[text], run=bench.folder / "refused")
    except SaccadeError as error:
        message = str(error)
    seconds = round(time.perf_counter() - begin, 1)
    taken = (torch.cuda.max_memory_allocated() - before) / GIB if bench.device.type == "cuda" else 0.0
    row = {"what": f"GPT {name}: seconds until it is refused", "value": seconds, "unit": "s", "message": message}
    holds = ("smaller" in message or "lower the sizes" in message) and taken < 1
    return row | {"gib_taken": round(taken, 3), "holds": holds}


def release_memory() -> None:
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


CASES: dict[str, Callable[[Bench], Iterator[Row]]] = {
    **{name: partial(compare_layout, name=name) for name in LIMITS if name.startswith("ddp")},
    "largest": train_largest,
    **{name: partial(compare_layout, name=name) for name in LIMITS if name.startswith("fsdp")},
}


def read_rows(path: Path) -> list[Row]:
    rows: list[Row] = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--minutes", type=float, default=4.0, help="no case begins after this time")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a window")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "results")
    parser.add_argument("--tiny", action="store_true", help="toy sizes, to test the script")
    arguments = parser.parse_args()
    begin, path = time.time(), arguments.out / "scale_gpu.json"
    failed, left = [], []
    notes = (
        "One process; ratios are medians of windows that take turns with plain training; random tokens. All steps are "
        "CUDA graphs; with shards over several processes that needs train.cuda_graphs=true."
    )
    with tempfile.TemporaryDirectory() as folder:
        seconds = 0.05 if arguments.tiny else arguments.seconds
        bench = Bench(tiny=arguments.tiny, folder=Path(folder), out=arguments.out, seconds=seconds)
        for name in arguments.only:
            if time.time() - begin > 60 * arguments.minutes:
                left.append(name)
                continue
            rows = [row for row in read_rows(path) if row["case"] != name]
            for row in run_case(bench, name):
                print(json.dumps(row), flush=True)
                failed += [] if row["holds"] else [name]
                rows.append(row)
                rows.sort(key=lambda each: list(CASES).index(each["case"]))
                results.save("scale_gpu", rows, minutes=(time.time() - begin) / 60, folder=arguments.out, notes=notes)
            release_memory()
        dist.destroy_process_group()
    if left:
        print(f"not begun within {arguments.minutes:g} minutes: --only {' '.join(left)}", flush=True)
    if failed or left:
        raise SystemExit(1)


def run_case(bench: Bench, name: str) -> Iterator[Row]:
    """Run a case; an error becomes a row, so that the other cases are measured."""
    begin = time.time()
    try:
        with deterministic_mode(bench.load(SYSTEMS["gpt2"]).train, bench.device):
            for row in CASES[name](bench):
                yield {"case": name, **row, "seconds": round(time.time() - begin, 1)}
    except Exception as error:
        traceback.print_exc()
        text = f"{type(error).__name__}: {error}"
        yield {"case": name, "what": f"{name}: failed", "value": None, "unit": "", "error": text, "holds": False}


if __name__ == "__main__":
    main()
