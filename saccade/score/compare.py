"""Compare runs on the same test pairs: scores with confidence intervals, size, training time, speed."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from saccade.config.metric import (
    CAPTIONS,
    TEXT,
    Metric,
    Predictions,
    Score,
    SumMetric,
    find_metrics,
    format_unknown,
)
from saccade.config.plugins import Kinds
from saccade.config.schema import Decoding, Recipe
from saccade.display import Tabular
from saccade.errors import SaccadeError
from saccade.model.run import count_parameters
from saccade.predict.predictors.predictor import Predictor
from saccade.runs import METRICS, WEIGHTS, get_number, read_metrics
from saccade.score.media import filter_readable
from saccade.score.pairs import load_recipe_of_run
from saccade.score.statistics import Difference, compute_statistics, list_additive_metrics, paired_bootstrap


@dataclass(frozen=True)
class ComparisonSettings:
    """How runs of one task are compared."""

    table_metrics: tuple[str, ...]  # columns of the table
    outputs: str = TEXT  # kind of outputs, one of `Metric.outputs`
    medium: str = ""  # input other than text, such as "picture" or "sound"
    reads_files: bool = False  # whether inputs are files, some of which may be broken
    counted: str = "sentences"  # what the outputs are about

    @property
    def group(self) -> tuple[str, str]:
        """What runs that can be compared have in common: kinds of output and input."""
        return TEXT if self.outputs == CAPTIONS else self.outputs, self.medium

    def list_metrics(self, kinds: Kinds) -> dict[str, SumMetric]:
        """Metrics by which runs can be compared, i.e. functions of sums over examples; the first is the default."""
        found = {metric.name: metric for metric in list_additive_metrics(self.outputs, kinds)}
        return {name: found[name] for name in (*self.table_metrics, *found) if name in found}

    def get_metric(self, name: str | None, kinds: Kinds) -> SumMetric:
        """The metric to compare by, the default one for None; one line says why not."""
        known = self.list_metrics(kinds)
        if name is None:
            return next(iter(known.values()))
        found = find_metrics(name, kinds)
        for metric in found:
            if isinstance(metric, SumMetric) and self.outputs in metric.outputs:
                return metric
        if not found:
            reason = format_unknown(name, [*known], kinds)
        elif any(self.outputs in metric.outputs for metric in found):
            reason = f"; '{name}' has no statistics per example, as a MeanMetric or a SumMetric has"
        else:
            reason = f"; '{name}' does not score outputs of the kind \"{self.outputs}\""
        raise SaccadeError(f"these runs cannot be compared by '{name}', only by {' or '.join(known)}{reason}")


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
class Comparison(Tabular):
    """The rows of a comparison; the first one is the baseline."""

    metric: str
    signature: str
    sentences: int
    rows: list[ComparisonRow]
    left_out: tuple[str, ...] = ()  # messages about files that one of the runs could not read
    broken_runs: tuple[str, ...] = ()  # messages about runs that could not be loaded
    counted: str = "sentences"  # what the outputs are about
    outputs: str = TEXT  # kind of outputs
    kinds: Kinds | None = None  # the user's own metrics

    def to_dict(self) -> dict[str, Any]:
        hidden = {"outputs", "kinds", *(name for name in ("left_out", "broken_runs") if not getattr(self, name))}
        return {name: value for name, value in asdict(replace(self, kinds=None)).items() if name not in hidden}

    def to_records(self) -> list[dict[str, Any]]:
        """Return a row for each run, or group of runs that differ only in their seed."""
        records = []
        for row in self.rows:
            change = row.difference
            compared = {} if change is None else {"difference": change.value, "low": change.low, "high": change.high}
            records.append(
                {
                    "run": row.name,
                    **row.scores,
                    "spread": row.spread,
                    **compared,
                    **({} if change is None else {"p": change.p_value}),
                    "seeds": len(row.seeds),
                    "parameters": row.parameters,
                    "minutes": row.minutes,
                    f"{self.counted}/s": row.sentences_per_second,
                }
            )
        return records

    def get_metric(self, name: str) -> Metric | None:
        """The metric of a column; None for a score of another kind."""
        found = find_metrics(name, self.kinds)
        return next((metric for metric in found if self.outputs in metric.outputs), found[0] if found else None)


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

    Files that one of the runs cannot read are skipped for all of them. A run that cannot be loaded, other than the
    first one, is left out.
    """
    if not runs:
        raise SaccadeError("no run was given; expected the folders of at least two runs; `saccade runs` lists them")
    settings = check_comparable(runs, kinds=kinds)
    bound = Kinds(kinds)
    chosen = settings.get_metric(metric, bound)
    chosen.check_available()

    broken: dict[str | Path, str] = {}
    load_all = partial(load_predictors, runs, broken, kinds=kinds, device=device)
    predictors = (predictor for _, predictor in load_all())
    pairs, skipped = filter_readable(predictors, pairs) if settings.reads_files else (list(pairs), ())
    measurements = [
        measure_run(Path(path), predictor, pairs, settings, decoding=decoding) for path, predictor in load_all()
    ]
    groups, recipe = group_by_recipe(measurements), measurements[0].recipe
    references = recipe.task.get_references(recipe, pairs)
    sources = [source for source, _ in pairs] if len(references) == len(pairs) else [*dict(pairs)]

    def get_predictions(member: RunMeasurement) -> Predictions:
        return Predictions(member.hypotheses, references, sources, settings.outputs)

    for member in measurements:  # the table of the task may not have the chosen metric
        if chosen.name not in member.scores:
            member.scores[chosen.name] = chosen.score(get_predictions(member))
        if reason := member.scores[chosen.name].undefined:
            raise SaccadeError(
                f"'{member.name}' cannot be compared by {chosen.name}: {reason}; train it further, or leave it out"
            )
    differences = paired_bootstrap(
        [[compute_statistics(chosen, get_predictions(member)) for member in group] for group in groups],
        chosen.compute_from_sums,
        samples=samples,
        seed=seed,
    )
    rows = [_build_row(group, chosen.name, differences[i] if i else None) for i, group in enumerate(groups)]
    signature = measurements[0].scores[chosen.name].signature
    return Comparison(
        chosen.name, signature, len(references), rows, skipped, tuple(broken.values()),
        settings.counted, settings.outputs, bound,
    )  # fmt: skip


def load_predictors(
    runs: Sequence[str | Path], broken: dict[str | Path, str], *, kinds: Mapping[str, Any] | None, device: str
) -> Iterator[tuple[str | Path, Predictor]]:
    """Load one run at a time, to save memory; those that cannot be loaded go to `broken`, with the reason.

    The first one must be loaded, since all others are compared with it.
    """
    for path in runs:
        try:
            yield path, Predictor.load(path, kinds=kinds, device=device)
        except SaccadeError as error:
            if path == runs[0]:
                raise
            broken[path] = str(error)


def check_comparable(runs: Sequence[str | Path], *, kinds: Mapping[str, Any] | None = None) -> ComparisonSettings:
    """Return how the runs are compared; refuse runs with different kinds of input or output.

    A folder that is not a run is reported later, when its weights are loaded.
    """
    paths, first = dict[tuple[str, str], str | Path](), None
    for path in runs:
        recipe = load_recipe_of_run(path, kinds=kinds)
        settings = TEXT_COMPARISON if recipe is None else recipe.task.get_comparison(recipe)
        if settings is None:
            raise SaccadeError(
                f"'{path}' was trained on texts without targets, and runs are compared by their outputs for pairs; "
                "use `saccade evaluate` for each"
            )
        paths[settings.group] = path
        first = first or settings
    if len(paths) > 1:
        one, other, *_ = paths.values()
        same = len({outputs for outputs, _ in paths}) == 1
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
        name=Path(os.path.realpath(path)).name,
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
    seconds = [get_number(line, "seconds") for line in read_metrics(run / METRICS)]
    known = [number for number in seconds if number is not None]
    return known[-1] / 60 if known else None


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
