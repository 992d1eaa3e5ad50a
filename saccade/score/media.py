"""What runs that read pictures or sound are measured on."""

from collections.abc import Sequence

from saccade.config.schema import Corpus, FrameReader, MediaReader
from saccade.data.media_sources import read_media
from saccade.data.sources import PREFIX
from saccade.score.captions import CAPTIONS
from saccade.score.errors import ERRORS


def media_pairs(
    corpora: Sequence[Corpus], reader: MediaReader, *, wanted: str, made: int | None = None
) -> list[tuple[str, str]]:
    """Files and what is said of them, a pair for each; `made` is how many of embedded data that does not say it."""
    chosen = [
        corpus.model_copy(update={"examples": made})
        if corpus.files[0].startswith(PREFIX) and corpus.examples is None
        else corpus
        for corpus in corpora
    ]
    rows = (row for corpus in chosen for row in read_media(corpus, medium=reader.medium, wanted=wanted))
    return [(path, text) for _, path, text in rows if text.strip()]


def metrics_of(reader: MediaReader) -> tuple[str, ...]:
    """What is measured of texts about pictures, or about sound, where nobody says which."""
    return (*ERRORS, "accuracy") if isinstance(reader, FrameReader) else CAPTIONS
