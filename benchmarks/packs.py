"""Train a recipe on a data set and evaluate it on its test, and rows of results: code that benchmarks share."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from minutes import read_metrics

from saccade.config.load import load, override
from saccade.config.schema import Corpus, Recipe
from saccade.model.run import count_parameters
from saccade.predict.predictors.labels import Labeller
from saccade.predict.predictors.predictor import Predictor
from saccade.runs import WEIGHTS
from saccade.score.evaluate import evaluate_corpora
from saccade.train.api import replace_data

TINY = ["train.steps=8", "train.valid_every=8", "train.save_every=8", "train.valid_predictions=4"]


@dataclass(frozen=True)
class Pack:
    """The corpora of a data set; without `valid`, the final weights are evaluated."""

    train: Sequence[Path]
    test: Sequence[Path]
    valid: Sequence[Path] = ()


@dataclass(frozen=True)
class Study:
    """A study: a recipe with its settings and training minutes, and the test scores to report."""

    name: str
    recipe: str
    settings: Sequence[str]
    minutes: float
    scores: Sequence[str]
    beside: Sequence[Mapping[str, Any]] = ()  # decodings of the test that are measured too, each with a name
    lowercase: bool = False
    warmup: float = 0.08  # share of the steps up to the highest learning rate


def arguments(
    study: Study,
    doc: str | None,
    *,
    heldout: str = "",
    extend: Callable[[argparse.ArgumentParser], None] = lambda parser: None,
) -> argparse.Namespace:
    """`heldout` says what is scored instead of the test with --heldout, where a script can do that.

    `extend` adds options of the script's own.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder of all packs")
    parser.add_argument("--minutes", type=float, default=study.minutes, help="of training, for each seed")
    parser.add_argument("--steps", type=int, help="so many, whatever time they take")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--run", type=Path, help="a folder in which runs are kept")
    parser.add_argument("--tiny", action="store_true", help="embedded data and toy sizes, to test the script")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    if heldout:
        parser.add_argument("--heldout", action="store_true", help=heldout)
    extend(parser)
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE")
    args = parser.parse_intermixed_args()
    if (args.data is None) != args.tiny:
        parser.error("give --data FOLDER, or --tiny")
    return args


def recipe_of(study: Study, pack: Pack | None, settings: Sequence[str]) -> Recipe:
    if pack is None:
        return load(study.recipe, tiny=True, overrides=[*TINY, *settings])
    recipe = override(load(study.recipe), [*study.settings, *([] if pack.valid else ["train.metric=loss"])])
    named = [[str(path) for path in files] for files in (pack.train, pack.valid)]
    return override(replace_data(recipe, data=[named[0]], valid=[named[1]] if named[1] else None), settings)


def add_schedule(recipe: Recipe, steps: int, warmup: float) -> list[str]:
    """Add a schedule that ends with the last step, and ten validations."""
    return [
        f"train.steps={steps}", "train.epochs=none", f"train.schedule.warmup_steps={max(1, int(warmup * steps))}",
        f"train.valid_every={max(1, steps // 10)}", f"train.save_every={steps}",
    ]  # fmt: skip


def tests(recipe: Recipe, pack: Pack | None) -> list[Corpus]:
    if pack is not None:
        return [Corpus(files=tuple(str(path) for path in pack.test))]
    assert isinstance(recipe.data.valid, tuple), "embedded data has its own"
    return [corpus.model_copy(update={"examples": 8}) for corpus in recipe.data.valid]


def score_run(
    study: Study, model: Predictor, run: Path, corpora: Sequence[Corpus], *, seed: int
) -> list[dict[str, Any]]:
    """Return the test scores and the cost of training."""
    rows = []
    for changes in ({"what": study.name}, *study.beside):
        name, more = changes["what"], {key: value for key, value in changes.items() if key != "what"}
        decoding = model.recipe.predict.model_copy(update=more)
        metrics = None if isinstance(model, Labeller) else study.scores  # labels have all of theirs
        found = evaluate_corpora(model, corpora, metrics=metrics, lowercase=study.lowercase, decoding=decoding)
        for score in study.scores:
            value = found.scores[score]  # type: ignore[union-attr]
            rows.append(build_row(f"{name}: {score}", value.value, "", seed, signature=value.signature))
    return [*rows, *read_training_cost(study.name, run, seed=seed)]


def read_training_cost(what: str, run: Path, *, seed: int) -> list[dict[str, Any]]:
    """Return minutes and steps of a training, and the size of the model."""
    lines = read_metrics(run)
    return [
        build_row(f"{what}: minutes of training", lines[-1]["seconds"] / 60, "min", seed),
        build_row(f"{what}: steps", max(line.get("step", 0) for line in lines), "", seed),
        build_row(f"{what}: parameters", count_parameters(run / WEIGHTS) / 1e6, "M", seed),
    ]


def build_row(what: str, value: float, unit: str, seed: int, **more: Any) -> dict[str, Any]:
    return {"what": what, "value": round(value, 3), "unit": unit, "seed": seed, **more}


def summarize_seeds(rows: Sequence[Mapping[str, Any]], *endings: str) -> list[dict[str, Any]]:
    """Return mean and sample standard deviation over the seeds, for the rows whose names end so."""
    means = []
    for what in dict.fromkeys(row["what"] for row in rows if row["what"].endswith(endings)):
        values = [row["value"] for row in rows if row["what"] == what]
        unit = next(row["unit"] for row in rows if row["what"] == what)
        named = f"{what}, mean of {len(values)} seeds" if len(values) > 1 else f"{what}, one seed"
        means.append({"what": named, "value": round(fmean(values), 2), "unit": unit})
        if len(values) > 1:
            means.append({"what": f"{what}, standard deviation", "value": round(stdev(values), 2), "unit": unit})
    return means
