"""Following instructions on an unseen map: listen-attend-walk on SAIL (Chen and Mooney 2011).

    python benchmarks/sail.py --data FOLDER [--routes sentences paragraphs] [--seeds 1 2 3] [--steps 800] [--out FOLDER]
    python benchmarks/sail.py --tiny

FOLDER holds `sail/`. A model learns on one map, grid or jelly, and walks on the other; the runs of all seeds walk
together. Success of single sentences: the right place, looking the right way; of paragraphs: the right place. Where the
first direction is open (-1), a route is learned from all four and tested from one that its text decides. Beside the one
map there are our own small worlds (`embedded:worlds`), with instructions from templates, as many rows of them as of
SAIL: they teach what words mean wherever one stands. Nothing is held out: the last weights are scored, once. Those who
follow paragraphs learn from them and from single sentences.
Some ten minutes on one core for three seeds of sentences; on a GPU no faster, since sentences are short.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from packs import read_training_cost
from results import save

import saccade
from saccade.config.load import load, override
from saccade.config.schema import Corpus, Recipe
from saccade.predict.predictors.predictor import Predictor
from saccade.score.evaluate import evaluate_corpora

MAPS = ("grid", "jelly")
FILES = {"sentences": ("single_sentence",), "paragraphs": ("single_sentence", "paragraph")}
HEADLINE_SCORES = {"sentences": "success", "paragraphs": "place"}  # what counts
WORLDS = Corpus(files=("embedded:worlds",), examples=18_000, weight=0.1)
SETTINGS = ["data.valid=0.0", "train.metric=loss"]
TINY = ["train.steps=4", "train.valid_every=4", "train.save_every=4", "train.valid_predictions=4"]


def corpus(data: Path, kind: str, world: str) -> Corpus:
    return Corpus(files=(str(data / "sail" / f"map-{world}.xml.gz"), str(data / "sail" / f"{kind}_{world}.jsonl.gz")))


def build_recipe(args: argparse.Namespace, routes: str, world: str) -> Recipe:
    if args.tiny:
        return load("listen-attend-walk", tiny=True, overrides=[*TINY, *args.settings])
    lasting = [f"train.steps={args.steps}", f"train.save_every={args.steps}", f"train.valid_every={args.steps}"]
    recipe = override(load("listen-attend-walk"), [*SETTINGS, *lasting])
    train = (*(corpus(args.data, kind, world) for kind in FILES[routes]), WORLDS)
    data = recipe.data.model_copy(update={"train": train})
    return override(recipe.model_copy(update={"data": data}), args.settings)


def tests(args: argparse.Namespace, routes: str, world: str) -> list[Corpus]:
    if args.tiny:
        return [Corpus(files=("embedded:worlds-heldout",), examples=8)]
    return [corpus(args.data, FILES[routes][-1], world)]


def measure_direction(
    args: argparse.Namespace, routes: str, learns: str, walks: str, folder: Path
) -> list[dict[str, Any]]:
    """Train on one map and evaluate on the other: each seed alone, and the ensemble of all seeds."""
    recipe, runs = build_recipe(args, routes, learns), list[Path]()
    what, rows = f"SAIL, {routes}, {learns} to {walks}", []
    for seed in args.seeds:
        runs.append(folder / f"{routes}-{learns}-{seed}")
        there = (runs[-1] / "model.safetensors").is_file()
        seeded = override(recipe, [f"train.seed={seed}"])
        model = saccade.load(runs[-1]) if there else saccade.train(seeded, run=runs[-1])
        found = evaluate_corpora(model, tests(args, routes, walks)).scores
        rows.append({"what": what, "value": round(found[HEADLINE_SCORES[routes]].value, 2), "unit": "%", "seed": seed})
        rows += read_training_cost(what, runs[-1], seed=seed)
    found = evaluate_corpora(Predictor.load(runs), tests(args, routes, walks)).scores
    value = round(found[HEADLINE_SCORES[routes]].value, 2)
    return [*rows, {"what": f"{what}, {len(runs)} together", "value": value, "unit": "%"}]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder of all packs")
    parser.add_argument("--routes", nargs="+", choices=[*FILES], default=[*FILES])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument(
        "--run", type=Path, help="a folder in which runs are kept; those that are there walk as they are"
    )
    parser.add_argument("--tiny", action="store_true", help="embedded data and toy sizes, to test the script")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    args = parser.parse_args()
    if (args.data is None) != args.tiny:
        parser.error("give --data FOLDER, or --tiny")
    return args


def build_mean_row(routes: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    both = [row["value"] for row in rows if routes in row["what"] and "together" in row["what"]]
    return {"what": f"SAIL, {routes}, mean of both directions", "value": round(sum(both) / len(both), 2), "unit": "%"}


def main() -> None:
    args, begin, rows = arguments(), time.perf_counter(), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as folder:
        for routes in args.routes:
            for learns, walks in (MAPS, MAPS[::-1]):
                rows += measure_direction(args, routes, learns, walks, args.run or Path(folder))
            rows.append(build_mean_row(routes, rows))
    for row in rows:
        print(f"{row['what']:60} {row['value']:.2f} {row['unit']}")
    notes = f"Settings beside the script's: {' '.join(args.settings) or 'none'}."
    notes += " Minutes are without the training of runs that were there." if args.run else ""
    save("sail", rows, minutes=(time.perf_counter() - begin) / 60, folder=args.out, notes=notes)


if __name__ == "__main__":
    main()
