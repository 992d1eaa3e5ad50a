"""Translation on one thread of a CPU, Transformer-base, ours and CTranslate2 in one process, in float32 and in int8.

    OMP_NUM_THREADS=1 python benchmarks/cpu_decoding.py --suite FOLDER [--out benchmarks/results] [--tiny]

FOLDER holds the suite: `cpu_generate.py` with its modules, which makes the model, the peers and the timing. Contenders
take turns, and time is the process's CPU time, so that a busy machine does not matter. The floor is what the weights
and the products cost at best: each step reads all weights once at the speed of memory, or multiplies at the speed of a
large product, whichever takes longer; both are measured here.
"""

import argparse
import importlib
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from results import save

SIZE = {"vocab": 32000, "dim": 512, "layers": 6, "heads": 8, "ff": 2048}
TINY = {"vocab": 400, "dim": 32, "layers": 1, "heads": 2, "ff": 64}
KINDS = {"float32": ("CTranslate2 float32", "saccade fp32"), "int8": ("CTranslate2 int8", "saccade int8")}
NOTES = (
    "One thread, the process's CPU time; ratios are medians over rounds in turn. The same random weights for all, "
    "{length} source and {length} target tokens, no early stop, no vocabulary shortlist; `same` is the share of tokens "
    "equal to CTranslate2's in float32. Random weights have many near ties, which rounding to int8 decides. Memory "
    "gives {bandwidth:.1f} GB/s, a large product {rates}. Where our time goes in the last case: {shares}."
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "bench-models")
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--tiny", action="store_true", help="toy sizes, to test the script")
    own = parser.parse_args()
    sys.path.insert(0, str(own.suite))
    common, suite = (importlib.import_module(name) for name in ("common", "cpu_generate"))
    torch.set_num_threads(1)
    wanted = ["--plugin", str(Path(__file__).with_name("cpu_contenders.py")), "--clock", "cpu"]
    args = common.parser("", seconds=900).parse_args([*wanted, "--repeats", str(own.repeats), "--device", "cpu"])
    begin = time.perf_counter()
    common.start(args)
    named = [name for pair in KINDS.values() for name in pair]
    ours = common.REGISTRY["cpu-translate"]
    ours[:] = sorted((one for one in ours if one.name in named), key=lambda one: named.index(one.name))
    size, length = SimpleNamespace(**(TINY if own.tiny else SIZE)), 6 if own.tiny else 25
    speed = measure_machine(64 if own.tiny else 1536)
    rows, shares = race_contenders(args, common, suite, size=size, length=length, speed=speed, work=own.work)
    rates = ", ".join(
        f"{rate / 1e9:.0f} G{'FL' if kind == 'float32' else ''}OP/s in {kind}" for kind, rate in speed.rates.items()
    )
    notes = NOTES.format(length=length, bandwidth=speed.bandwidth / 1e9, rates=rates, shares=shares)
    save("cpu_decoding", rows, minutes=(time.perf_counter() - begin) / 60, folder=own.out, notes=notes)


def race_contenders(
    args: Any, common: Any, suite: Any, *, size: Any, length: int, speed: Any, work: Path
) -> tuple[list[dict[str, Any]], str]:
    """Return the rows of all cases, and a profile of our largest case."""
    folder = work / f"marian-{size.vocab}-{size.dim}-{size.layers}"
    suite.make_model(folder, size)
    rng, rows, first = random.Random(1), [], {}

    def columns(case: Any, seconds: float, one: Any) -> dict[str, float]:
        made = [token for row in one.step() for token in row]
        known = first.setdefault(case.label, made)
        return {"same": sum(a == b for a, b in zip(made, known, strict=True)) / len(made)}

    for batch in (1, 32):
        src = [[rng.randrange(2, size.vocab - 1) for _ in range(length - 1)] + [suite.EOS] for _ in range(batch)]
        for beams in (1, 4):
            label = f"batch {batch}, {'greedy' if beams == 1 else f'beam {beams}'}"
            case = SimpleNamespace(label=label, folder=folder, size=size, src=src, new=length, beams=beams, threads=1)
            rows += compare_speeds(common.race("cpu-translate", case, args, columns, warmup=1), case, speed)
    return rows, "; ".join(f"{kind}: {profile_shares(common, case, ours)}" for kind, (_, ours) in KINDS.items())


def compare_speeds(timed: list[dict[str, Any]], case: Any, speed: Any) -> list[dict[str, Any]]:
    """Compare our speed with that of CTranslate2 in the same precision, and with the floor."""
    found = {row["contender"]: row for row in timed if "ms" in row}
    rows, tokens = [], len(case.src) * case.new
    for kind, (peer, ours) in KINDS.items():
        if peer not in found or ours not in found:
            raise SystemExit("; ".join(f"{row['contender']}: {row['error']}" for row in timed if "error" in row))
        mine, theirs = found[ours], found[peer]
        what = f"translate on CPU, {kind}, {case.label}"
        value = {"what": what, "value": round(1e3 * tokens / mine["ms"], 1), "unit": "tokens/s"}
        ratio = mine["vs_first"] / theirs["vs_first"]
        rows.append(
            {
                **value,
                "peer": peer,
                "peer_value": round(1e3 * tokens / theirs["ms"], 1),
                "ratio": round(ratio, 3),
                "same": round(mine["same"], 3),
            }
        )
        least = estimate_floor(case, kind, speed)
        rows.append(
            {
                **value,
                "peer": "floor: weights and products alone",
                "peer_value": round(tokens / least, 1),
                "ratio": round(1e3 * least / mine["ms"], 3),
                "detail": True,
            }
        )
    return rows


def estimate_floor(case: Any, kind: str, speed: Any) -> float:
    """Return the least seconds for encoding once and decoding step by step."""
    size, width = case.size, 4 if kind == "float32" else 1
    square, wide = size.dim**2, size.dim * size.ff
    read = size.layers * (4 * square + 2 * wide + 2 * square)  # the last: keys and values for the writer
    step = size.layers * (6 * square + 2 * wide) + size.vocab * size.dim
    rate = speed.rates[kind]
    first = 2 * read * len(case.src) * len(case.src[0]) / rate
    rows = [len(case.src)] + [len(case.src) * case.beams] * (case.new - 1)  # before the first token all beams are one
    return first + sum(max(2 * step * n / rate, width * step / speed.bandwidth) for n in rows)


def measure_machine(size: int) -> SimpleNamespace:
    """Measure the memory bandwidth of one thread, and the FLOP/s of a size^3 matmul in both precisions."""
    from saccade.kernels.cpu.fma import build_float_linear
    from saccade.kernels.cpu.prepared import quantize_weight
    from saccade.kernels.cpu.vnni import build_int8_linear

    numbers, x = torch.rand(max(size, 64) ** 2 * 20), torch.randn(size, size)
    products = {"float32": build_float_linear(x, None), "int8": build_int8_linear(*quantize_weight(x), None)}
    with torch.inference_mode():
        rates = {kind: 2 * size**3 / seconds(lambda product=product: product(x)) for kind, product in products.items()}
        return SimpleNamespace(bandwidth=4 * numbers.numel() / seconds(numbers.sum), rates=rates)


def seconds(work: Callable[[], Any]) -> float:
    times = []
    for _ in range(7):
        begin = time.process_time()
        work()
        times.append(time.process_time() - begin)
    return max(statistics.median(times[2:]), 1e-9)


def profile_shares(common: Any, case: Any, ours: str) -> str:
    """Return the operations that take most of our time, with their share."""
    from torch.profiler import ProfilerActivity, profile

    one = next(made for made in common.REGISTRY["cpu-translate"] if made.name == ours)()
    one.build(case)
    one.step()
    with record_kernels(), profile(activities=[ProfilerActivity.CPU]) as seen:
        one.step()
    times: dict[str, float] = {}
    for event in seen.key_averages():
        name = next((kind for word, kind in OPERATIONS.items() if word in event.key), "everything else")
        times[name] = times.get(name, 0.0) + event.self_cpu_time_total
    total = sum(times.values())
    return ", ".join(f"{name} {spent / total:.0%}" for name, spent in sorted(times.items(), key=lambda pair: -pair[1]))


@contextmanager
def record_kernels() -> Iterator[None]:
    """Make the C kernels, which are no torch operations, visible to the profiler."""
    from torch.profiler import record_function

    from saccade.kernels.cpu import step_attention, vnni

    def record_calls(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any, **named: Any) -> Any:
            with record_function(name):
                return work(*given, **named)

        return run

    places = ((vnni.VnniLinear, "forward", "product in C"), (step_attention, "_attend_in_c", "attention in C"))
    plain = [getattr(owner, function) for owner, function, _ in places]
    for (owner, function, name), work in zip(places, plain, strict=True):
        setattr(owner, function, record_calls(name, work))
    try:
        yield
    finally:
        for (owner, function, _), work in zip(places, plain, strict=True):
            setattr(owner, function, work)


OPERATIONS = {
    "product in C": "products with weights",
    "attention in C": "attention of a step",
    "linear_pointwise": "products with weights",
    "qlinear": "products with weights",
    "bmm": "attention to memory and to more than 16 tokens",
    "attention": "attention of the reader",
    "log_softmax": "softmax over the vocabulary",
    "aten::addcmul": "rounding to int8 and back",
    "aten::mul": "self-attention of the writer",
    "aten::sum": "self-attention of the writer",
    "aten::abs": "rounding to int8 and back",
    "aten::amax": "rounding to int8 and back",
    "aten::_to_copy": "rounding to int8 and back",
    "layer_norm": "norms",
    "index": "following beams",
    "copy_": "copies",
}


if __name__ == "__main__":
    main()
