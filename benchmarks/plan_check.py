"""Compare the predictions of `saccade plan` with measurements: peak memory and time of a training step.

    python benchmarks/plan_check.py predict [--out benchmarks/results]     on any machine, before measuring
    python benchmarks/plan_check.py measure [--out benchmarks/results]     on one H200; needs what `predict` wrote

`predict` writes plan_predictions.json. `measure` trains some hundred steps on generated text of mixed lengths (that
of train_end_to_end.py) and writes plan_check.json: measured and predicted side by side. Memory is what the allocator
gave out at most; the time of a step is the mean of the second half of the training, everything included.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from results import save
from train_end_to_end import QUIET, generate, stacks

from saccade.config.load import load
from saccade.model.run import pick_device
from saccade.plan.estimate import PlanRequest, make_plan
from saccade.train import train

PAIRS = 60_000
SPECIAL = 4  # pieces of a vocabulary that are no words
COMMON = ["tokenizer.kind=words", "train.precision=bf16"]


class Case(NamedTuple):
    changes: list[str]
    full: float  # real tokens of a side in a mean batch, over train.batch_tokens
    sides: int = 2


CASES = {
    "transformer": Case([*COMMON, "train.batch_tokens=25000"], full=0.931),  # the mean of 60 batches
    "gpt2": Case(
        [*COMMON, "train.batch_tokens=32768", "train.accumulate=1"], full=1.0, sides=1
    ),  # rows are cut to size
    "bert": Case(
        [*COMMON, "train.batch_tokens=32768", "train.accumulate=1", "data.documents=file"], full=0.88, sides=1
    ),  # the mean of 400 batches: many second parts are another row's, and shorter
}
TINY = ["train.batch_tokens=512", "train.precision=fp32", "data.max_length=96"]
GIGA, MILLI = 1e-9, 1e3
NOTES = (
    "Predicted by `saccade plan` for one H200, bf16, without torch.compile, before anything was measured. Memory is "
    "that of a full batch; a step of transformer has 0.931 times train.batch_tokens real tokens on each side, one "
    "of gpt2 32,768 in rows of 1024, one of bert 0.88 times 32,768 in rows of 512, without accumulation."
)


def predict_case(name: str) -> list[dict[str, Any]]:
    """Return the predicted peak memory and step time."""
    case = CASES[name]
    plan = make_plan(load(name, overrides=case.changes), PlanRequest(gpu="H200"))
    peak, step = plan.memory.get_batch_peak(plan.batch_tokens), plan.step_seconds
    assert peak is not None and step is not None
    return [
        {"what": f"{name}: peak memory", "value": round(GIGA * peak, 3), "unit": "GB", "detail": True},
        {"what": f"{name}: a training step", "value": round(MILLI * case.full * step, 2), "unit": "ms", "detail": True},
    ]


def measure_case(name: str, folder: Path, args: argparse.Namespace) -> list[float | None]:
    """Measure peak memory (on a GPU only) and step time of a real training."""
    folder.mkdir(parents=True, exist_ok=True)
    case, vocabulary = CASES[name], load(name).tokenizer.size
    words = 100 if args.tiny else vocabulary - SPECIAL
    data = generate(folder, pairs=500 if args.tiny else PAIRS, words=words)[: case.sides]
    steps = [f"train.steps={args.steps}", f"train.report_every={args.steps // 10}"]
    only = {"gpt2": "writer", "bert": "reader"}.get(name, "")
    small = [word for word in stacks(layers=1, dim=32, heads=2, ff=64) if word.startswith(only)]
    changes = [*case.changes, *QUIET, *steps, *([*small, *TINY] if args.tiny else [])]
    cuda = pick_device("auto").type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    train(name, data=[data], overrides=changes, run=str(folder / "run"))
    peak = GIGA * torch.cuda.max_memory_allocated() if cuda else None
    lines = map(json.loads, (folder / "run" / "metrics.jsonl").read_text().splitlines())
    reports = [line for line in lines if line["event"] == "train"]
    first, last = reports[len(reports) // 2], reports[-1]
    return [peak, MILLI * (last["seconds"] - first["seconds"]) / (last["step"] - first["step"])]


def compare_cases(rows: list[dict[str, Any]], values: list[float | None]) -> list[dict[str, Any]]:
    """Return measured values with the predictions as peer."""
    return [
        {
            **row,
            "value": value and round(value, 3),
            "peer": "predicted by saccade plan",
            "peer_value": row["value"],
            "ratio": value and round(value / row["value"], 3),
        }
        for row, value in zip(rows, values, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", choices=["predict", "measure"])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--tiny", action="store_true", help="toy sizes, to test the script")
    args = parser.parse_args()
    begin = time.perf_counter()
    if args.job == "predict":
        rows = [row for name in CASES for row in predict_case(name)]
        save("plan_predictions", rows, minutes=(time.perf_counter() - begin) / 60, folder=args.out, notes=NOTES)
    else:
        said = json.loads((args.out / "plan_predictions.json").read_text())["rows"]
        rows = []
        for name in CASES:
            with tempfile.TemporaryDirectory() as folder:
                values = measure_case(name, Path(folder), args)
            rows += compare_cases([row for row in said if row["what"].startswith(f"{name}:")], values)
            save("plan_check", rows, minutes=(time.perf_counter() - begin) / 60, folder=args.out)
    for row in rows:
        print(f"{row['what']:<32} {row['value'] or 0:>10,.3f} {row['unit']:<3} {row.get('peer_value', '')}")


if __name__ == "__main__":
    main()
