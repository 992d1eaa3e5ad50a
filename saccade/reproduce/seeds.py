"""Train a result with several seeds and score each one once; finished seeds are kept as files and not done again."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from itertools import islice
from pathlib import Path
from typing import Any

from saccade.config.load import override
from saccade.config.metric import Score, find_metric, find_metrics
from saccade.config.schema import Corpus, Decoding, Recipe
from saccade.data.sources.documents import read_documents
from saccade.data.sources.pairs import read_lines
from saccade.errors import Diverged, SaccadeError
from saccade.files import atomic_write
from saccade.model.run import count_parameters
from saccade.predict.predictors.predictor import Predictor
from saccade.reproduce.data import check_files, prepare_files, resolve_corpora
from saccade.reproduce.environment import get_commit, get_hardware
from saccade.reproduce.spec import Spec, Stage
from saccade.runs import METRICS, WEIGHTS, get_validation_score, read_metrics
from saccade.score.evaluate import evaluate_corpora
from saccade.train.api import build_recipe, check_same_settings, train_or_load

Report = Callable[[str], None]
TEST, HELD_OUT, TRIAL = "test", "held-out", "trial"
TRIAL_SCORED, TRIAL_PREDICTED = 2, 60  # examples that a trial validates and scores, and that a stage predicts in it
TRIAL_CHARACTERS = 2000  # of each document that a trial validates or scores: one may be a book
TRIAL_DOCUMENTS = 20  # that a trial learns from; all examples of other data, whose labels may be in order
TRIAL_BATCHES = 32  # by which the tokens of a batch are divided in a trial
# Keys of a spec that must not change between scoring one seed and the next
SCORED_KEYS = {
    "recipe", "tiny", "files", "train", "valid", "test", "settings", "before", "choices", "metric", "metrics",
    "decoding", "lowercase",
}  # fmt: skip
ALL_EXAMPLES = 1_000_000  # more than any validation data has


@dataclass(frozen=True)
class Options:
    """How a result is measured again."""

    out: Path  # folder of all results
    data_folder: Path | None = None
    seeds: int = 3
    heldout: bool = False
    again: bool = False  # score seeds of `out` again
    only_new: bool = False  # leave out seeds that are recorded
    trial_steps: int | None = None  # steps of a trial, which shows that everything runs and counts for nothing
    overrides: Sequence[str] = ()  # only with `heldout`
    deadline: float | None = None  # time.monotonic() after which no seed should end

    @property
    def data(self) -> str:
        """What is scored: test, held-out or trial."""
        return TRIAL if self.trial_steps else HELD_OUT if self.heldout else TEST

    def get_folder(self, name: str) -> Path:
        """The folder of a result; a trial has one of its own."""
        return self.out / (f"{name}-trial" if self.trial_steps else name)


@dataclass(frozen=True)
class SeedResult:
    """Scores and costs of one seed, as the file of the seed has them."""

    seed: int
    data: str  # what was scored: test or held-out
    scores: dict[str, float]  # empty if the training diverged
    signatures: dict[str, str]
    settings: dict[str, Any]  # metric, decoding, overrides, and hashes of files, fixed before the test was scored
    minutes: float  # of training, of all runs that it needed
    steps: int
    parameters: int
    hardware: str
    commit: str
    date: str
    times_scored: int = 1
    diverged: str = ""


@dataclass
class Seeds:
    """Results of all seeds of one spec."""

    spec: Spec
    finished: list[SeedResult] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)  # seeds that did not fit into the time
    kept: list[int] = field(default_factory=list)  # recorded seeds, whose test was not scored again

    @property
    def values(self) -> list[float]:
        return [item.scores[self.spec.metric] for item in self.finished if item.scores]


def check_options(spec: Spec, options: Options) -> None:
    """Raise a SaccadeError for settings that may not change, or for data that is missing or different."""
    if options.overrides and not options.heldout:
        raise SaccadeError(
            f"the settings of {spec.name} are fixed before its test is scored; try {options.overrides[0]} on held-out "
            "data with --heldout"
        )
    if spec.recorded is not None and options.data == TEST and options.only_new:
        trials = [Trial(spec, options, seed) for seed in range(1, options.seeds + 1)]
        if all(trial.is_recorded and not trial.path.is_file() for trial in trials):
            raise SaccadeError(
                f"{spec.name}: seeds up to {options.seeds} are recorded; "
                f"--seeds {max(spec.recorded.values) + 1} adds a seed, without --only-new they are trained again"
            )
    check_files(spec, options.data_folder)


def run_seed(found: Seeds, options: Options, seed: int, report: Report = lambda text: None) -> None:
    """Train and score one seed and add it to `found`; one that has a result is not trained or scored again."""
    spec = found.spec
    trial = Trial(spec, options, seed)
    before, recorded = trial.read(), spec.recorded if trial.is_recorded else None
    expected = 0.0 if spec.recorded is None or options.trial_steps else spec.recorded.minutes or 0.0
    if before is not None and not options.again:
        report(f"{spec.name}, seed {seed}: its {trial.data} data was scored on {before.date}; not scored again")
        found.finished.append(before)
    elif recorded is not None and options.only_new:
        report(f"{spec.name}, seed {seed}: recorded on {recorded.date}, with {recorded.values[seed]:g}; left out")
        found.kept.append(seed)
    elif options.deadline is not None and time.monotonic() + 60 * expected > options.deadline:
        report(f"{spec.name}, seed {seed}: not started, its {expected:.1f} minutes do not fit into the time left")
        found.skipped.append(seed)
    else:
        report(f"{spec.name}, seed {seed}: {spec.title}")
        times = before.times_scored if before else int(recorded is not None)
        found.finished.append(trial.measure(times_scored=times + 1))


@dataclass(frozen=True)
class Trial:
    """One seed of one result, in files beside each other: seed-1/ the run, seed-1.json its scores."""

    spec: Spec
    options: Options
    seed: int

    @property
    def data(self) -> str:
        return self.options.data

    @property
    def is_recorded(self) -> bool:
        """Whether the test of this seed was scored for the record."""
        return self.data == TEST and self.seed in self.spec.recorded_values

    @property
    def folder(self) -> Path:
        """The folder of the runs."""
        return self.options.get_folder(self.spec.runs_of or self.spec.name)

    @property
    def name(self) -> str:
        """The run; with a training set of its own if data must be held out from it."""
        own = self.options.heldout and (not self.spec.valid or bool(self.options.overrides))
        return f"seed-{self.seed}{self.suffix if own else ''}"

    @property
    def suffix(self) -> str:
        """Held-out results have files of their own, one for each choice of overrides."""
        words = " ".join(self.options.overrides)
        chosen = f"-{hashlib.sha256(words.encode()).hexdigest()[:8]}" if words else ""
        return f"-heldout{chosen}" if self.options.heldout else ""

    @property
    def path(self) -> Path:
        return self.options.get_folder(self.spec.name) / f"seed-{self.seed}{self.suffix}.json"

    @property
    def settings(self) -> dict[str, Any]:
        """What the score depends on, beside the code."""
        return {**self.spec.model_dump(mode="json", include=SCORED_KEYS), "overrides": list(self.options.overrides)}

    def read(self) -> SeedResult | None:
        """Return the result of an earlier start; raises a SaccadeError if it was measured with other settings."""
        if not self.path.is_file():
            return None
        try:
            result = SeedResult(**json.loads(self.path.read_text(encoding="utf-8")))
        except (ValueError, TypeError):
            raise SaccadeError(f"'{self.path}' is damaged; remove it, or choose another --out DIR") from None
        for key, value in self.settings.items():
            if (before := result.settings.get(key)) != value:
                raise SaccadeError(
                    f"seed {self.seed} of {self.spec.name} was scored with {key} = {before}, now it is {value}; a test "
                    "set is scored once per seed with settings fixed before: choose another --out DIR"
                )
        return result

    def measure(self, *, times_scored: int) -> SeedResult:
        """Train, score and save the result; a training that diverges is a result too."""
        spec = self.spec
        for folder in (self.folder, self.path.parent):
            folder.mkdir(parents=True, exist_ok=True)
        prepare_files(spec, self.options.data_folder, self.folder, trial=self.data == TRIAL)
        scores, diverged, runs = dict[str, Score](), "", list[Path]()
        try:
            stages = self.run_stages(runs)
            predictor = self.train(runs, stages)
            scores = self.score(predictor, runs[-1], stages)
        except Diverged as error:
            diverged = str(error)
        logs = {run: read_metrics(run / METRICS) for run in runs}
        seconds = sum(max((line.get("seconds", 0.0) for line in lines), default=0.0) for lines in logs.values())
        result = SeedResult(
            seed=self.seed,
            data=self.data,
            scores={} if self.data == TRIAL else {name: score.value for name, score in scores.items()},
            signatures={name: score.signature for name, score in scores.items()},
            settings=self.settings,
            minutes=round(seconds / 60, 3),
            steps=max((line["step"] for line in logs[runs[-1]]), default=0),
            parameters=0 if diverged else count_parameters(runs[-1] / WEIGHTS),
            hardware=get_hardware(),
            commit=get_commit(),
            date=date.today().isoformat(),
            times_scored=times_scored,
            diverged=diverged,
        )
        atomic_write(self.path, (json.dumps(asdict(result), indent=1) + "\n").encode())
        return result

    def run_stages(self, runs: list[Path]) -> Mapping[str, Path]:
        """Train or predict what the model starts from; the folders of runs are appended to `runs`."""
        stages = dict[str, Path]()
        for stage in self.spec.before:
            stages[stage.name] = self.run_stage(stage, stages, runs)
        return stages

    def train(self, runs: list[Path], stages: Mapping[str, Path]) -> Predictor:
        """Train the model; of several choices keep the best on the validation data.

        The folders of all runs are appended to `runs`, that of the model last.
        """
        trained = []
        for number, choice in enumerate(self.spec.choices or ((),), 1):
            runs.append(self.folder / (f"{self.name}-choice-{number}" if self.spec.choices else self.name))
            recipe = self.build_recipe(choice, stages)
            check_same_settings(recipe, runs[-1])
            trained.append((train_or_load(recipe, runs[-1]), runs[-1]))
        if len(trained) > 1:
            metric = trained[0][0].recipe.train.metric
            sign = -1 if is_lower_better(metric) else 1
            trained.sort(key=lambda item: sign * read_validation(item[1], metric))
        predictor, run = trained[-1]
        runs.append(run)
        return predictor

    def build_recipe(self, choice: Sequence[str], stages: Mapping[str, Path]) -> Recipe:
        """Return the recipe of this seed with its files."""
        spec, heldout = self.spec, self.options.heldout
        settings = [*spec.settings, *choice, *self.options.overrides, f"train.seed={self.seed}"]
        files, valid = spec.train, spec.valid
        if heldout and spec.heldout_test:
            files = spec.heldout_train
        elif heldout and not valid:  # one validation, of the last weights, scores them
            settings += [f"data.valid={spec.heldout_share}", f"train.metric={spec.metric}"]
            settings += [f"train.valid_predictions={ALL_EXAMPLES}", f"train.valid_every={ALL_EXAMPLES}"]
        return self._build(spec.recipe, files, valid, insert_paths(settings, stages), stages)

    def run_stage(self, stage: Stage, stages: Mapping[str, Path], runs: list[Path]) -> Path:
        """Train a model that the result starts from, or predict with it; return the path of the run or the outputs."""
        path = self.folder / f"seed-{self.seed}-{stage.name}"
        if stage.recipe:
            corpora = (stage.train or self.spec.train, stage.valid or self.spec.valid)
            recipe = self._build(stage.recipe, *corpora, [*stage.settings, f"train.seed={self.seed}"], stages)
            runs.append(path)
            check_same_settings(recipe, path)
            train_or_load(recipe, path)
            return path
        path = path.with_suffix(".txt")
        if not path.is_file():
            predictor = Predictor.load(stages[stage.predict])
            [corpus] = self.resolve([Corpus(files=(stage.input,))], stages)
            decoding = override(predictor.recipe, [f"predict.{word}" for word in stage.settings]).predict
            lines = islice(read_lines(corpus.files[0]), TRIAL_PREDICTED if self.data == TRIAL else None)
            outputs = predictor.predict(list(lines), decoding=decoding)
            atomic_write(path, "".join(f"{text}\n" for text in outputs).encode())
        return path

    def _build(
        self,
        name: str,
        train: Sequence[Corpus],
        valid: Sequence[Corpus],
        settings: Sequence[str],
        stages: Mapping[str, Path],
    ) -> Recipe:
        files = [self.resolve(corpora, stages) or None for corpora in (train, valid)]
        form = {"tiny": self.spec.tiny, "paper": False}
        recipe = build_recipe(name, data=files[0], valid=files[1], overrides=settings, form=form)
        if self.options.trial_steps is None:
            return recipe
        short = shorten_training(recipe, self.options.trial_steps)
        if not short.task.learns_from_documents or not isinstance(short.data.valid, tuple):
            return short
        excerpts = tuple(write_excerpt(one, self.folder, unit=short.data.documents) for one in short.data.valid)
        return short.model_copy(update={"data": short.data.model_copy(update={"valid": excerpts})})

    def resolve(self, corpora: Sequence[Corpus], stages: Mapping[str, Path]) -> list[Corpus]:
        found = resolve_corpora(corpora, self.options.data_folder, self.folder, stages)
        if self.data != TRIAL:
            return found
        predicted = {str(path) for path in stages.values()}
        return [limit_examples(one, TRIAL_PREDICTED) if predicted & set(one.files) else one for one in found]

    def score(self, predictor: Predictor, run: Path, stages: Mapping[str, Path]) -> dict[str, Score]:
        """Score the test, or what is held out; a trial scores a few examples, whose scores are not kept."""
        spec, heldout = self.spec, self.options.heldout
        if heldout and not (spec.heldout_test or spec.valid):
            return {spec.metric: Score(read_validation(run, spec.metric), "last validation, greedy decoding")}
        corpora = self.resolve((spec.heldout_test or spec.valid) if heldout else spec.test, {})
        if self.data == TRIAL:
            corpora = [limit_examples(one, TRIAL_SCORED) for one in corpora]
            recipe = predictor.recipe
            if recipe.task.learns_from_documents:
                corpora = [write_excerpt(one, self.folder, unit=recipe.data.documents) for one in corpora]
        words = insert_paths(spec.decoding, stages)
        decoding = override(predictor.recipe, [f"predict.{word}" for word in words]).predict
        names = [spec.metric, *spec.metrics]
        scores = score_corpora(predictor, corpora, names, lowercase=spec.lowercase, decoding=decoding)
        missing = [name for name in names if name not in scores]
        if missing:
            raise SaccadeError(
                f"{spec.name}: this model has no metric '{missing[0]}', only {', '.join(scores)}; correct `metric`"
            )
        return {name: scores[name] for name in names}


def insert_paths(settings: Sequence[str], stages: Mapping[str, Path]) -> list[str]:
    """Replace {stage} in settings by the path of its run."""
    found = list(settings)
    for name, path in stages.items():
        found = [word.replace(f"{{{name}}}", str(path)) for word in found]
    return found


def limit_examples(corpus: Corpus, most: int) -> Corpus:
    return corpus.model_copy(update={"examples": min(corpus.examples or most, most)})


def write_excerpt(corpus: Corpus, folder: Path, *, unit: str) -> Corpus:
    """Write the first characters of the documents of a corpus to a file of this folder, and return it as a corpus."""
    rows = [json.dumps({"text": text[:TRIAL_CHARACTERS]}) for _, text in read_documents(corpus, unit=unit)]
    path = folder / f"excerpt-{hashlib.sha256(corpus.dump_key().encode()).hexdigest()[:8]}.jsonl"
    atomic_write(path, "".join(f"{row}\n" for row in rows).encode())
    return Corpus(files=(str(path),))


def shorten_training(recipe: Recipe, steps: int) -> Recipe:
    """Return the recipe with few steps and small batches, without compiling; few examples are validated."""
    tokens = max(recipe.data.max_length, recipe.train.batch_tokens // TRIAL_BATCHES)
    limits = [f"train.{key}={steps}" for key in ("steps", "valid_every", "save_every", "report_every")]
    words = [*limits, "train.epochs=none", "train.compile=false", "train.accumulate=1", f"train.batch_tokens={tokens}"]
    words += [f"data.valid.{number}.examples={TRIAL_SCORED}" for number in range(len(recipe.data.valid_corpora))]
    documents = recipe.data.train if recipe.task.learns_from_documents else ()
    words += [f"data.train.{number}.examples={TRIAL_DOCUMENTS}" for number in range(len(documents))]
    return override(recipe, words)


def score_corpora(
    predictor: Predictor, corpora: Sequence[Corpus], names: Sequence[str], *, lowercase: bool, decoding: Decoding
) -> dict[str, Score]:
    """Evaluate as the task does; metrics that only the task knows, such as the loss, are among its default ones."""
    kind, kinds = predictor.recipe.writer.label_kind, predictor.recipe.kinds
    chosen = names if all(find_metric(n, kind, kinds) if kind else find_metrics(n, kinds) for n in names) else None
    result = evaluate_corpora(predictor, corpora, metrics=chosen, lowercase=lowercase, decoding=decoding)
    scores = dict[str, Score]()
    for name, found in result.to_dict()["scores"].items():
        details = found if isinstance(found, dict) else {"value": found}
        scores[name] = Score(details["value"] or 0.0, details.get("signature", ""))
    return scores


def read_validation(run: Path, metric: str) -> float:
    """Return the validation score of the weights in use."""
    value = get_validation_score(read_metrics(run / METRICS), metric)
    if value is None:
        raise SaccadeError(f"'{run}' has no validation score '{metric}'; give the result data to validate on")
    return value


def is_lower_better(metric: str) -> bool:
    """Whether smaller values of a metric are better; those of a task that are no metric objects are losses."""
    return not any(found.higher_is_better for found in find_metrics(metric))
