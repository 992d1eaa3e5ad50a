"""Systems on their embedded data, each beside the forms of it that lack its point, with several seeds.

    python benchmarks/embedded.py captions [--seeds 1 2 3] [--out FOLDER]     # soft, hard and no attention
    python benchmarks/embedded.py questions [--seeds 1 2 3] [--out FOLDER]    # with the picture and without
    python benchmarks/embedded.py captions --forms "soft attention" "hard attention"
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
from saccade.runs import CARD

HELD_OUT = 1000  # examples of the embedded held-out data
FEW = [
    "train.steps=4",
    "train.valid_every=4",
    "train.save_every=4",
    "data.train.0.examples=40",
    "train.report_every=2",
    "data.valid.0.examples=4",
]


@dataclass(frozen=True)
class Form:
    """A recipe with settings; `start` names another form whose run with the same seed initializes it."""

    recipe: str
    settings: Sequence[str] = ()
    start: str = ""


@dataclass(frozen=True)
class Comparison:
    """Forms of systems on one embedded data set, by name."""

    metric: str
    forms: Mapping[str, Form]


LONG = ("train.steps=2000", "train.valid_every=500", "train.save_every=500")
SECOND = ("train.steps=400", "train.valid_every=100", "train.save_every=100", "train.schedule.lr=0.001")
HARD = "writer.stack.hard_attention=true"
FOUR, ONE = "objectives=[{kind='reinforce', samples=4, reward_weight=1.0}]", "objectives=[{kind='reinforce'}]"
NONE = ("writer.stack.attention=none", "writer.stack.context_gate=false", "objectives.0.coverage=0")
TELL, ASK = "show-attend-tell", "ask-attend-answer"
COMPARISONS = {
    "captions": Comparison(
        "accuracy",
        {
            "soft attention": Form(TELL, LONG),
            "hard attention": Form(TELL, (*SECOND, HARD, FOUR), start="soft attention"),
            "hard attention, one sample": Form(TELL, (*SECOND, HARD, ONE), start="soft attention"),
            "hard attention from the beginning": Form(TELL, (*LONG, HARD, FOUR)),
            "hard attention from the beginning, one sample": Form(TELL, (*LONG, HARD, ONE)),
            "no attention": Form(TELL, (*LONG, *NONE)),
        },
    ),
    "questions": Comparison(
        "accuracy",
        {
            "show-ask-attend-answer": Form(f"show-{ASK}"),
            ASK: Form(ASK),
            f"{ASK}, question as in the paper": Form(
                ASK, ("reader.join.question_length=40", "reader.question.stack.dim=128")
            ),
            "question alone": Form(f"show-{ASK}", ("reader.join={kind='question'}",)),
        },
    ),
}


def measure_form(what: str, comparison: Comparison, runs: Path, *, seed: int, tiny: bool) -> list[dict[str, Any]]:
    """Train a form, unless its run is there, and score held-out examples that did not choose its checkpoint."""
    form, metric, run = comparison.forms[what], comparison.metric, runs / name_run(what, seed)
    if (run / CARD).exists():
        model = saccade.load(run)
    else:
        settings = [*form.settings, *(FEW if tiny else []), f"train.seed={seed}"]
        if form.start:
            settings += [f"{part}.init={runs / name_run(form.start, seed)}" for part in ("reader", "writer")]
        model = saccade.train(form.recipe, tiny=True, run=run, overrides=settings)
    recipe = model.recipe
    [valid] = recipe.data.valid_corpora
    test = valid.model_copy(update={"examples": 8 if tiny else HELD_OUT})
    pairs = recipe.task.read_pairs(recipe, [test])[valid.examples :]
    score = recipe.task.evaluate_pairs(model, pairs, metrics=(metric,)).scores[metric]
    return [
        build_row(f"{what}: {metric}", score.value, "%", seed, signature=score.signature, examples=len(pairs)),
        *read_training_cost(what, run, seed=seed),
    ]


def name_run(what: str, seed: int) -> str:
    return f"{what.replace(', ', '-').replace(' ', '-')}-{seed}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("comparison", choices=[*COMPARISONS])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--forms", nargs="+", help="some of the forms; without it, all")
    parser.add_argument("--run", type=Path, help="a folder in which runs are kept")
    parser.add_argument("--tiny", action="store_true", help="a few steps, to test the script")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    args = parser.parse_args()
    comparison, begin, rows = COMPARISONS[args.comparison], time.perf_counter(), list[dict[str, Any]]()
    forms = args.forms or [*comparison.forms]
    if unknown := [form for form in forms if form not in comparison.forms]:
        parser.error(f"--forms are some of: {'; '.join(comparison.forms)}; got {unknown[0]}")
    with tempfile.TemporaryDirectory() as folder:
        for seed in args.seeds:
            for what in forms:
                rows += measure_form(what, comparison, args.run or Path(folder), seed=seed, tiny=args.tiny)
                print(f"{what}, seed {seed}: {rows[-4]['value']}", flush=True)
    notes = f"Held-out examples up to {HELD_OUT:,} behind those that chose the checkpoint. The cores were shared."
    notes += " Runs were kept, so that the minutes in all may be those of scoring." if args.run else ""
    means = summarize_seeds(rows, f": {comparison.metric}")
    minutes = (time.perf_counter() - begin) / 60
    save(f"embedded_{args.comparison}", [*means, *rows], minutes=minutes, folder=args.out, notes=notes)


if __name__ == "__main__":
    main()
