"""What runs that read pictures or sound are measured on."""

from collections.abc import Iterable, Sequence

from saccade.config.schema import Corpus, FrameReader, MediaReader, Recipe
from saccade.data.sources.media import read_media
from saccade.data.sources.pairs import taken
from saccade.data.tokenization.text_pairs import joined
from saccade.errors import SaccadeError
from saccade.predict.predictors.media import OfMedia
from saccade.score.captions import CAPTIONS
from saccade.score.errors import ERRORS


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
    predictors: Iterable[OfMedia], pairs: Sequence[tuple[str, str]]
) -> tuple[list[tuple[str, str]], tuple[str, ...]]:
    """The pairs whose files all predictors can read, and what is wrong with the others."""
    broken, whole = dict[str, str](), list(pairs)
    for predictor in predictors:
        broken |= predictor.unreadable(dict.fromkeys(path for path, _ in whole))
        whole = [pair for pair in whole if pair[0] not in broken]
        if pairs and not whole:
            raise SaccadeError(f"no {predictor.reader.medium} can be read: {next(iter(broken.values()))}")
    return whole, tuple(broken.values())


def by_file(pairs: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    """All that is said of each file."""
    said: dict[str, list[str]] = {}
    for path, text in pairs:
        said.setdefault(path, []).append(text)
    return said


def counted_of(reader: MediaReader) -> str:
    """What outputs are counted in: pictures, sounds, or questions about them."""
    return "questions" if reader.asks else f"{reader.medium}s"


def metrics_of(recipe: Recipe, reader: MediaReader) -> tuple[str, ...]:
    """What is measured of answers, of texts about pictures, or about sound, where nobody says which.

    What is spelled letter by letter is the text in a picture, and n-grams of its words say nothing.
    """
    if reader.asks:
        return ("accuracy",)
    if isinstance(reader, FrameReader):
        return (*ERRORS, "accuracy")
    return ("accuracy", "cer") if recipe.tokenizer.kind == "characters" else CAPTIONS


def check_together(metrics: Sequence[str]) -> None:
    """Refuses to compare with one text of a file and with all of them at the same time."""
    of_all = [name for name in metrics if name in CAPTIONS and name != "accuracy"]
    of_one = [name for name in metrics if name not in CAPTIONS]
    if of_all and of_one:
        raise SaccadeError(
            f"{of_all[0]} compares with all that is said of a file, {of_one[0]} with one text; ask for one at a time"
        )
