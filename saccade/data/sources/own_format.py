"""Read files in a format of the user's own: a function from the path of a file to records, {column: value}."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from saccade.config.schema import Corpus
from saccade.data.sources.bad_rows import BadRowError, OnBadRow, raise_error
from saccade.data.sources.lines import build_missing_file_error
from saccade.errors import SaccadeError


def read_own_records(corpus: Corpus, *, on_bad_row: OnBadRow = raise_error) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the records of a corpus with a `format`, numbered from 1."""
    assert corpus.format is not None, "only a corpus with a format has records of its own"
    kind, path = corpus.format.kind, Path(corpus.files[0])
    if len(corpus.files) != 1:
        raise SaccadeError(f"a corpus of the format '{kind}' is one file, got {' and '.join(corpus.files)}")
    if not path.exists():
        raise build_missing_file_error(path)
    number = 0
    for number, record in enumerate(corpus.format.make(path), start=1):
        if not isinstance(record, dict):
            got = type(record).__name__
            reason = f"the format '{kind}' must yield records {{column: value}}, got {got}"
            on_bad_row(BadRowError(f"{path}:{number}", reason))
            continue
        yield number, record
    if not number:
        raise SaccadeError(f"{path} is empty; expected at least one record of the format '{kind}'")


def inherit_format(corpus: Corpus, first: Corpus) -> Corpus:
    """Give a corpus the format of the first corpus, if both are single files whose names end alike."""
    alike = len(corpus.files) == 1 and Path(corpus.files[0]).suffix == Path(first.files[0]).suffix
    if corpus.format is not None or first.format is None or not alike:
        return corpus
    return corpus.model_copy(update={"format": first.format, "columns": corpus.columns or first.columns})
