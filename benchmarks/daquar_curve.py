"""What a picture adds to a question on DAQUAR: a learning curve over the number of training pictures.

    python benchmarks/daquar_curve.py --data FOLDER [--pictures 70 140 280 540] [--seeds 1 2 3] [--steps 600]
        [--run FOLDER] [--out FOLDER] [--name NAME] [--picture FILE.png] [KEY=VALUE ...]

FOLDER holds `daquar/train_images.tar.gz` and `daquar/train.jsonl.gz`; the test is not read. Recipe and settings are
those of `saccade reproduce daquar` and of `daquar-question-alone`, the same model without the picture. Every seed holds
out another fifth of the pictures for scoring, and another tenth, on which each model chooses the best of its ten
checkpoints; of the other pictures so many are learned from as --pictures says, evenly spread. Held-out pictures are
blocks of eight consecutive ones, since neighbouring pictures often show the same room. The share of right answers is
also measured for questions about colours, about numbers and about everything else. With `--run FOLDER` finished runs
are scored and not trained again, so that several processes can train some seeds each, and a last one writes the
results.
"""

import argparse
import json
import re
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from packs import add_schedule, build_row, read_training_cost
from results import save

import saccade
from saccade.config.load import load, override
from saccade.config.schema import Corpus
from saccade.predict.predictors.predictor import Predictor
from saccade.reproduce.prepare import read_room_questions
from saccade.reproduce.spec import find_specs
from saccade.runs import CARD
from saccade.train.api import replace_data

NAME = "daquar_curve"
SEEN, ALONE = "with the picture", "question alone"
RESULTS = {SEEN: "daquar", ALONE: "daquar-question-alone"}
JOIN = "reader.join."  # settings of what reads the picture
BLOCK, FOLDS = 8, 10  # consecutive pictures that stay together, and parts of the data
AIM = 3.0  # points by which a picture should help
WARMUP = 0.08
TOPICS = ("colours", "numbers", "the rest")
Row = dict[str, str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder of all data sets")
    parser.add_argument("--pictures", type=int, nargs="+", default=[70, 140, 280, 540], help="to learn from")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--run", type=Path, help="a folder in which runs are kept")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--name", default=NAME, help="of the results file, for other settings")
    parser.add_argument("--picture", type=Path, help="where the curve is plotted; default beside the results")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    args = parser.parse_intermixed_args()
    begin, rows = time.perf_counter(), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as folder:
        for seed in args.seeds:
            for count in args.pictures:
                for form in RESULTS:
                    rows += measure(form, count, seed, args, args.run or Path(folder))
                print(f"seed {seed}, {count} pictures", flush=True)
    means = summarize(rows, args.pictures)
    for row in means:
        print(f"{row['what']:70} {row['value']:6.2f} ± {row.get('spread', 0):.2f} {row['unit']}")
    notes = (
        "Scored on held-out pictures of the training data, another fifth of them for each seed; the test was not read. "
        f"Settings beside those of the recorded results: {' '.join([f'train.steps={args.steps}', *args.settings])}."
    )
    notes += " Runs were kept, so that the minutes in all may be those of scoring." if args.run else ""
    minutes = (time.perf_counter() - begin) / 60
    save(args.name, [*means, *rows], minutes=minutes, folder=args.out, notes=notes)
    print(plot_curve(means, args.pictures, args.picture or args.out / f"{args.name}.png"))


def measure(form: str, count: int, seed: int, args: argparse.Namespace, runs: Path) -> list[dict[str, Any]]:
    """Train one form on so many pictures, unless its run is there, and score held-out and learned questions."""
    parts = split_rows(list(read_room_questions(args.data / "daquar/train.jsonl.gz")), seed, count)
    folder = runs / f"{count}-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    for name, some in parts.items():
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in some), encoding="utf-8")
    images = str(args.data / "daquar/train_images.tar.gz")
    files = {name: [images, str(folder / f"{name}.jsonl")] for name in parts}
    run = folder / RESULTS[form]
    if (run / CARD).exists():
        model = saccade.load(run)
    else:
        [spec] = find_specs([RESULTS[form]])
        more = [word for word in args.settings if form == SEEN or not word.startswith(JOIN)]
        recipe = override(load(spec.recipe), [*spec.settings, "train.metric=accuracy", f"train.seed={seed}", *more])
        recipe = replace_data(recipe, data=[files["learn"]], valid=[files["choose"]])
        model = saccade.train(override(recipe, add_schedule(recipe, args.steps, WARMUP)), run=run)
    what = f"{count} pictures, {form}"
    right = find_right(model, files["score"], parts["score"])
    topics = [get_topic(row["question"]) for row in parts["score"]]
    by_topic = {topic: [ok for ok, of in zip(right, topics, strict=True) if of == topic] for topic in TOPICS}
    scored = {what: right, **{f"{what}, {topic}": some for topic, some in by_topic.items()}}
    return [
        *(build_row(name, compute_share(some), "% right", seed, questions=len(some)) for name, some in scored.items()),
        *read_training_cost(what, run, seed=seed),
    ]


def split_rows(rows: list[Row], seed: int, count: int) -> dict[str, list[Row]]:
    """Return questions to learn from, to choose a checkpoint with, and to score, each about other pictures."""
    scored = {(2 * seed) % FOLDS, (2 * seed + 1) % FOLDS}
    chosen = {(2 * seed + 2) % FOLDS}
    folds = [get_number(row) // BLOCK % FOLDS for row in rows]
    others = [row for row, of in zip(rows, folds, strict=True) if of not in scored | chosen]
    return {
        "learn": keep_pictures(others, count),
        "choose": [row for row, of in zip(rows, folds, strict=True) if of in chosen],
        "score": [row for row, of in zip(rows, folds, strict=True) if of in scored],
    }


def keep_pictures(rows: list[Row], count: int) -> list[Row]:
    """Return the rows of `count` pictures, evenly spread: neighbouring pictures often show the same room."""
    names = [row["image"] for row in sorted({row["image"]: row for row in rows}.values(), key=get_number)]
    if count > len(names):
        raise SystemExit(f"error: --pictures: {len(names)} pictures can be learned from, got {count}")
    kept = {names[i * len(names) // count] for i in range(count)}
    return [row for row in rows if row["image"] in kept]


def get_number(row: Row) -> int:
    return int(re.sub(r"\D", "", row["image"]))


def get_topic(question: str) -> str:
    if re.search(r"\bcolou?rs?\b", question):
        return TOPICS[0]
    return TOPICS[1] if question.startswith("how many") else TOPICS[2]


def find_right(model: Predictor, files: Sequence[str], rows: Sequence[Row]) -> list[bool]:
    """Return for each question whether the whole answer is right."""
    task, recipe = model.recipe.task, model.recipe
    found = task.evaluate_pairs(model, task.read_pairs(recipe, [Corpus(files=tuple(files))]), metrics=["accuracy"])
    right = [answer == row["answer"] for answer, row in zip(found.hypotheses, rows, strict=True)]
    assert abs(compute_share(right) - found.scores["accuracy"].value) < 1e-6
    return right


def compute_share(right: Iterable[bool]) -> float:
    values = list(right)
    return 100 * sum(values) / len(values) if values else 0.0


def summarize(rows: Sequence[dict[str, Any]], counts: Iterable[int]) -> list[dict[str, Any]]:
    """Return mean and spread over the seeds of all shares, and of picture minus question alone seed by seed."""
    values: dict[str, list[float]] = {}
    for row in rows:
        if row["unit"] == "% right":
            values.setdefault(row["what"], []).append(row["value"])
    found = [describe(what, some, "% right") for what, some in values.items()]
    for count in counts:
        for end in ("", *(f", {topic}" for topic in TOPICS)):
            pairs = zip(*(values[f"{count} pictures, {form}{end}"] for form in RESULTS), strict=True)
            gaps = [seen - alone for seen, alone in pairs]
            found.append(describe(f"{count} pictures, picture minus question alone{end}", gaps, "points"))
    return found


def describe(what: str, values: Sequence[float], unit: str) -> dict[str, Any]:
    spread = {"spread": round(stdev(values), 2)} if len(values) > 1 else {}
    return {"what": f"{what}, mean of {len(values)} seeds", "value": round(fmean(values), 2), "unit": unit, **spread}


def plot_curve(means: Sequence[dict[str, Any]], counts: Sequence[int], path: Path) -> Path:
    """Plot right answers, and their difference, over the number of pictures; bars are standard deviations."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    found = {row["what"].rsplit(", mean of ", 1)[0]: row for row in means}
    curves = ((left, SEEN, "#0969da"), (left, ALONE, "#9a6700"), (right, f"picture minus {ALONE}", "#1a7f37"))
    for axes, form, color in curves:
        points = [found[f"{count} pictures, {form}"] for count in counts]
        values, bars = [point["value"] for point in points], [point.get("spread", 0.0) for point in points]
        axes.errorbar(counts, values, bars, marker="o", capsize=3, label=form, color=color)
    right.axhline(AIM, color="#57606a", linestyle="--", label=f"{AIM:g} points")
    right.axhline(0, color="#57606a", linewidth=0.8)
    left.set(ylabel="% right", ylim=(0, None))
    right.set(ylabel="points")
    right.margins(y=0.25)  # for the legend
    for axes in (left, right):
        axes.set(xscale="log", xlabel="training pictures")
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(loc="lower left")
    figure.savefig(path, dpi=120)
    return path


if __name__ == "__main__":
    main()
