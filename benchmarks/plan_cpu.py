"""Compare the times that `saccade plan` measures on the CPU of this machine with trainings.

    python benchmarks/plan_cpu.py [--out benchmarks/results] [--steps 40]

Each case is planned, and then trained for some steps without validation on the data of the recipe or, for multi30k, on
generated text of its size; the time of a step is the mean of the second half. The load of the machine is recorded:
other programs make both times longer, and not alike.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from results import save
from train_end_to_end import QUIET, generate

from saccade.plan import plan
from saccade.train import train

CASES = {
    "dates --tiny": ("dates", True, 1),
    "gpt2 --tiny": ("gpt2", True, 1),
    "classify --tiny": ("classify", True, 1),
    "vit --tiny": ("vit", True, 1),
    "multi30k, batches of 1,024 tokens": ("multi30k", False, 3),
}
PAIRS, WORDS = 3_000, 3_900


def measure_step(name: str, folder: Path, *, tiny: bool, steps: int, changes: list[str]) -> float:
    """Train some steps; return the seconds of a step in the second half of them."""
    every = max(1, steps // 4)
    quiet = [*QUIET, "train.minutes=none", f"train.steps={steps}", f"train.report_every={every}"]
    data = None if tiny else [generate(folder, pairs=PAIRS, words=WORDS)]
    overrides = [*changes, *([] if tiny else ["tokenizer.kind=words", "train.metric=loss"]), *quiet]
    train(name, data=data, overrides=overrides, tiny=tiny, run=str(folder / "run"))
    lines = map(json.loads, (folder / "run" / "metrics.jsonl").read_text().splitlines())
    reports = [line for line in lines if line["event"] == "train"]
    first, last = reports[len(reports) // 2 - 1], reports[-1]
    return float((last["seconds"] - first["seconds"]) / (last["step"] - first["step"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--tiny", action="store_true", help="one case, to test the script")
    args = parser.parse_args()
    begin, rows = time.perf_counter(), list[dict[str, Any]]()
    for what, (name, tiny, share) in list(CASES.items())[: 1 if args.tiny else None]:
        changes = [] if tiny else ["train.batch_tokens=1024"]
        planning = time.perf_counter()
        made = plan(name, tiny=tiny, gpu="cpu", overrides=changes)
        planning = time.perf_counter() - planning
        assert made.cpu is not None
        with tempfile.TemporaryDirectory() as folder:
            value = measure_step(name, Path(folder), tiny=tiny, steps=max(8, args.steps // share), changes=changes)
        predicted = made.cpu.step_seconds
        rows.append({
            "what": f"{what}: a step, planned in {planning:.0f} s", "value": round(value, 4), "unit": "s",
            "peer": "predicted by saccade plan", "peer_value": round(predicted, 4),
            "ratio": round(value / predicted, 3), "detail": True,
        })  # fmt: skip
        print(f"{what:<36} {value:>8.3f} s  predicted {predicted:.3f} s", flush=True)
    load = os.getloadavg()[1]
    notes = (
        f"Mean load of the machine {load:.1f} on {os.cpu_count()} cores, with one thread for each of these programs."
    )
    save("plan_cpu", rows, minutes=(time.perf_counter() - begin) / 60, folder=args.out, notes=notes)


if __name__ == "__main__":
    main()
