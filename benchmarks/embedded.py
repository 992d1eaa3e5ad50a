"""Systems on their embedded data, each beside the forms of it that lack its point, with several seeds.

    python benchmarks/embedded.py captions [--seeds 1 2 3] [--out FOLDER]      # soft, hard and no attention
    python benchmarks/embedded.py questions [--seeds 1 2 3] [--out FOLDER]     # with the picture and without
    python benchmarks/embedded.py captions --only "hard attention, 4 samples"  # one of its forms; nothing is saved
    python benchmarks/embedded.py captions --tiny

With `--run FOLDER` runs are kept there, and those that are finished are scored and not trained again, so that seeds and
forms can be trained by several processes and the results written by a last one.

All forms are the recipe's `[tiny]` table with some settings, for which one core takes two to six minutes. The best
checkpoint is chosen on the first held-out examples, as `[tiny]` says; scores are those of the held-out examples behind
them, up to the thousandth. Settings were chosen with seed 11 on the first ones, before these were scored.
"""

import argparse
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packs import build_row, read_training_cost, summarize_seeds
from results import save

import saccade
from saccade.runs import WEIGHTS

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
    if (run / WEIGHTS).exists():
        model = saccade.load(run)
    else:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("comparison", choices=[*COMPARISONS])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--only", help="one of the forms; nothing is saved then")
    parser.add_argument("--run", type=Path, help="a folder in which runs are kept")
    parser.add_argument("--tiny", action="store_true", help="a few steps, to test the script")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    args = parser.parse_args()
    comparison, begin, rows = COMPARISONS[args.comparison], time.perf_counter(), list[dict[str, Any]]()
    if args.only not in (None, *comparison.forms):
        parser.error(f"--only is one of: {'; '.join(comparison.forms)}; got {args.only}")
    with tempfile.TemporaryDirectory() as folder:
        for seed in args.seeds:
            for number, what in enumerate(comparison.forms):
                if args.only in (None, what):
                    run = (args.run or Path(folder)) / f"{args.comparison}-{number}-{seed}"
                    form = comparison.forms[what]
                    rows += measure_form(what, form, run, metric=comparison.metric, seed=seed, tiny=args.tiny)
                    print(f"{what}, seed {seed}: {rows[-4]['value']}", flush=True)
    if args.only is None:
        notes = f"Held-out examples up to {HELD_OUT:,} behind those that chose the checkpoint. The cores were shared."
        means = summarize_seeds(rows, f": {comparison.metric}")
        minutes = (time.perf_counter() - begin) / 60
        save(f"embedded_{args.comparison}", [*means, *rows], minutes=minutes, folder=args.out, notes=notes)


if __name__ == "__main__":
    main()
