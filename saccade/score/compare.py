"""Several runs on the same test pairs: scores with intervals, size, training time, speed."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from saccade.config.schema import Decoding, Recipe
from saccade.errors import SaccadeError
from saccade.model.run import count_weights
from saccade.predict.predictors.predictor import Predictor
from saccade.runs import METRICS, WEIGHTS, read_metrics
from saccade.score.bleu import Score
from saccade.score.media import readable
from saccade.score.pairs import recipe_of
from saccade.score.statistics import Difference, paired_bootstrap, score_of, statistics

FILES = ("sound", "picture")  # media that are files, of which some may be broken
WITHOUT_SUMS = ("chrf", "cider")  # which do not follow from sums over examples


@dataclass(frozen=True)
class ComparisonSettings:
    """How runs of one task are compared on the same pairs."""

    shown: tuple[str, ...]  # scores of the table
    labels: str | None = None  # of which kind they are, where outputs are labels
    medium: str = ""  # what is read, where that is no text: "picture", "sound", "route" or "world"
    counted: str = "sentences"  # what the outputs are about

    @property
    def metrics(self) -> tuple[str, ...]:
        """Those by which runs can be compared: they follow from sums over examples. The first one is the default."""
        return tuple(name for name in self.shown if name not in WITHOUT_SUMS)


TEXTS = ComparisonSettings(shown=("bleu", "chrf", "accuracy"))


@dataclass(frozen=True)
class Member:
    """One run on the test pairs."""

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
        """Equal for runs that differ in their seed only."""
        return recipe_key(self.recipe)


@dataclass(frozen=True)
class Row:
    """Runs that differ in their seed only, or a single run."""

    name: str
    runs: list[str]
    seeds: list[int]
    scores: dict[str, float]  # the mean
    spread: float | None  # standard deviation of the compared metric over the seeds
    difference: Difference | None  # to the first row
    parameters: int
    minutes: float | None
    sentences_per_second: float


@dataclass(frozen=True)
class Comparison:
    metric: str
    signature: str
    sentences: int
    rows: list[Row]
    left_out: tuple[str, ...] = ()  # what is wrong with files that one of the runs could not read
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
    """Decodes the pairs with every run; each row but the first is compared with the first.

    Files that one of the runs cannot read are left out for all of them.
    """
    if not runs:
        raise SaccadeError("no run was given; expected the folders of at least two runs; `saccade runs` lists them")
    settings = check_comparable(runs, kinds=kinds)
    metric = metric or settings.metrics[0]
    if metric not in settings.metrics:
        raise SaccadeError(f"unknown metric '{metric}'; runs are compared by {' or '.join(settings.metrics)}")

    def predictors() -> Iterator[Predictor]:  # one at a time: all of them may be too much for the memory
        return (Predictor.load(path, kinds=kinds, device=device) for path in runs)

    pairs, left = readable(predictors(), pairs) if settings.medium in FILES else (list(pairs), ())
    both = zip(runs, predictors(), strict=True)
    members = [measure(Path(path), predictor, pairs, settings, decoding=decoding) for path, predictor in both]
    groups, recipe = group_members(members), members[0].recipe
    references = recipe.task.get_references(recipe, pairs)
    differences = paired_bootstrap(
        [[statistics(metric, member.hypotheses, references, settings.labels) for member in group] for group in groups],
        score_of(metric, settings.labels),
        samples=samples,
        seed=seed,
    )
    rows = [_row(group, metric, differences[i] if i else None) for i, group in enumerate(groups)]
    signature = members[0].scores[metric].signature
    return Comparison(metric, signature, len(references), rows, left, settings.counted)


def check_comparable(runs: Sequence[str | Path], *, kinds: Mapping[str, Any] | None = None) -> ComparisonSettings:
    """How the runs are compared; refuses those that read or give something else than the others.

    A folder that is no run is told when its weights are wanted.
    """
    paths, first = dict[tuple[str | None, str], str | Path](), None
    for path in runs:
        recipe = recipe_of(path, kinds=kinds)
        settings = TEXTS if recipe is None else recipe.task.get_comparison(recipe)
        if settings is None:
            raise SaccadeError(
                f"'{path}' learned from texts alone, and runs are compared by their outputs for pairs; "
                "use `saccade evaluate` for each"
            )
        paths[settings.labels, settings.medium] = path
        first = first or settings
    if len(paths) > 1:
        one, other, *_ = paths.values()
        same = len({labels for labels, _ in paths}) == 1
        what = "read the same kind of input" if same else "give the same kind of output"
        raise SaccadeError(f"'{one}' and '{other}' do not {what}; compare runs of one task")
    return first or TEXTS


def measure(
    path: Path,
    predictor: Predictor,
    pairs: Sequence[tuple[str, str]],
    settings: ComparisonSettings = TEXTS,
    *,
    decoding: Decoding | None = None,
) -> Member:
    """One run's scores, size and speed; texts are scored by those that are shown."""
    task = predictor.recipe.task
    found = task.evaluate_pairs(predictor, list(pairs), metrics=settings.shown, decoding=decoding)
    return Member(
        name=path.resolve().name,
        recipe=predictor.recipe,
        scores=dict(found.scores),
        hypotheses=list(found.hypotheses),
        parameters=count_weights(path / WEIGHTS),
        minutes=training_minutes(path),
        sentences_per_second=found.outputs_per_second,
    )


def recipe_key(recipe: Recipe) -> str:
    """Everything that makes a recipe another one; its names and its seed do not."""
    values = recipe.model_dump(mode="json", exclude={"name": True, "about": True, "train": {"seed"}})
    return json.dumps(values, sort_keys=True)


def training_minutes(run: Path) -> float | None:
    """The time that the last line of metrics.jsonl with a time tells; None where there is none."""
    seconds = [line["seconds"] for line in read_metrics(run / METRICS) if "seconds" in line]
    return float(seconds[-1]) / 60 if seconds else None


def group_members(members: Sequence[Member]) -> list[list[Member]]:
    """Members of the same recipe and of different seeds, in the order of their first."""
    groups: list[list[Member]] = []
    for member in members:
        for group in groups:
            if group[0].key == member.key and all(other.seed != member.seed for other in group):
                group.append(member)
                break
        else:
            groups.append([member])
    return groups


def _row(group: Sequence[Member], metric: str, difference: Difference | None) -> Row:
    first, minutes = group[0], [member.minutes for member in group if member.minutes is not None]
    values = [member.scores[metric].value for member in group]
    return Row(
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
