"""Scores and speed of a predictor on pairs, and scores of any two files."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from saccade.config.schema import Corpus, Decoding
from saccade.data.sources.pairs import read_lines
from saccade.errors import SaccadeError
from saccade.predict.outputs import cut_lengths
from saccade.predict.predictors.predictor import Predictor
from saccade.score.accuracy import exact_match
from saccade.score.bleu import METRICS, Score, check_pairs, corpus_scores
from saccade.score.errors import ERRORS, error_rate
from saccade.score.gleu import mean_gleu
from saccade.score.left_out import told_of
from saccade.score.result import Result

ALL = (*METRICS, "gleu", "accuracy")  # where nobody says which
KNOWN = (*ALL, *ERRORS)


@dataclass(frozen=True)
class Speed:
    """Time from texts to texts, tokenisation included."""

    seconds: float
    sentences_per_second: float
    tokens_per_second: float  # written, END included


@dataclass(frozen=True)
class Evaluation:
    scores: dict[str, Score]
    sentences: int
    hypotheses: list[str]
    speed: Speed | None = None  # where the outputs were made here
    cut: tuple[int, ...] = ()  # tokens of each output that was cut at the most that it may have
    left_out: tuple[str, ...] = ()  # what is wrong with files that could not be read
    counted: str = "sentences"  # what the outputs are about

    def to_dict(self) -> dict[str, Any]:
        """For JSON: everything but the outputs themselves."""
        return {
            "sentences": self.sentences,
            "scores": {name: asdict(score) for name, score in self.scores.items()},
            **({} if self.speed is None else {"speed": asdict(self.speed)}),
            **({"cut": len(self.cut)} if self.cut else {}),
            **({"left_out": self.left_out} if self.left_out else {}),
        }

    @property
    def outputs_per_second(self) -> float:
        return self.speed.sentences_per_second if self.speed else 0.0

    def rows(self) -> list[tuple[str, str, str]]:
        """For a table: name, value, and how it was measured."""
        return [(name, f"{score.value:.2f}", score.signature) for name, score in self.scores.items()]

    def summary(self) -> str:
        count = f"{self.sentences:,} {self.counted}"
        if (speed := self.speed) is None:
            return count
        return (
            f"{count} in {speed.seconds:.1f} s: {speed.sentences_per_second:,.1f} {self.counted}/s, "
            f"{speed.tokens_per_second:,.0f} tokens/s{told_of(self.left_out)}"
        )


@dataclass(frozen=True)
class EvaluationOptions:
    """What `saccade evaluate` was asked; None is what the recipe says, or what the task measures by itself."""

    metrics: Sequence[str] | None = None
    lowercase: bool = False
    decoding: Decoding | None = None
    made: int | None = None  # how much is taken of embedded data that does not say it itself
    keep: bool = False  # whether the values of all tokens are kept


def evaluate_corpora(
    predictor: Predictor,
    corpora: Sequence[Corpus],
    *,
    metrics: Sequence[str] | None = None,
    lowercase: bool = False,
    decoding: Decoding | None = None,
    made: int | None = None,
    keep: bool = False,
) -> Result:
    """What the task of the model measures on these data; the keywords are those of EvaluationOptions."""
    options = EvaluationOptions(metrics, lowercase, decoding, made, keep)
    return predictor.recipe.task.evaluate(predictor, corpora, options)


def evaluate(
    predictor: Predictor,
    pairs: Sequence[tuple[str, str]],
    *,
    metrics: Sequence[str] = ALL,
    lowercase: bool = False,
    decoding: Decoding | None = None,
) -> Evaluation:
    """Predicts every source and scores the outputs against the targets."""
    if not pairs:
        raise SaccadeError("there is nothing to evaluate: no pairs were given; is the file empty?")
    check_metrics(metrics)
    made = timed_outputs(predictor, [source for source, _ in pairs], decoding)
    scores = score_texts(made[0], [target for _, target in pairs], metrics=metrics, lowercase=lowercase)
    return Evaluation(scores, len(pairs), *made)


def timed_outputs(
    predictor: Predictor, sources: Sequence[str], decoding: Decoding | None
) -> tuple[list[str], Speed, tuple[int, ...]]:
    """The best output for each source, how long that took, and the lengths of those that were cut."""
    begin = time.perf_counter()
    outputs = [found[0] for found in predictor.candidates(sources, decoding=decoding)]
    seconds = time.perf_counter() - begin
    tokens = sum(len(output.ids) + 1 for output in outputs)
    speed = Speed(seconds, len(sources) / seconds, tokens / seconds)
    return [output.text for output in outputs], speed, cut_lengths(outputs)


def evaluate_files(
    hypotheses: str | Path, references: str | Path, *, metrics: Sequence[str] = ALL, lowercase: bool = False
) -> Evaluation:
    """Scores the lines of one file against those of another, wherever they come from."""
    ours, theirs = list(read_lines(hypotheses)), list(read_lines(references))
    if len(ours) != len(theirs):
        raise SaccadeError(
            f"{hypotheses} has {len(ours)} lines and {references} has {len(theirs)}; "
            f"line n of one must belong to line n of the other"
        )
    if not ours:
        raise SaccadeError(f"{hypotheses} and {references} are empty; there is nothing to score")
    return Evaluation(score_texts(ours, theirs, metrics=metrics, lowercase=lowercase), len(ours), ours)


def score_texts(
    hypotheses: Sequence[str], references: Sequence[str], *, metrics: Sequence[str] = ALL, lowercase: bool = False
) -> dict[str, Score]:
    """Every metric that was asked for, in that order."""
    check_metrics(metrics)
    check_pairs(hypotheses, references)
    scores = corpus_scores(hypotheses, references, [name for name in metrics if name in METRICS], lowercase=lowercase)
    if "gleu" in metrics:
        scores["gleu"] = mean_gleu(hypotheses, references, lowercase=lowercase)
    if "accuracy" in metrics:
        scores["accuracy"] = exact_match(hypotheses, references, lowercase=lowercase)
    for name in (name for name in metrics if name in ERRORS):
        scores[name] = error_rate(hypotheses, references, unit=name, lowercase=lowercase)
    return {name: scores[name] for name in metrics}


def check_metrics(metrics: Sequence[str], *, known: Sequence[str] = KNOWN) -> None:
    """Before the work, not after it."""
    for name in metrics:
        if name not in known:
            raise SaccadeError(f"unknown metric '{name}'; expected one of {', '.join(known)}")
