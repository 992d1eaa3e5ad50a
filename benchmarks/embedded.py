"""Systems on their embedded data, each beside the forms of it that lack its point, with several seeds.

    python benchmarks/embedded.py captions [--seeds 1 2 3] [--out FOLDER]      # soft, hard and no attention
    python benchmarks/embedded.py questions [--seeds 1 2 3] [--out FOLDER]     # with the picture and without
    python benchmarks/embedded.py captions --only "hard attention, 4 samples"  # one of its forms; added to the results
    python benchmarks/embedded.py captions --tiny

All forms are the recipe's `[tiny]` table with some settings, for which one core takes two to six minutes. The best
checkpoint is chosen on the first held-out examples, as `[tiny]` says; scores are those of the held-out examples behind
them, up to the thousandth. Settings were chosen with seed 11 on the first ones, before these were scored.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packs import build_row, read_training_cost, summarize_seeds
from results import save

import saccade

HELD_OUT = 1000  # examples of the embedded held-out data
FEW = ["train.steps=4", "train.valid_every=4", "train.save_every=4", "data.train.0.examples=40", "train.report_every=2"]
HARD = ["writer.stack.hard_attention=true"]


@dataclass(frozen=True)
class Comparison:
    """Forms of systems on one embedded data set, by name: the recipe and its settings."""

    metric: str
    forms: Mapping[str, tuple[str, Sequence[str]]]


STEPS = ("train.steps=2000", "train.valid_every=500", "train.save_every=500")
COMPARISONS = {
    "captions": Comparison(
        "accuracy",
        {
            "soft attention": ("show-attend-tell", STEPS),
            "hard attention, 4 samples": (
                "show-attend-tell",
                (*STEPS, *HARD, "objectives=[{kind='reinforce', samples=4, reward_weight=1.0}]"),
            ),
            "hard attention, 1 sample": ("show-attend-tell", (*STEPS, *HARD, "objectives=[{kind='reinforce'}]")),
            "no attention": (
                "show-attend-tell",
                (
                    *STEPS,
                    "writer.stack.attention=none",
                    "writer.stack.context_gate=false",
                    "objectives.0.coverage=0",
                ),
            ),
        },
    ),
    "questions": Comparison(
        "accuracy",
        {
            "show-ask-attend-answer": ("show-ask-attend-answer", ()),
            "ask-attend-answer": ("ask-attend-answer", ()),
            "ask-attend-answer, question as in the paper": (
                "ask-attend-answer",
                ("reader.join.question_length=40", "reader.question.stack.dim=128"),
            ),
            "question alone": ("show-ask-attend-answer", ("reader.join={kind='question'}",)),
        },
    ),
}


def measure_form(
    what: str, form: tuple[str, Sequence[str]], run: Path, *, metric: str, seed: int, tiny: bool
) -> list[dict[str, Any]]:
    """Train a form once, and score held-out examples that did not choose its checkpoint."""
    name, settings = form
    few = [*FEW, "data.valid.0.examples=4"] if tiny else []
    model = saccade.train(name, tiny=True, run=run, overrides=[*settings, *few, f"train.seed={seed}"])
    recipe = model.recipe
    [valid] = recipe.data.valid_corpora
    test = valid.model_copy(update={"examples": 8 if tiny else HELD_OUT})
    pairs = recipe.task.read_pairs(recipe, [test])[valid.examples :]
    score = recipe.task.evaluate_pairs(model, pairs, metrics=(metric,)).scores[metric]
    return [
        build_row(f"{what}: {metric}", score.value, "%", seed, signature=score.signature, examples=len(pairs)),
        *read_training_cost(what, run, seed=seed),
    ]


def read_measured(path: Path) -> list[dict[str, Any]]:
    """Return the rows of single seeds of an earlier results file; none without one."""
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    return [row for row in rows if "seed" in row]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("comparison", choices=[*COMPARISONS])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--only", help="one of the forms; those of an earlier call keep their rows")
    parser.add_argument("--tiny", action="store_true", help="a few steps, to test the script")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    args = parser.parse_args()
    comparison, begin = COMPARISONS[args.comparison], time.perf_counter()
    if args.only not in (None, *comparison.forms):
        parser.error(f"--only is one of: {'; '.join(comparison.forms)}; got {args.only}")
    chosen = [args.only] if args.only else [*comparison.forms]
    name = f"embedded_{args.comparison}"
    rows = [
        row
        for row in read_measured(args.out / f"{name}.json")
        if args.only and not (row["seed"] in args.seeds and row["what"].rpartition(": ")[0] == args.only)
    ]
    with tempfile.TemporaryDirectory() as folder:
        for seed in args.seeds:
            for number, what in enumerate(chosen):
                run, form = Path(folder, f"{number}-{seed}"), comparison.forms[what]
                rows += measure_form(what, form, run, metric=comparison.metric, seed=seed, tiny=args.tiny)
                print(f"{what}, seed {seed}: {rows[-4]['value']}", flush=True)
    notes = f"Held-out examples up to {HELD_OUT:,} behind those that chose the checkpoint. Minutes are of shared cores."
    means = summarize_seeds(rows, f": {comparison.metric}")
    save(name, [*means, *rows], minutes=(time.perf_counter() - begin) / 60, folder=args.out, notes=notes)


if __name__ == "__main__":
    main()
