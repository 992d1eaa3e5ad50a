"""Time and memory of self-attention against the length n: naive, full and windowed (Vaswani et al. 2017, table 1).

    python benchmarks/restricted_attention.py [--out FOLDER] [--draw FOLDER]

Naive holds all n x n weights, full is SDPA, windowed sees r keys on each side in O(r n d). Forward and backward are
measured on the GPU where there is one (bfloat16), else on one thread of the CPU (float32). Each way is taken to longer
texts until a step gets too long or too large. Time is the shortest of several: of the process's CPU time, or between
two events of the GPU. Memory is the most that torch's allocator had given out beyond the inputs; what is freed stays
with the process. Slopes are fitted to the logarithms of the four longest texts. With `--draw` nothing is measured; the
results in `--out` become a picture.
"""

import argparse
import ctypes
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from results import save
from torch import Tensor

from saccade.layers.attention import backends as kernels
from saccade.layers.attention.masks import Band

NAME, PICTURE = "restricted_attention", "restricted-attention"
REACH = 64  # keys seen on each side
WIDTH = 64  # of a head
FITTED = 4  # longest texts that a slope is fitted to
WAYS = ("naive", "full", "windowed")
EXPECTED = {"naive": (2, 2), "full": (2, 1), "windowed": (1, 1)}  # slopes of time and memory
COLOURS = {"naive": "#D55E00", "full": "#0072B2", "windowed": "#009E73"}  # safe for colour blindness (Okabe and Ito)


class Limits(NamedTuple):
    batch: int
    heads: int
    shortest: int
    longest: int
    seconds: float  # of one forward and backward
    bytes: float


CPU = Limits(batch=1, heads=4, shortest=512, longest=32_768, seconds=6.0, bytes=3e9)
GPU = Limits(batch=4, heads=8, shortest=1024, longest=65_536, seconds=0.6, bytes=4e10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "results")
    parser.add_argument("--draw", type=Path, metavar="FOLDER", help="draw what is in --out, and measure nothing")
    arguments = parser.parse_args()
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # or torch's profiler tells that it starts and stops
    if not arguments.draw:
        measure(arguments.out)
    draw(arguments.out, arguments.draw or arguments.out)


def measure(out: Path) -> None:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    limits = GPU if device.type == "cuda" else CPU
    torch.set_num_threads(1)
    keep_pages()
    start = time.monotonic()
    rows = [row for way in WAYS for row in build_rows(way, points(way, limits, device))]
    for row in rows:
        print(f"{row['what']}: n^{row['value']}  {row['points'][-1]}")
    notes = (
        f"{limits.batch} x {limits.heads} heads of {WIDTH}, r = {REACH}, "
        f"{'bfloat16' if device.type == 'cuda' else 'float32, one thread, process CPU time'}."
    )
    name = f"{NAME}_{'gpu' if device.type == 'cuda' else 'cpu'}"
    print(save(name, rows, minutes=(time.monotonic() - start) / 60, folder=out, notes=notes))


def keep_pages() -> None:
    """Keep freed memory in the process: otherwise large tensors would pay for new pages in every step."""
    if sys.platform == "linux":
        library = ctypes.CDLL(None)
        library.mallopt(-4, 0)  # M_MMAP_MAX: nothing from outside the heap
        library.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD: nothing is given back


def build_rows(way: str, found: list[tuple[int, float, int]]) -> list[dict[str, Any]]:
    """Return the slopes of a variant and its measured points."""
    rows = []
    for what, column, expected in zip(("time", "memory"), (1, 2), EXPECTED[way], strict=True):
        values = [(point[0], point[column]) for point in found]
        rows.append(
            {
                "what": f"{way} self-attention, forward and backward: {what} grows with the length n to the power of",
                "value": round(slope(values[-FITTED:]), 3), "unit": "", "detail": (way, what) != ("windowed", "time"),
                "peer": "by the number of operations" if what == "time" else "by what is held", "peer_value": expected,
                "points": values,
            }
        )  # fmt: skip
    return rows


def points(way: str, limits: Limits, device: torch.device) -> list[tuple[int, float, int]]:
    """Return (n, seconds, bytes) for growing lengths, until the next one would exceed a limit."""
    found: list[tuple[int, float, int]] = []
    n = limits.shortest
    grows = [2.0**slope for slope in EXPECTED[way]]
    while n <= limits.longest:
        if found and (found[-1][1] * grows[0] > limits.seconds or found[-1][2] * grows[1] > limits.bytes):
            break
        query, key, value = inputs(n, limits, device)

        def step(q: Tensor = query, k: Tensor = key, v: Tensor = value) -> None:
            y = attention(way, q, k, v)
            torch.autograd.grad(y.sum(), (q, k, v))

        step()
        found.append((n, seconds(step, device), memory(step, device)))
        n *= 2
    return found


def inputs(n: int, limits: Limits, device: torch.device) -> list[Tensor]:
    """Build queries, keys and values in the memory layout of a projection, with heads side by side."""
    kind = torch.bfloat16 if device.type == "cuda" else torch.float32
    shape = (limits.batch, n, limits.heads, WIDTH)
    made = [torch.randn(shape, device=device, dtype=kind).transpose(1, 2) for _ in range(3)]
    return [part.requires_grad_() for part in made]


def attention(way: str, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scale = 1 / math.sqrt(WIDTH)
    if way == "naive":
        return kernels.explicit_attention(query, key, value, scale=scale, allowed=None)[0]
    if way == "windowed":
        return kernels.window_attention(query, key, value, scale=scale, band=Band(REACH))
    at = torch.arange(query.shape[2], device=query.device)[None]
    return kernels.sdpa_attention(query, key, value, scale=scale, mask=None, q_pos=at, k_pos=at)


def seconds(step: Callable[[], None], device: torch.device) -> float:
    """Return the shortest of several timings; fewer repetitions if one takes long."""
    took: list[float] = []
    enough = 0.1 if device.type == "cuda" else 0.8
    while len(took) < 3 or sum(took) < enough:
        took.append(one_on_gpu(step) if device.type == "cuda" else one_on_cpu(step))
    return min(took)


def one_on_cpu(step: Callable[[], None]) -> float:
    begin = time.process_time()
    step()
    return time.process_time() - begin


def one_on_gpu(step: Callable[[], None], repeats: int = 5) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in "ab")
    begin.record()
    for _ in range(repeats):
        step()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1000 / repeats


def memory(step: Callable[[], None], device: torch.device) -> int:
    """Return the peak bytes beyond those in use before."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=cpu, profile_memory=True, acc_events=True) as watched:
        step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        watched.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    now = peak = 0
    for event in sorted((e for e in events if e.get("name") == "[memory]"), key=lambda e: float(e["ts"])):
        now += event["args"]["Bytes"]
        peak = max(peak, now)
    return peak


def slope(values: list[tuple[int, float]]) -> float:
    """Return the slope of a line fitted on a log-log scale."""
    xs, ys = [math.log(x) for x, _ in values], [math.log(y) for _, y in values]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs)


# ---- the picture


def draw(results: Path, folder: Path) -> None:
    """Plot time and memory side by side, with a row of panels for each machine."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    found = [json.loads(path.read_text("utf-8")) for path in sorted(results.glob(f"{NAME}_*.json"))]
    figure = Figure(figsize=(9, 3.9 * len(found)), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    for row, (result, panels) in enumerate(zip(found, figure.subplots(len(found), 2, squeeze=False), strict=True)):
        machine = result["hardware"].removeprefix("one ").split(",")[0]
        for axes, what in zip(panels, ("time", "memory"), strict=True):
            panel(axes, what, [line for line in result["rows"] if f": {what} grows" in line["what"]])
            axes.set_title(f"{what} of forward and backward, {machine}", fontsize=10, loc="left")
            axes.set_xlabel("length n" if row == len(found) - 1 else "")
    folder.mkdir(parents=True, exist_ok=True)
    for kind in ("svg", "png"):
        path = folder / f"{PICTURE}.{kind}"
        figure.savefig(path, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
        print(path)


def panel(axes: Any, what: str, lines: list[dict[str, Any]]) -> None:
    """Plot one line for each variant, labelled with its slope."""
    unit, size = ("ms", 1e-3) if what == "time" else ("MiB", 2**20)
    for line in lines:
        way = line["what"].split()[0]
        ns, values = zip(*line["points"], strict=True)
        shown = [value / size for value in values]
        wide = 2 if way == "naive" else 1  # seen also where another line runs over it
        axes.plot(ns, shown, color=COLOURS[way], marker="o", markersize=4 * wide, linewidth=2 * wide)
        text = f"{way}, n$^{{{line['value']:.2f}}}$"
        side, away = ("right", -7) if way == "naive" else ("left", 7)
        axes.annotate(
            text, (ns[-1], shown[-1]), xytext=(away, 0), textcoords="offset points", color=COLOURS[way], fontsize=10,
            ha=side, va="center",
        )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    longest = max(point[0] for line in lines for point in line["points"])
    axes.set_xlim(right=longest * 8)  # room for the names
    axes.set_ylabel(unit)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xticks([n for n, _ in max((line["points"] for line in lines), key=len)])
    axes.xaxis.set_major_formatter(lambda n, _: f"{n / 1024:g}k" if n >= 1024 else f"{n:g}")


if __name__ == "__main__":
    main()
