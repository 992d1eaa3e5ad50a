"""Learning curves of a pretrained and a randomly initialized classifier over the number of labelled examples.

    python benchmarks/learning_curves.py --init RUN --data FILE --valid FILE [--shares 0.01 0.1 1] [--seeds 1 2 3]
        [--steps 1000] [--recipe classify] [--metric accuracy] [--out FOLDER] [KEY=VALUE ...]
    python benchmarks/learning_curves.py --tiny

For each share and seed the same rows are drawn, and the recipe is trained on them twice: from the weights of RUN, and
from fresh ones. Everything else is the same: tokenizer, form of the model, steps, schedule, the choice of the best step
on the validation data, on which both are scored. KEY=VALUE are settings of both. --tiny pretrains a small language
model on embedded sentences, and lets both tell whether a verb agrees with its subject. Beside the JSON file, a picture.
"""

import argparse
import json
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from results import save

import saccade
from saccade.config.load import load, override
from saccade.config.schema import Corpus, Recipe, Tokenizer
from saccade.data.sources.labelled import read_labelled
from saccade.data.tokenization.tokenizer import SHARED_FILE, SOURCE_FILE
from saccade.score.labels import evaluate_labels
from saccade.score.pairs import read_labelled_pairs
from saccade.train.transfer.adopt import adopt_run

NAME = "learning_curves"
STARTS = ("pretrained", "fresh")
TINY = {
    "data": "embedded:judgements", "valid": "embedded:judgements-heldout", "steps": 120, "shares": [0.01, 0.1, 1.0],
    "settings": ["train.batch_tokens=1024", "train.schedule={kind='linear', lr=0.002, warmup_steps=12}"],
}  # fmt: skip
Curve = dict[str, list[tuple[int, float]]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--init", type=Path)
    parser.add_argument("--data")
    parser.add_argument("--valid")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.01, 0.1, 1.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--recipe", default="classify")
    parser.add_argument("--metric", default="accuracy")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    args = parser.parse_args()
    if not args.tiny and None in (args.init, args.data, args.valid):
        parser.error("give --init RUN, --data FILE and --valid FILE, or --tiny")
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        if args.tiny:
            vars(args).update(TINY, init=pretrain(Path(folder)), settings=[*TINY["settings"], *args.settings])
        curve = measure_curves(args, Path(folder))
    rows = as_rows(curve, args.recipe, args.metric)
    for row in rows:
        print(f"{row['what']:70} {row['value']:.2f}")
    save(NAME, rows, minutes=(time.perf_counter() - begin) / 60, folder=args.out)
    print(plot_curves(curve, args.metric, args.out / f"{NAME}.png"))


def pretrain(folder: Path) -> Path:
    """Pretrain a small language model on embedded sentences."""
    saccade.train("shakespeare", tiny=True, run=folder / "language", overrides=["tokenizer.kind=words"])
    return folder / "language"


def measure_curves(args: argparse.Namespace, folder: Path) -> Curve:
    """Return for each initialization the number of labels and the mean score over the seeds."""
    recipe = with_steps(adopt_run(load(args.recipe), str(args.init)), args)
    kind = recipe.writer.kind
    rows = [row[1:] for row in read_labelled(Corpus(files=(args.data,)), kind=kind)]
    pairs = read_labelled_pairs([Corpus(files=(args.valid,))], kind=kind)
    curve: Curve = {start: [] for start in STARTS}
    for share in args.shares:
        count = max(1, round(share * len(rows)))
        found: dict[str, list[float]] = {start: [] for start in STARTS}
        for seed in args.seeds:
            data = write_rows(random.Random(seed).sample(rows, count), folder / f"{count}-{seed}.jsonl")
            for start in STARTS:
                made = build_recipe(recipe, start, args.init, data=data, valid=args.valid, seed=seed)
                run = saccade.train(made, run=folder / f"{start}-{count}-{seed}")
                found[start].append(evaluate_labels(run, pairs).scores[args.metric].value)
        for start in STARTS:
            curve[start].append((count, fmean(found[start])))
    return curve


def with_steps(recipe: Recipe, args: argparse.Namespace) -> Recipe:
    """Set a fixed number of updates, independent of the data size, with five validations."""
    every = max(1, args.steps // 5)
    same = [f"train.steps={args.steps}", "train.epochs=none", f"train.metric={args.metric}"]
    return override(recipe, [*same, f"train.valid_every={every}", f"train.save_every={every}", *args.settings])


def build_recipe(recipe: Recipe, start: str, run: Path, *, data: Path, valid: str, seed: int) -> Recipe:
    """Build the recipe with pretrained or random weights; tokenizer and architecture are the run's in both cases."""
    files = (str(run / (SOURCE_FILE if (run / SOURCE_FILE).exists() else SHARED_FILE)),)
    changes = {
        "init": str(run) if start == "pretrained" else "",
        "tokenizer": Tokenizer(kind="file", files=files),
        "data": recipe.data.model_copy(
            update={"train": (Corpus(files=(str(data),)),), "valid": (Corpus(files=(valid,)),)}
        ),
        "train": recipe.train.model_copy(update={"seed": seed}),
    }
    return recipe.model_copy(update=changes)


def write_rows(rows: Sequence[Sequence[str]], path: Path) -> Path:
    names = ("text", "label") if len(rows[0]) == 2 else ("text_a", "text_b", "label")
    lines = [json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False) for row in rows]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def as_rows(curve: Curve, recipe: str, metric: str) -> list[dict[str, object]]:
    return [
        {"what": f"`{recipe}`, {count:,} labels, {start}: {metric}", "value": round(value, 2), "unit": "%"}
        for start, points in curve.items()
        for count, value in points
    ]


def plot_curves(curve: Curve, metric: str, path: Path) -> Path:
    """Plot the score over the number of labels."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for start, points in curve.items():
        axes.plot(*zip(*points, strict=True), marker="o", label=start)
    axes.set(xscale="log", xlabel="labels to learn from", ylabel=f"{metric} in %")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)
    return path


if __name__ == "__main__":
    main()
