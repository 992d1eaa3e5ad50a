"""What runs that read pictures or sound are measured on."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from saccade.config.schema import Corpus, Decoding, MediaReader, Recipe
from saccade.data.sources.media import read_media
from saccade.data.sources.pairs import taken
from saccade.data.tokenization.text_pairs import joined
from saccade.errors import SaccadeError
from saccade.predict.predictors.predictor import Predictor
from saccade.score.captions import BLEUS, CAPTIONS, caption_scores
from saccade.score.errors import ERRORS
from saccade.score.evaluate import KNOWN, Evaluation, EvaluationOptions, check_metrics, evaluate, timed_outputs

OF_CAPTIONS = (*BLEUS, "cider")  # which know several references
CAPTION = "bleu-4"  # by which runs are compared with all that is said of a picture


def media_pairs(
    corpora: Sequence[Corpus], reader: MediaReader, *, wanted: str, made: int | None = None
) -> list[tuple[str, str]]:
    """Files, with a question where one is asked, and what is said of them, a pair for each.

    `made` is how many of embedded data that does not say it.
    """
    rows = (
        row
        for corpus in taken(corpora, made)
        for row in read_media(corpus, medium=reader.medium, wanted=wanted, asks=reader.asks)
    )
    return [(joined(given), text) for _, *given, text in rows if text.strip()]


def readable(
    predictors: Iterable[Predictor], pairs: Sequence[tuple[str, str]]
) -> tuple[list[tuple[str, str]], tuple[str, ...]]:
    """The pairs whose files all predictors can read, and what is wrong with the others."""
    broken, whole = dict[str, str](), list(pairs)
    for predictor in predictors:
        broken |= predictor.unreadable(dict.fromkeys(path for path, _ in whole))
        whole = [pair for pair in whole if pair[0] not in broken]
        if pairs and not whole:
            raise SaccadeError(f"no {predictor.medium} can be read: {next(iter(broken.values()))}")
    return whole, tuple(broken.values())


def by_file(pairs: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    """All that is said of each file."""
    said: dict[str, list[str]] = {}
    for path, text in pairs:
        said.setdefault(path, []).append(text)
    return said


def metrics_of(recipe: Recipe, reader: MediaReader) -> tuple[str, ...]:
    """What is measured of answers, of texts about pictures, or about sound, where nobody says which.

    What is spelled letter by letter is the text in a picture, and n-grams of its words say nothing.
    """
    if reader.asks:
        return ("accuracy",)
    if reader.medium == "sound":
        return (*ERRORS, "accuracy")
    return ("accuracy", "cer") if recipe.tokenizer.is_spelled else CAPTIONS


def check_together(metrics: Sequence[str]) -> None:
    """Refuses to compare with one text of a file and with all of them at the same time."""
    of_all = [name for name in metrics if name in CAPTIONS and name != "accuracy"]
    of_one = [name for name in metrics if name not in CAPTIONS]
    if of_all and of_one:
        raise SaccadeError(
            f"{of_all[0]} compares with all that is said of a file, {of_one[0]} with one text; ask for one at a time"
        )


def compared_metrics(recipe: Recipe, reader: MediaReader) -> tuple[str, ...]:
    """The scores of a comparison: of sound, of what is spelled in a picture, or of captions and answers."""
    if reader.medium == "sound":
        return (*ERRORS, "accuracy")
    found = CAPTIONS if reader.asks else metrics_of(recipe, reader)
    return (CAPTION, "cider", "accuracy") if CAPTION in found else found


def evaluate_media(predictor: Predictor, pairs: Sequence[tuple[str, str]], options: EvaluationOptions) -> Evaluation:
    """Texts about sound, or captions and answers: all that is said of one picture is a reference.

    Files that cannot be read are left out, and told.
    """
    media, lowercase, decoding = predictor.recipe.reader.media, options.lowercase, options.decoding
    assert media is not None, "the task says so"
    pairs, left = readable([predictor], pairs)
    chosen = options.metrics or metrics_of(predictor.recipe, media)
    check_metrics(chosen, known=(*KNOWN, *OF_CAPTIONS))
    check_together(chosen)
    if not set(chosen) & set(OF_CAPTIONS) and not media.asks:
        found = evaluate(predictor, pairs, metrics=chosen, lowercase=lowercase, decoding=decoding)
    else:
        found = evaluate_captions(predictor, pairs, chosen, lowercase=lowercase, decoding=decoding)
    return replace(found, left_out=left, counted=media.counted)


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
