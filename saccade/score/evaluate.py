"""Scores and speed of a predictor on pairs, and scores of any two files."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from saccade.config.schema import Corpus, Decoding
from saccade.data.sources.pairs import read_lines, taken
from saccade.errors import SaccadeError
from saccade.predict.outputs import cut_lengths
from saccade.predict.predictors.encoder import Encoder
from saccade.predict.predictors.labels import Labeller
from saccade.predict.predictors.language import LanguageModel
from saccade.predict.predictors.media import OfMedia
from saccade.predict.predictors.media_encoder import MediaEncoder
from saccade.predict.predictors.player import Player
from saccade.predict.predictors.predictor import Predictor
from saccade.predict.predictors.restoring import Restorer
from saccade.predict.predictors.walking import Walker
from saccade.score.accuracy import exact_match
from saccade.score.bleu import METRICS, Score, check_pairs, corpus_scores
from saccade.score.captions import BLEUS, CAPTIONS, caption_scores
from saccade.score.errors import ERRORS, error_rate
from saccade.score.gleu import mean_gleu
from saccade.score.labels import LabelEvaluation, counts_of, label_scores
from saccade.score.left_out import told_of
from saccade.score.media import by_file, check_together, counted_of, metrics_of, readable
from saccade.score.pairs import documents_of, labelled_pairs, pairs_for, pairs_of
from saccade.score.patches import PatchEvaluation, measure_patches
from saccade.score.perplexity import TextEvaluation, measure
from saccade.score.playing import PlayedEvaluation, evaluate_playing
from saccade.score.routes import route_scores
from saccade.score.spans import SpanEvaluation, measure_spans
from saccade.score.written import check_written, written_scores

ALL = (*METRICS, "gleu", "accuracy")  # where nobody says which
KNOWN = (*ALL, *ERRORS)
OF_CAPTIONS = (*BLEUS, "cider")  # which know several references
TOP = 5  # classes of a picture among which the right one may be


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


Found = Evaluation | TextEvaluation | LabelEvaluation | SpanEvaluation | PatchEvaluation | PlayedEvaluation


def evaluate_corpora(
    predictor: Predictor,
    corpora: Sequence[Corpus],
    *,
    metrics: Sequence[str] | None = None,
    lowercase: bool = False,
    decoding: Decoding | None = None,
    made: int | None = None,
    keep: bool = False,
) -> Found:
    """Outputs for pairs scored against the targets; of a language model, how well it predicts documents; or labels.

    `made` is how much is taken of embedded data that does not say it itself; `keep` keeps the values of all tokens.
    """
    check_asked(predictor, metrics, lowercase=lowercase)
    recipe = predictor.recipe
    match predictor:
        case MediaEncoder():
            return measure_patches(predictor, corpora, made=made)
        case LanguageModel() if metrics is not None:
            return evaluate_written(predictor, corpora, metrics, decoding=decoding, made=made)
        case LanguageModel() | Encoder():
            return measure(predictor, documents_of(recipe, corpora, made=made), keep=keep)
        case Restorer():
            return measure_spans(predictor, taken(corpora, made))
        case Player():
            return evaluate_playing(predictor, corpora)
        case OfMedia():
            pairs = pairs_for(recipe, corpora, made=made)
            return evaluate_media(predictor, pairs, metrics=metrics, lowercase=lowercase, decoding=decoding)
        case Labeller():
            return evaluate_labels(predictor, labelled_pairs(corpora, kind=predictor.labels.kind, made=made))
        case Walker():
            return evaluate_routes(predictor, pairs_for(recipe, corpora, made=made), decoding=decoding)
    pairs = pairs_of(corpora, made=made)
    return evaluate(predictor, pairs, metrics=metrics or ALL, lowercase=lowercase, decoding=decoding)


def check_asked(predictor: Predictor, metrics: Sequence[str] | None, *, lowercase: bool) -> None:
    """Refuses metrics and ignored case where a model is measured in one way only."""
    if metrics is None and not lowercase:
        return
    if isinstance(predictor, LanguageModel) and not lowercase:
        check_written(metrics or ())
    elif isinstance(predictor, LanguageModel | Encoder):
        raise SaccadeError(
            "such a model is measured by the probability of a text, so that --metrics and --lowercase say "
            "nothing; leave them out, or give tasks with --template"
        )
    elif isinstance(predictor, Labeller) and not predictor.fields:
        raise SaccadeError(
            "labels are measured in one way, so that --metrics and --lowercase say nothing; leave them out"
        )
    elif isinstance(predictor, Player):
        raise SaccadeError("what is done has no words: --metrics and --lowercase say nothing; leave them out")


def evaluate_written(
    model: LanguageModel,
    corpora: Sequence[Corpus],
    metrics: Sequence[str],
    *,
    decoding: Decoding | None = None,
    made: int | None = None,
) -> Evaluation:
    """Metrics of a language model that were asked for by their names."""
    texts = list(documents_of(model.recipe, corpora, made=made))
    return Evaluation(written_scores(model, texts, metrics, decoding=decoding), len(texts), [])


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


def evaluate_routes(
    predictor: Walker, pairs: Sequence[tuple[str, str]], *, decoding: Decoding | None = None
) -> Evaluation:
    """Walks every route and looks where that ends."""
    sources, references = [source for source, _ in pairs], [actions for _, actions in pairs]
    made = timed_outputs(predictor, sources, decoding)
    return Evaluation(route_scores(sources, made[0], references), len(pairs), *made, counted="routes")


def evaluate_media(
    predictor: OfMedia,
    pairs: Sequence[tuple[str, str]],
    *,
    metrics: Sequence[str] | None,
    lowercase: bool,
    decoding: Decoding | None,
) -> Evaluation | LabelEvaluation:
    """Labels of files, texts about sound, or captions and answers: all that is said of one picture is a reference.

    Files that cannot be read are left out, and told.
    """
    media, (pairs, left) = predictor.media, readable([predictor], pairs)
    if isinstance(predictor, Labeller) and not media.asks:
        return replace(evaluate_labels(predictor, pairs), left_out=left)
    chosen = metrics or metrics_of(predictor.recipe, media)
    check_metrics(chosen, known=(*KNOWN, *OF_CAPTIONS))
    check_together(chosen)
    if not set(chosen) & set(OF_CAPTIONS) and not media.asks:
        found = evaluate(predictor, pairs, metrics=chosen, lowercase=lowercase, decoding=decoding)
    else:
        found = evaluate_captions(predictor, pairs, chosen, lowercase=lowercase, decoding=decoding)
    return replace(found, left_out=left, counted=counted_of(media))


def evaluate_captions(
    predictor: Predictor,
    pairs: Sequence[tuple[str, str]],
    metrics: Sequence[str],
    *,
    lowercase: bool = False,
    decoding: Decoding | None = None,
) -> Evaluation:
    """Describes every picture once, and scores that against all that is said of it."""
    if not pairs:
        raise SaccadeError("there is nothing to evaluate: no files with texts were given; is the folder empty?")
    check_metrics(metrics, known=CAPTIONS)
    said = by_file(pairs)
    made = timed_outputs(predictor, [*said], decoding)
    scores = caption_scores(made[0], [*said.values()], metrics, lowercase=lowercase)
    return Evaluation(scores, len(said), *made)


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


def evaluate_labels(predictor: Labeller, pairs: Sequence[tuple[str, str]]) -> LabelEvaluation:
    """Labels every text and compares; an answer that no question of the training data has is wrong, and no mistake."""
    counted = counted_of(predictor.media) if isinstance(predictor, OfMedia) else "texts"
    if not pairs:
        raise SaccadeError(f"there is nothing to evaluate: no {counted} with labels were given; is the file empty?")
    labels, references = predictor.labels, [label for _, label in pairs]
    names = tuple(dict.fromkeys((*labels.names, *references))) if predictor.fields else labels.names
    for number, label in enumerate(() if predictor.fields else references, start=1):
        try:
            labels.encode(label)
        except SaccadeError as error:
            raise SaccadeError(f"{counted.removesuffix('s')} {number}: {error}") from None
    several, begin = predictor.recipe.predict.model_copy(update={"n_best": TOP, "beam": TOP}), time.perf_counter()
    found = predictor.candidates([text for text, _ in pairs], decoding=several)
    seconds = time.perf_counter() - begin
    said = [outputs[0].text for outputs in found]
    scores = label_scores(labels.kind, said, references)
    if isinstance(predictor, OfMedia) and labels.size > TOP:
        among = [label in {one.text for one in outputs} for label, outputs in zip(references, found, strict=True)]
        scores["top-5"] = Score(100 * sum(among) / len(among), f"share of labels among the best {TOP}")
    counts = counts_of(labels.kind, said, references, names).tolist() if names else []
    return LabelEvaluation(scores, len(pairs), said, names, counts, seconds, counted=counted)


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
