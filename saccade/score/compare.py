"""Compare runs on the same test pairs: scores with confidence intervals, size, training time, speed."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from saccade.config.schema import Decoding, Recipe
from saccade.errors import SaccadeError
from saccade.model.run import count_parameters
from saccade.predict.predictors.predictor import Predictor
from saccade.runs import METRICS, WEIGHTS, read_metrics
from saccade.score.media import filter_readable
from saccade.score.metrics.bleu import Score
from saccade.score.pairs import load_recipe_of_run
from saccade.score.statistics import Difference, compute_statistics, get_score_function, paired_bootstrap

NON_ADDITIVE_METRICS = ("chrf", "cider")  # metrics that are no function of sums over examples, as the bootstrap needs


@dataclass(frozen=True)
class ComparisonSettings:
    """How runs of one task are compared."""

    table_metrics: tuple[str, ...]  # columns of the table
    labels: str | None = None  # kind of labels, if outputs are labels
    medium: str = ""  # input other than text, such as "picture" or "sound"
    reads_files: bool = False  # whether inputs are files, some of which may be broken
    counted: str = "sentences"  # what the outputs are about

    @property
    def metrics(self) -> tuple[str, ...]:
        """Metrics by which runs can be compared, i.e. functions of sums over examples; the first is the default."""
        return tuple(name for name in self.table_metrics if name not in NON_ADDITIVE_METRICS)


TEXT_COMPARISON = ComparisonSettings(table_metrics=("bleu", "chrf", "accuracy"))


@dataclass(frozen=True)
class RunMeasurement:
    """Scores, size and speed of one run on the test pairs."""

    name: str
    recipe: Recipe
    scores: dict[str, Score]
    hypotheses: list[str]
    parameters: int
    minutes: float | None
    sentences_per_second: float

    @property
    def seed(self) -> int:
        return self.recipe.train.seed

    @property
    def key(self) -> str:
        """Equal for runs that differ only in their seed."""
        return recipe_key(self.recipe)


@dataclass(frozen=True)
class ComparisonRow:
    """Runs that differ only in their seed, or a single run."""

    name: str
    runs: list[str]
    seeds: list[int]
    scores: dict[str, float]  # means over the runs
    spread: float | None  # standard deviation of the compared metric over the seeds
    difference: Difference | None  # to the first row
    parameters: int
    minutes: float | None
    sentences_per_second: float


@dataclass(frozen=True)
class Comparison:
    """The rows of a comparison; the first one is the baseline."""

    metric: str
    signature: str
    sentences: int
    rows: list[ComparisonRow]
    left_out: tuple[str, ...] = ()  # messages about files that one of the runs could not read
    counted: str = "sentences"  # what the outputs are about

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "left_out" or value}


def compare(
    runs: Sequence[str | Path],
    pairs: Sequence[tuple[str, str]],
    *,
    metric: str | None = None,
    decoding: Decoding | None = None,
    kinds: Mapping[str, Any] | None = None,
    device: str = "auto",
    samples: int = 1000,
    seed: int = 1,
) -> Comparison:
    """Decode the pairs with every run; compare each row with the first.

    Files that one of the runs cannot read are skipped for all of them.
    """
    if not runs:
        raise SaccadeError("no run was given; expected the folders of at least two runs; `saccade runs` lists them")
    settings = check_comparable(runs, kinds=kinds)
    metric = metric or settings.metrics[0]
    if metric not in settings.metrics:
        raise SaccadeError(f"these runs cannot be compared by '{metric}', only by {' or '.join(settings.metrics)}")

    def predictors() -> Iterator[Predictor]:  # one at a time, to save memory
        return (Predictor.load(path, kinds=kinds, device=device) for path in runs)

    pairs, skipped = filter_readable(predictors(), pairs) if settings.reads_files else (list(pairs), ())
    loaded = zip(runs, predictors(), strict=True)
    measurements = [
        measure_run(Path(path), predictor, pairs, settings, decoding=decoding) for path, predictor in loaded
    ]
    groups, recipe = group_by_recipe(measurements), measurements[0].recipe
    references = recipe.task.get_references(recipe, pairs)
    differences = paired_bootstrap(
        [
            [compute_statistics(metric, member.hypotheses, references, settings.labels) for member in group]
            for group in groups
        ],
        get_score_function(metric, settings.labels),
        samples=samples,
        seed=seed,
    )
    rows = [_build_row(group, metric, differences[i] if i else None) for i, group in enumerate(groups)]
    signature = measurements[0].scores[metric].signature
    return Comparison(metric, signature, len(references), rows, skipped, settings.counted)


def check_comparable(runs: Sequence[str | Path], *, kinds: Mapping[str, Any] | None = None) -> ComparisonSettings:
    """Return how the runs are compared; refuse runs with different kinds of input or output.

    A folder that is not a run is reported later, when its weights are loaded.
    """
    paths, first = dict[tuple[str | None, str], str | Path](), None
    for path in runs:
        recipe = load_recipe_of_run(path, kinds=kinds)
        settings = TEXT_COMPARISON if recipe is None else recipe.task.get_comparison(recipe)
        if settings is None:
            raise SaccadeError(
                f"'{path}' was trained on texts without targets, and runs are compared by their outputs for pairs; "
                "use `saccade evaluate` for each"
            )
        paths[settings.labels, settings.medium] = path
        first = first or settings
    if len(paths) > 1:
        one, other, *_ = paths.values()
        same = len({labels for labels, _ in paths}) == 1
        what = "read the same kind of input" if same else "give the same kind of output"
        raise SaccadeError(f"'{one}' and '{other}' do not {what}; compare runs of one task")
    return first or TEXT_COMPARISON


def measure_run(
    path: Path,
    predictor: Predictor,
    pairs: Sequence[tuple[str, str]],
    settings: ComparisonSettings = TEXT_COMPARISON,
    *,
    decoding: Decoding | None = None,
) -> RunMeasurement:
    """Measure scores, size and speed of one run."""
    task = predictor.recipe.task
    result = task.evaluate_pairs(predictor, list(pairs), metrics=settings.table_metrics, decoding=decoding)
    return RunMeasurement(
        name=path.resolve().name,
        recipe=predictor.recipe,
        scores=dict(result.scores),
        hypotheses=list(result.hypotheses),
        parameters=count_parameters(path / WEIGHTS),
        minutes=read_training_minutes(path),
        sentences_per_second=result.outputs_per_second,
    )


def recipe_key(recipe: Recipe) -> str:
    """Return a string that identifies a recipe, regardless of its name, description and seed."""
    values = recipe.model_dump(mode="json", exclude={"name": True, "about": True, "train": {"seed"}})
    return json.dumps(values, sort_keys=True)


def read_training_minutes(run: Path) -> float | None:
    """Return the last training time in metrics.jsonl; None if there is none."""
    seconds = [line["seconds"] for line in read_metrics(run / METRICS) if "seconds" in line]
    return float(seconds[-1]) / 60 if seconds else None


def group_by_recipe(measurements: Sequence[RunMeasurement]) -> list[list[RunMeasurement]]:
    """Group runs of the same recipe with different seeds, in the order of their first."""
    groups: list[list[RunMeasurement]] = []
    for member in measurements:
        for group in groups:
            if group[0].key == member.key and all(other.seed != member.seed for other in group):
                group.append(member)
                break
        else:
            groups.append([member])
    return groups


def _build_row(group: Sequence[RunMeasurement], metric: str, difference: Difference | None) -> ComparisonRow:
    first, minutes = group[0], [member.minutes for member in group if member.minutes is not None]
    values = [member.scores[metric].value for member in group]
    return ComparisonRow(
        name=first.name if len(group) == 1 else f"{first.name} ({len(group)} seeds)",
        runs=[member.name for member in group],
        seeds=[member.seed for member in group],
        scores={name: fmean(member.scores[name].value for member in group) for name in first.scores},
        spread=stdev(values) if len(values) > 1 else None,
        difference=difference,
        parameters=first.parameters,
        minutes=fmean(minutes) if minutes else None,
        sentences_per_second=fmean(member.sentences_per_second for member in group),
    )
