"""Corpora as users give them in Python: paths of files, or tables of a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from saccade.config.schema import Corpus
from saccade.config.table import split_names
from saccade.errors import SaccadeError

Files = str | Path | Corpus | Sequence[str | Path] | Sequence[Sequence[str | Path] | Corpus]


def to_corpora(files: Any, columns: Sequence[str] | str | None = None) -> tuple[Corpus, ...]:
    """Convert one file, two line-aligned files, or a list of these to corpora; None are none.

    `columns` are those of each file with columns, as a list or as "source,target".
    """
    if files is None:
        return ()
    check_are_files(files)
    if isinstance(files, str | Path | Corpus):
        files = [files] if isinstance(files, Corpus) else [[files]]
    elif files and all(isinstance(item, str | Path) for item in files):
        files = [files]
    for item in files:
        if not isinstance(item, Corpus) and not 1 <= len(item) <= 2:
            raise SaccadeError(
                f"a corpus is one file or two line-aligned files, got {len(item)}: {', '.join(map(str, item))}"
            )
    names = split_names(columns) or None
    return tuple(
        item
        if isinstance(item, Corpus)
        else Corpus(files=tuple(map(str, item)), columns=names if len(item) == 1 else None)
        for item in files
    )


def check_are_files(given: Any) -> None:
    """Raise unless it is a file, a corpus, or a list of these."""
    items = [given] if isinstance(given, str | Path | Corpus) or not isinstance(given, Sequence) else given
    for item in items:
        inner = item if isinstance(item, Sequence) and not isinstance(item, str) else [item]
        if wrong := [one for one in inner if not isinstance(one, str | Path | Corpus)]:
            raise SaccadeError(
                f"data is given as files, got {type(wrong[0]).__name__}; write it to a file first, such as a data "
                "frame by frame.to_csv('pairs.csv', index=False)"
            )
