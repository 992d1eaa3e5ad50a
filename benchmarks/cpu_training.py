"""Training speed of a small Transformer on one thread of a CPU, ours and the toolkits of a suite in one process.

    OMP_NUM_THREADS=1 python benchmarks/cpu_training.py --suite FOLDER [--out benchmarks/results] [--tiny]

FOLDER holds the suite: `cpu_train.py` with its modules, which makes the batches, the peers and the timing. Contenders
take turns, and time is the process's CPU time, so that a busy machine does not matter. The floor is the time of the
matrix products of real tokens alone, at the speed of a large product measured here.
"""

import argparse
import importlib
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from results import save

OURS, ALIKE, BEST = "saccade", "saccade, dropout as the peers", "OpenNMT-py 3.5.1"
SIZE = {"vocab": 8000, "dim": 256, "layers": 3, "heads": 4, "ff": 1024, "dropout": 0.1}
TINY = {"vocab": 100, "dim": 32, "layers": 1, "heads": 2, "ff": 64, "dropout": 0.1}
NOTES = (
    "One thread, the process's CPU time; ratios are medians over rounds in turn, against OpenNMT-py and through it. "
    "Steps are forward, backward and fused AdamW in float32, batches of about 2,000 source and 2,000 target tokens, "
    "dropout and label smoothing 0.1; packing batches is part of our step. Each toolkit's own model as its suite sets "
    "it up: peers also drop attention weights and inside the feed-forward network, which ours does, as in the paper, "
    "only in the rows that say so. "
    "OpenNMT-py has no biases in q, k and v. The floor is the FLOPs of real tokens over the measured rate of a large "
    "float32 product. Where our step on mixed lengths goes: {shares}."
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--tiny", action="store_true", help="toy sizes, to test the script")
    own = parser.parse_args()
    sys.path.insert(0, str(own.suite))
    common, plain = (importlib.import_module(name) for name in ("common", "plain"))
    importlib.import_module("cpu_train")  # registers the peers
    torch.set_num_threads(1)
    wanted = ["--plugin", str(Path(__file__).with_name("cpu_train_contender.py")), "--clock", "cpu"]
    args = common.parser("", seconds=900).parse_args([*wanted, "--repeats", str(own.repeats), "--device", "cpu"])
    begin = time.perf_counter()
    common.start(args)
    # The best peer first: the suite gives ratios against the first contender, round by round.
    common.REGISTRY["cpu-train"].sort(key=lambda one: one.name != BEST)
    rows, timed = race_contenders(args, common, plain, tiny=own.tiny)
    notes = NOTES.format(shares=", ".join(f"{name} {share:.0%}" for name, share in timed))
    save("cpu_training", rows, minutes=(time.perf_counter() - begin) / 60, folder=own.out, notes=notes)


def race_contenders(
    args: Any, common: Any, plain: Any, *, tiny: bool
) -> tuple[list[dict[str, Any]], list[tuple[str, float]]]:
    """Return the rows of both cases, and a profile of our step."""
    size = SimpleNamespace(**(TINY if tiny else SIZE))
    tokens, length = (200, 8) if tiny else (2000, 25)
    rate = measure_matmul_rate(64 if tiny else 1536)
    product = {"what": "large float32 product, one thread", "value": round(rate / 1e9, 1), "unit": "GFLOP/s"}
    rows: list[dict[str, Any]] = [{**product, "detail": True}]
    for label, fixed in ((f"80 x {length} tokens", length), ("mixed lengths", None)):
        batches = plain.seq2seq_batches(size.vocab, tokens, "cpu", fixed, count=3)
        case = SimpleNamespace(label=label, size=size, batches=batches, dynamic=not fixed, device="cpu", amp=False)
        flops = sum(plain.seq2seq_flops(b, size.vocab, size.dim, size.layers, size.ff) for b in batches)
        timed = common.race("cpu-train", case, args, lambda case, seconds, one: {})
        rows += compare_speeds(timed, tokens=sum(b.n_src + b.n_tgt for b in batches), floor=flops / rate)
    return rows, profile_shares(size, plain.seq2seq_batches(size.vocab, tokens, "cpu", None, count=3), common)


def compare_speeds(timed: list[dict[str, Any]], *, tokens: int, floor: float) -> list[dict[str, Any]]:
    """Compare our speed with each peer that ran, and with the floor."""
    found = {row["contender"]: row for row in timed if "ms" in row}
    missing = [f"{row['contender']}: {row['error']}" for row in timed if "error" in row]
    if OURS not in found:
        raise SystemExit("; ".join(missing))
    peers = {name: row for name, row in found.items() if name not in (OURS, ALIKE)}
    rows = []
    for name, suffix in ((OURS, ""), (ALIKE, ", dropout as the peers")):
        ours = found[name]
        what = f"train 3+3 x 256 on CPU, {ours['case']}{suffix}, source+target tokens a second"
        speed = {"what": what, "value": round(1e3 * tokens / ours["ms"]), "unit": "tokens/s"}
        for peer, row in peers.items():
            ratio = ours["vs_first"] / row["vs_first"]
            theirs = {"peer": peer, "peer_value": round(1e3 * tokens / row["ms"]), "ratio": round(ratio, 3)}
            rows.append({**speed, **theirs, "detail": (name, peer) != (OURS, BEST)})
        at_floor = {"peer": "floor: the matrix products alone", "peer_value": round(tokens / floor)}
        rows.append({**speed, **at_floor, "ratio": round(1e3 * floor / ours["ms"], 3), "detail": True})
    return rows + [{**speed, "peer": f"not run: {line}", "peer_value": None, "detail": True} for line in missing]


def measure_matmul_rate(size: int) -> float:
    """Measure the FLOP/s of a size^3 float32 matmul on this thread."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    times = []
    for _ in range(7):
        begin = time.process_time()
        a @ b
        times.append(time.process_time() - begin)
    return 2 * size**3 / statistics.median(times[2:])


def profile_shares(size: Any, batches: list[Any], common: Any) -> list[tuple[str, float]]:
    """Return the operations that take most of our step on mixed lengths, with their share."""
    from torch.profiler import ProfilerActivity, profile

    one = next(made for made in common.REGISTRY["cpu-train"] if made.name == OURS)()
    one.build(SimpleNamespace(size=size, batches=batches))
    one.step()
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        one.step()
    times: dict[str, float] = {}
    for event in seen.key_averages():
        name = next((kind for word, kind in KINDS.items() if word in event.key), "everything else")
        times[name] = times.get(name, 0.0) + event.self_cpu_time_total
    total = sum(times.values())
    return sorted(((name, spent / total) for name, spent in times.items()), key=lambda pair: -pair[1])


KINDS = {
    "aten::mm": "matrix products",
    "aten::addmm": "matrix products",
    "attention": "attention",
    "softmax": "softmax of the loss",
    "threshold": "activation",
    "clamp_min": "activation",
    "index_select": "rows to rectangles and back",
    "scatter_add": "rows to rectangles and back",
    "randint": "dropout masks",
    "random_": "dropout masks",
    "layer_norm": "norms",
    "adamw": "optimizer",
}


if __name__ == "__main__":
    main()
