"""Evaluate runs that read pictures or sound."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from saccade.config.metric import (
    CAPTIONS,
    ERROR_RATES,
    TEXT,
    find_metrics,
    format_expected,
    get_metrics,
    list_default_names,
    list_names,
)
from saccade.config.plugins import Kinds
from saccade.config.schema import Corpus, Decoding, MediaReader, Recipe
from saccade.data.sources.pairs import limit_embedded_examples
from saccade.data.store.media import MediaSource
from saccade.data.tokenization.text_pairs import join_texts
from saccade.errors import SaccadeError
from saccade.predict.predictors.predictor import Predictor
from saccade.score.evaluate import Evaluation, EvaluationOptions, evaluate, predict_timed
from saccade.score.metrics.captions import CAPTION_METRICS, caption_scores

CAPTION_COMPARISON_METRIC = "bleu-4"  # compares runs by all references of a picture


def read_media_pairs(
    corpora: Sequence[Corpus], reader: MediaReader, *, target_column: str, synthetic_count: int | None = None
) -> list[tuple[str, str]]:
    """Return pairs of a file, joined with its question if there is one, and one of its targets.

    `synthetic_count` is the number of examples of embedded data that have no size of their own.
    """
    rows = (
        row
        for corpus in limit_embedded_examples(corpora, synthetic_count)
        for row in MediaSource(corpus, reader.file_reader, target_column, reader.has_question).iter_rows()
    )
    return [(join_texts(given), text) for _, *given, text in rows if text.strip()]


def filter_readable(
    predictors: Iterable[Predictor], pairs: Sequence[tuple[str, str]]
) -> tuple[list[tuple[str, str]], tuple[str, ...]]:
    """Return the pairs whose files all predictors can read, and messages about the others."""
    broken, kept = dict[str, str](), list(pairs)
    for predictor in predictors:
        broken |= predictor.find_unreadable(dict.fromkeys(path for path, _ in kept))
        kept = [pair for pair in kept if pair[0] not in broken]
        if pairs and not kept:
            raise SaccadeError(f"no {predictor.medium} can be read: {next(iter(broken.values()))}")
    return kept, tuple(broken.values())


def group_by_file(pairs: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    """Group all targets of each file."""
    targets: dict[str, list[str]] = {}
    for path, text in pairs:
        targets.setdefault(path, []).append(text)
    return targets


def get_default_metrics(recipe: Recipe, reader: MediaReader) -> tuple[str, ...]:
    """Return the metrics for answers, captions or transcriptions if none are given.

    A character tokenizer means text recognition, for which word n-grams are not informative.
    """
    if reader.has_question:
        return ("accuracy",)
    if reader.medium == "sound":
        return (*ERROR_RATES, "accuracy")
    return ("accuracy", "cer") if recipe.tokenizer.is_spelled else list_default_names(CAPTIONS, recipe.kinds)


def uses_all_references(metrics: Sequence[str], kinds: Kinds) -> bool:
    """Whether one of the metrics needs all references of a file; refuses unknown ones, and others that need one."""
    multi, single = list[str](), list[str]()
    for name in metrics:
        scored = {kind for metric in find_metrics(name, kinds) for kind in metric.outputs} & {TEXT, CAPTIONS}
        if not scored:
            known = dict.fromkeys((*list_names(TEXT, kinds), *list_names(CAPTIONS, kinds)))
            raise SaccadeError(f"unknown metric '{name}'{format_expected(name, [*known], kinds)}")
        multi += [name] if scored == {CAPTIONS} else []
        single += [name] if scored == {TEXT} else []
    if multi and single:
        raise SaccadeError(
            f"{multi[0]} uses all references of a file, {single[0]} only one; ask for one kind of metric at a time"
        )
    return bool(multi)


def get_comparison_metrics(recipe: Recipe, reader: MediaReader) -> tuple[str, ...]:
    """Return the columns of a comparison: for sound, for text in pictures, or for captions and answers."""
    if reader.medium == "sound":
        return (*ERROR_RATES, "accuracy")
    metrics = CAPTION_METRICS if reader.has_question else get_default_metrics(recipe, reader)
    return (CAPTION_COMPARISON_METRIC, "cider", "accuracy") if CAPTION_COMPARISON_METRIC in metrics else metrics


def evaluate_media(predictor: Predictor, pairs: Sequence[tuple[str, str]], options: EvaluationOptions) -> Evaluation:
    """Evaluate transcriptions, captions or answers; all targets of a file are references.

    Files that cannot be read are skipped and reported.
    """
    media, lowercase, decoding = predictor.recipe.reader.media, options.lowercase, options.decoding
    assert media is not None, "the task says so"
    pairs, skipped = filter_readable([predictor], pairs)
    metrics = options.metrics or get_default_metrics(predictor.recipe, media)
    kinds = predictor.recipe.kinds
    if not uses_all_references(metrics, kinds) and not media.has_question:
        evaluation = evaluate(predictor, pairs, metrics=metrics, lowercase=lowercase, decoding=decoding, kinds=kinds)
    else:
        evaluation = evaluate_captions(predictor, pairs, metrics, lowercase=lowercase, decoding=decoding)
    return replace(evaluation, left_out=skipped, counted=media.unit)


def evaluate_captions(
    predictor: Predictor,
    pairs: Sequence[tuple[str, str]],
    metrics: Sequence[str],
    *,
    lowercase: bool = False,
    decoding: Decoding | None = None,
) -> Evaluation:
    """Predict one output per file and score it against all targets of the file."""
    if not pairs:
        raise SaccadeError("there is nothing to evaluate: no files with texts were given; is the folder empty?")
    kinds, references = predictor.recipe.kinds, group_by_file(pairs)
    get_metrics(metrics, CAPTIONS, kinds)  # refuses an unknown one before any work is done
    timed = predict_timed(predictor, [*references], decoding)
    sources, right = [*references], [*references.values()]
    scores = caption_scores(timed[0], right, metrics, lowercase=lowercase, sources=sources, kinds=kinds)
    return Evaluation(scores, len(references), *timed, kinds=kinds)
