"""Several runs on the same test pairs: scores with intervals, size, training time, speed."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from saccade.config.schema import OF_TEXTS, Corpus, Decoding, MediaReader, Recipe
from saccade.errors import SaccadeError
from saccade.model.run import count_weights
from saccade.predict.predictors.labels import Labeller
from saccade.predict.predictors.player import Player
from saccade.predict.predictors.predictor import Predictor
from saccade.predict.predictors.walking import Walker
from saccade.runs import METRICS, WEIGHTS, read_metrics
from saccade.score.bleu import Score
from saccade.score.evaluate import Evaluation, evaluate, evaluate_captions, evaluate_labels, evaluate_routes
from saccade.score.labels import OF_KIND, LabelEvaluation
from saccade.score.media import by_file, counted_of, metrics_of, readable
from saccade.score.pairs import recipe_of
from saccade.score.playing import PlayedEvaluation, evaluate_playing
from saccade.score.routes import ends_of
from saccade.score.statistics import Difference, paired_bootstrap, score_of, statistics

# By what is read, the scores of a table; runs are compared by those that follow from sums over sentences.
SHOWN = {
    "": ("bleu", "chrf", "accuracy"),
    "sound": ("wer", "cer", "accuracy"),
    "picture": ("bleu-4", "cider", "accuracy"),
    "world": ("success",),
    "route": ("success",),
}
MEDIA = ("sound", "picture")  # which are files
CAPTION = "bleu-4"  # which compares with all that is said of a picture
COUNTED = {"world": "episodes", "route": "routes"}
WITHOUT_SUMS = ("chrf", "cider")


@dataclass(frozen=True)
class Member:
    """One run on the test pairs."""

    name: str
    seed: int
    key: str  # equal for runs that differ in their seed only
    scores: dict[str, Score]
    hypotheses: list[str]
    parameters: int
    minutes: float | None
    sentences_per_second: float


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
    kind, recipe = check_comparable(runs, kinds=kinds), recipe_of(runs[0], kinds=kinds)
    medium, shown = medium_of(recipe), shown_of(recipe)
    known = [name for name in shown if name not in WITHOUT_SUMS] if kind is None else OF_KIND[kind]
    metric = metric or known[0]
    if metric not in known:
        raise SaccadeError(f"unknown metric '{metric}'; runs are compared by {' or '.join(known)}")

    def predictors() -> Iterator[Any]:  # one at a time: all of them may be too much for the memory
        return (Predictor.load(path, kinds=kinds, device=device) for path in runs)

    pairs, left = readable(predictors(), pairs) if medium in MEDIA else (pairs, ())
    both = zip(runs, predictors(), strict=True)
    members = [measure(Path(path), predictor, pairs, shown=shown, decoding=decoding) for path, predictor in both]
    captions, groups = kind is None and CAPTION in shown, group_members(members)
    references = references_of(pairs, medium, captions=captions)
    differences = paired_bootstrap(
        [[statistics(metric, member.hypotheses, references, kind) for member in group] for group in groups],
        score_of(metric, kind),
        samples=samples,
        seed=seed,
    )
    rows = [_row(group, metric, differences[i] if i else None) for i, group in enumerate(groups)]
    signature, counted = members[0].scores[metric].signature, counted_in(recipe, kind)
    return Comparison(metric, signature, len(references), rows, left, counted)


def shown_of(recipe: Recipe | None) -> tuple[str, ...]:
    """The scores of a table; of what is spelled in a picture those that `evaluate` tells."""
    medium = medium_of(recipe)
    if recipe is not None and medium == "picture" and isinstance(recipe.reader, MediaReader) and not recipe.reader.asks:
        found = metrics_of(recipe, recipe.reader)
        return SHOWN[medium] if CAPTION in found else found
    return SHOWN[medium]


def counted_in(recipe: Recipe | None, kind: str | None) -> str:
    """What outputs are about."""
    if recipe is not None and isinstance(recipe.reader, MediaReader) and medium_of(recipe) in MEDIA:
        return counted_of(recipe.reader)
    return COUNTED.get(medium_of(recipe), "sentences" if kind is None else "texts")


def references_of(pairs: Sequence[tuple[str, str]], medium: str, *, captions: bool) -> list[Any]:
    """What outputs are compared with: of pictures all that is said of each, of routes where they end."""
    if medium == "route":
        return ends_of(pairs)
    return [*by_file(pairs).values()] if captions else [target for _, target in pairs]


def check_comparable(runs: Sequence[str | Path], *, kinds: Mapping[str, Any] | None = None) -> str | None:
    """The kind of labels that runs give, none where they write texts; refuses what cannot be compared.

    Language models have no references for what they write.
    """
    found: dict[tuple[str | None, str], str | Path] = {}
    for path in runs:
        recipe = recipe_of(path, kinds=kinds)
        if recipe is not None and recipe.task.name in OF_TEXTS:
            raise SaccadeError(
                f"'{path}' learned from texts alone, and runs are compared by their outputs for pairs; "
                "use `saccade evaluate` for each"
            )
        kind = recipe.writer.kind if recipe is not None and recipe.task.name == "label" else None
        found[kind, medium_of(recipe)] = path
    if len(found) > 1:
        one, other, *_ = found.values()
        what = (
            "read the same kind of input" if len({kind for kind, _ in found}) == 1 else "give the same kind of output"
        )
        raise SaccadeError(f"'{one}' and '{other}' do not {what}; compare runs of one task")
    return next(iter(found))[0]


def medium_of(recipe: Recipe | None) -> str:
    """What a run reads: "picture", "sound", or nothing of the kind; "world" or "route" where it acts."""
    if recipe is not None and recipe.task.name in ("interact", "walk"):
        return "world" if recipe.task.name == "interact" else "route"
    return recipe.reader.medium if recipe is not None and isinstance(recipe.reader, MediaReader) else ""


def measure(
    path: Path,
    predictor: Predictor,
    pairs: Sequence[tuple[str, str]],
    *,
    shown: Sequence[str] = SHOWN[""],
    decoding: Decoding | None = None,
) -> Member:
    """One run's scores, size and speed; texts are scored by those that are shown."""
    found: Evaluation | LabelEvaluation | PlayedEvaluation
    if isinstance(predictor, Player):
        found = evaluate_playing(predictor, [Corpus(files=(pairs[0][0],), examples=len(pairs))])
        speed = len(pairs) / found.seconds
    elif isinstance(predictor, Walker):
        walked = evaluate_routes(predictor, pairs, decoding=decoding)
        ends = ends_of([(source, actions) for (source, _), actions in zip(pairs, walked.hypotheses, strict=True)])
        found = replace(walked, hypotheses=ends)
        speed = walked.speed.sentences_per_second if walked.speed else 0.0
    elif isinstance(predictor, Labeller):
        found = evaluate_labels(predictor, pairs)
        speed = len(pairs) / found.seconds
    else:
        measured = evaluate_captions if CAPTION in shown else evaluate
        found = measured(predictor, pairs, metrics=shown, decoding=decoding)
        speed = found.speed.sentences_per_second if found.speed else 0.0
    return Member(
        name=path.resolve().name,
        seed=predictor.recipe.train.seed,
        key=recipe_key(predictor.recipe),
        scores=found.scores,
        hypotheses=found.hypotheses,
        parameters=count_weights(path / WEIGHTS),
        minutes=training_minutes(path),
        sentences_per_second=speed,
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
