"""Evaluate a predictor on pairs, with scores and speed, or the lines of two files."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from saccade.config.metric import TEXT, Predictions, Score, get_metrics, list_default_names
from saccade.config.plugins import Kinds
from saccade.config.schema import Corpus, Decoding
from saccade.data.sources.pairs import read_lines
from saccade.errors import SaccadeError
from saccade.predict.outputs import get_truncated_lengths
from saccade.predict.predictors.predictor import Predictor
from saccade.score.metrics.bleu import check_pairs
from saccade.score.result import Result, ScoreTable, format_scores
from saccade.score.skipped_files import format_skipped_files


@dataclass(frozen=True)
class Speed:
    """Throughput from input text to output text, tokenization included."""

    seconds: float
    sentences_per_second: float
    tokens_per_second: float  # generated tokens, END included


@dataclass(frozen=True)
class Evaluation(ScoreTable):
    """Scores of outputs against references."""

    scores: dict[str, Score]
    sentences: int
    hypotheses: list[str]
    speed: Speed | None = None  # None if outputs were read from a file
    truncated_lengths: tuple[int, ...] = ()  # tokens of each output that was truncated at its limit
    left_out: tuple[str, ...] = ()  # messages about files that could not be read
    counted: str = "sentences"  # noun for the examples, in summaries
    kinds: Kinds | None = None  # the user's own metrics

    def to_dict(self) -> dict[str, Any]:
        """Return all but the outputs, for JSON."""
        return {
            "sentences": self.sentences,
            "scores": {name: score.to_dict() for name, score in self.scores.items()},
            **({} if self.speed is None else {"speed": asdict(self.speed)}),
            **({"cut": len(self.truncated_lengths)} if self.truncated_lengths else {}),
            **({"left_out": self.left_out} if self.left_out else {}),
        }

    @property
    def outputs_per_second(self) -> float:
        return self.speed.sentences_per_second if self.speed else 0.0

    def rows(self) -> list[tuple[str, str, str]]:
        """Return name, value and signature of each score, for a table."""
        return format_scores(self.scores, self.kinds)

    def summary(self) -> str:
        """Return the number of examples and the speed as a sentence."""
        count = f"{self.sentences:,} {self.counted}"
        if (speed := self.speed) is None:
            return count
        return (
            f"{count} in {speed.seconds:.1f} s: {speed.sentences_per_second:,.1f} {self.counted}/s, "
            f"{speed.tokens_per_second:,.0f} tokens/s{format_skipped_files(self.left_out)}"
        )


@dataclass(frozen=True)
class EvaluationOptions:
    """Options of `saccade evaluate`; None stands for the default of the recipe or task."""

    metrics: Sequence[str] | None = None
    lowercase: bool = False
    decoding: Decoding | None = None
    synthetic_count: int | None = None  # examples taken of embedded data that have no size of their own
    keep_token_scores: bool = False  # whether the log-probabilities of all tokens are kept


def evaluate_corpora(
    predictor: Predictor,
    corpora: Sequence[Corpus],
    *,
    metrics: Sequence[str] | None = None,
    lowercase: bool = False,
    decoding: Decoding | None = None,
    synthetic_count: int | None = None,
    keep_token_scores: bool = False,
) -> Result:
    """Evaluate a model on corpora as its task does; keywords as in EvaluationOptions."""
    options = EvaluationOptions(metrics, lowercase, decoding, synthetic_count, keep_token_scores)
    return predictor.recipe.task.evaluate(predictor, corpora, options)


def evaluate(
    predictor: Predictor,
    pairs: Sequence[tuple[str, str]],
    *,
    metrics: Sequence[str] | None = None,
    lowercase: bool = False,
    decoding: Decoding | None = None,
    kinds: Kinds | None = None,
) -> Evaluation:
    """Predict an output for every source and score it against the target; `kinds` have the user's own metrics."""
    if not pairs:
        raise SaccadeError("there is nothing to evaluate: no pairs were given; is the file empty?")
    names = metrics or list_default_names(TEXT, kinds)
    get_metrics(names, TEXT, kinds)  # refuses an unknown one before any work is done
    sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
    timed = predict_timed(predictor, sources, decoding)
    scores = score_texts(timed[0], targets, metrics=names, lowercase=lowercase, sources=sources, kinds=kinds)
    return Evaluation(scores, len(pairs), *timed, kinds=kinds)


def predict_timed(
    predictor: Predictor, sources: Sequence[str], decoding: Decoding | None
) -> tuple[list[str], Speed, tuple[int, ...]]:
    """Return the best output for each source, the speed, and the lengths of truncated outputs."""
    begin = time.perf_counter()
    outputs = [hypotheses[0] for hypotheses in predictor.candidates(sources, decoding=decoding)]
    seconds = time.perf_counter() - begin
    tokens = sum(len(output.ids) + 1 for output in outputs)
    speed = Speed(seconds, len(sources) / seconds, tokens / seconds)
    return [output.text for output in outputs], speed, get_truncated_lengths(outputs)


def evaluate_files(
    hypotheses: str | Path,
    references: str | Path,
    *,
    metrics: Sequence[str] | None = None,
    lowercase: bool = False,
    kinds: Kinds | None = None,
) -> Evaluation:
    """Score the lines of one file against those of another."""
    ours, theirs = list(read_lines(hypotheses)), list(read_lines(references))
    if len(ours) != len(theirs):
        raise SaccadeError(
            f"{hypotheses} has {len(ours)} lines and {references} has {len(theirs)}; "
            f"line n of one must belong to line n of the other"
        )
    if not ours:
        raise SaccadeError(f"{hypotheses} and {references} are empty; there is nothing to score")
    scores = score_texts(ours, theirs, metrics=metrics, lowercase=lowercase, kinds=kinds)
    return Evaluation(scores, len(ours), ours, kinds=kinds)


def score_texts(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    metrics: Sequence[str] | None = None,
    lowercase: bool = False,
    sources: Sequence[str] = (),
    kinds: Kinds | None = None,
) -> dict[str, Score]:
    """Compute the given metrics, in that order, or the default ones."""
    found = get_metrics(metrics or list_default_names(TEXT, kinds), TEXT, kinds)
    check_pairs(hypotheses, references)
    predictions = Predictions(hypotheses, references, sources, lowercase=lowercase)
    return {metric.name: metric.score(predictions) for metric in found}
