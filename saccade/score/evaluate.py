"""Scores and speed of a predictor on pairs, and scores of any two files."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from saccade.config.schema import Corpus, Decoding
from saccade.data.documents import read_documents
from saccade.data.sources import PREFIX, read_lines, read_pairs
from saccade.errors import SaccadeError
from saccade.predict.language import LanguageModel
from saccade.predict.predictor import Predictor
from saccade.score.accuracy import exact_match
from saccade.score.bleu import METRICS, Score, check_pairs, corpus_scores
from saccade.score.gleu import mean_gleu
from saccade.score.perplexity import TextEvaluation, measure

ALL = (*METRICS, "gleu", "accuracy")


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

    def to_dict(self) -> dict[str, Any]:
        """For JSON: everything but the outputs themselves."""
        return {
            "sentences": self.sentences,
            "scores": {name: asdict(score) for name, score in self.scores.items()},
            **({} if self.speed is None else {"speed": asdict(self.speed)}),
        }

    def rows(self) -> list[tuple[str, str, str]]:
        """For a table: name, value, and how it was measured."""
        return [(name, f"{score.value:.2f}", score.signature) for name, score in self.scores.items()]

    def summary(self) -> str:
        if self.speed is None:
            return f"{self.sentences:,} sentences"
        speed = self.speed
        return (
            f"{self.sentences:,} sentences in {speed.seconds:.1f} s: "
            f"{speed.sentences_per_second:,.1f} sentences/s, {speed.tokens_per_second:,.0f} tokens/s"
        )


def evaluate_corpora(
    predictor: Predictor,
    corpora: Sequence[Corpus],
    *,
    metrics: Sequence[str] = ALL,
    lowercase: bool = False,
    decoding: Decoding | None = None,
    made: int | None = None,
) -> Evaluation | TextEvaluation:
    """Outputs for pairs scored against the targets; of a language model, how well it predicts documents.

    `made` is how much is taken of embedded data that does not say it itself.
    """
    if isinstance(predictor, LanguageModel):
        kind = predictor.recipe.data.documents
        parts = (islice(read_documents(corpus, documents=kind), most_of(corpus, made)) for corpus in corpora)
        return measure(predictor, (text for part in parts for _, text in part))
    pairs = pairs_of(corpora, made=made)
    return evaluate(predictor, pairs, metrics=metrics, lowercase=lowercase, decoding=decoding)


def pairs_of(corpora: Sequence[Corpus], *, made: int | None = None) -> list[tuple[str, str]]:
    return [pair for corpus in corpora for pair in islice(read_pairs(corpus), most_of(corpus, made))]


def most_of(corpus: Corpus, made: int | None) -> int | None:
    return made if corpus.files[0].startswith(PREFIX) and corpus.examples is None else None


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
    begin = time.perf_counter()
    outputs = [found[0] for found in predictor.candidates([source for source, _ in pairs], decoding=decoding)]
    seconds = time.perf_counter() - begin
    tokens = sum(len(output.ids) + 1 for output in outputs)
    hypotheses = [output.text for output in outputs]
    scores = score_texts(hypotheses, [target for _, target in pairs], metrics=metrics, lowercase=lowercase)
    speed = Speed(seconds, len(pairs) / seconds, tokens / seconds)
    return Evaluation(scores, len(pairs), hypotheses, speed)


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
    return {name: scores[name] for name in metrics}


def check_metrics(metrics: Sequence[str]) -> None:
    """Before the work, not after it."""
    for name in metrics:
        if name not in ALL:
            raise SaccadeError(f"unknown metric '{name}'; expected one of {', '.join(ALL)}")
