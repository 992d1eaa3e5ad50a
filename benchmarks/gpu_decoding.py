"""Decoding speed on one GPU: GPT-2 124M greedily, Transformer-base with a beam of 4, ours and the best peers.

    python benchmarks/gpu_decoding.py --suite FOLDER [--out benchmarks/results] [--tiny] [--ours] [--profile]

FOLDER holds the suite: `gpu_generate.py` with its modules, which makes the cases, the peers and the timing. `--ours`
leaves the peers out; `--profile` prints the kernels of our steps instead, those that take most time first.
"""

import argparse
import importlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from results import save

OURS = "saccade, CUDA graphs"
PEERS = (
    "HF generate, static cache + compile",
    "hand-written, compile + graph",
    "hand-written, fused attention",
    "HF Marian generate, dynamic cache",
)
NAMES = {  # of the cases
    "gpt2 b1 32+512": "decode GPT-2 124M, batch 1, H200",
    "gpt2 b64 32+512": "decode GPT-2 124M, batch 64, H200",
    "base b64 beam1 30->30": "translate, Transformer-base, greedy, batch 64, H200",
    "base b64 beam4 30->30": "translate, Transformer-base, beam 4, batch 64, H200",
}
NOTES = (
    "bf16, random weights, no early stop; GPT-2: 32 tokens of prompt and 512 new ones; translation: 64 sentences of 30 "
    "tokens to 30 tokens. The floor is the time in which weights, keys and values pass once at the measured bandwidth."
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--tiny", action="store_true", help="toy sizes, to test the script")
    parser.add_argument("--ours", action="store_true", help="without peers")
    parser.add_argument("--cases", default="", help="only cases with one of these words in their names, by commas")
    parser.add_argument("--profile", action="store_true", help="print where our time goes, measure nothing")
    own = parser.parse_args()
    sys.path.insert(0, str(own.suite))
    common, suite = (importlib.import_module(name) for name in ("common", "gpu_generate"))
    plugin = str(Path(__file__).with_name("gpu_contenders_decode.py"))
    wanted = ["--plugin", plugin, "--limit", "100", "--verbose", *["--tiny"] * own.tiny]
    args = common.parser("", seconds=200).parse_args(wanted)
    begin = time.perf_counter()
    common.start(args)
    keep(common, only_ours=own.ours or own.profile)
    bandwidth = common.copy_bandwidth(args.device, 0.05 if own.tiny else 4.0)
    if own.profile:
        common.run_suite = profile_case
        suite.run_suite = profile_case
    suite.run_suite = select_cases(suite.run_suite, own.cases)
    rows = [*suite.gpt(args, bandwidth), *suite.translate(args, bandwidth)]
    if own.profile:
        return
    for row in rows:
        if "->" in row["case"] and "ms/tok" in row and not own.tiny:
            row["floor all"] = translation_floor(bandwidth, beams=4 if "beam4" in row["case"] else 1) * 1e3
            row["of floor"] = row["floor all"] / row["ms/tok"]
    minutes = (time.perf_counter() - begin) / 60
    save("gpu_decoding", results(rows), minutes=minutes, folder=own.out, notes=NOTES)
    common.table(rows, f"decoding (copy {bandwidth / 1e12:.2f} TB/s)")


def select_cases(run_suite: Callable[..., list[dict[str, Any]]], cases: str) -> Callable[..., list[dict[str, Any]]]:
    """Restrict the suite's timing to the selected cases."""

    def run(suite: str, case: Any, *rest: Any, **more: Any) -> list[dict[str, Any]]:
        return run_suite(suite, case, *rest, **more) if any(word in case.label for word in cases.split(",")) else []

    return run


def keep(common: Any, *, only_ours: bool) -> None:
    """Only us and the best peers take part, we first: time may run out."""
    names = (OURS, *(() if only_ours else PEERS))
    for suite, contenders in common.REGISTRY.items():
        chosen = [one for one in contenders if one.name in names]
        common.REGISTRY[suite] = sorted(chosen, key=lambda one: names.index(one.name))


def translation_floor(bandwidth: float, *, beams: int) -> float:
    """Return the seconds in which a step reads its weights, the memory and half of the final key-value cache."""
    dim, layers, ff, vocabulary, sentences, length = 512, 6, 2048, 32000, 64, 30
    weights = layers * (6 * dim**2 + 2 * dim * ff) + vocabulary * dim
    seen = 2 * layers * dim * sentences * (length + beams * length / 2)
    return 2 * (weights + seen) / bandwidth


def results(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return our speed in each case with that of the best peer, and its ratio to the floor."""
    made = []
    for case in dict.fromkeys(row["case"] for row in rows):
        unit = "sent/s" if "->" in case else "tok/s"
        speeds = {row["contender"]: row.get(unit) for row in rows if row["case"] == case}
        ours = speeds.pop(OURS, None)
        row: dict[str, Any] = {"what": NAMES.get(case, case), "value": ours and round(ours), "unit": unit}
        peers = {name: speed for name, speed in speeds.items() if speed}
        if ours and peers:
            peer = max(peers, key=lambda name: peers[name])
            row |= {"peer": peer, "peer_value": round(peers[peer]), "ratio": round(ours / peers[peer], 3)}
        made.append(row)
        floor = [
            row["of floor"] for row in rows if row["case"] == case and row["contender"] == OURS if "of floor" in row
        ]
        if floor:
            made.append({"what": f"{NAMES.get(case, case)}: of the floor", "value": round(floor[0], 3), "unit": "of 1"})
    return made


def profile_case(suite: str, case: Any, args: Any, columns: Any, **_: Any) -> list[dict[str, Any]]:
    """Replace the suite's timing by a profile of one whole output of ours."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    registry = importlib.import_module("common").REGISTRY
    one = registry[suite][0]()
    one.build(case)
    for _ in range(2):
        one.step()
    begin = time.perf_counter()
    one.step()
    seconds = time.perf_counter() - begin
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if args.device == "cuda" else [])]
    with profile(activities=activities) as seen:
        one.step()
        if args.device == "cuda":
            torch.cuda.synchronize()
    order = "self_device_time_total" if args.device == "cuda" else "self_cpu_time_total"
    print(f"\n# {case.label}: {seconds * 1e3:.2f} ms, {seconds / case.new * 1e6:.0f} us for each new token")
    print(seen.key_averages().table(sort_by=order, row_limit=25, max_name_column_width=60))
    return []


if __name__ == "__main__":
    main()
