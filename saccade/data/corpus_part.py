"""A corpus of a recipe, or a share of it, as rows: whatever it holds, a row is a number and what stands in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from saccade.config.schema import Corpus, MediaReader
from saccade.data.documents import documents_key, read_documents
from saccade.data.labelled import read_labelled
from saccade.data.media_store import Source
from saccade.data.sources import content_key, read_rows


@dataclass(frozen=True)
class Part:
    """A corpus, or the share of it that is (or is not) held out for validation."""

    corpus: Corpus
    share: float = 0.0
    heldout: bool = False
    documents: str = ""  # what one is in a text file, where texts are wanted and not pairs
    stream: bool = False
    labels: str = ""  # of which kind they are, where texts with labels are wanted
    media: MediaReader | None = None  # what reads them, where they are pictures or sound

    @property
    def key(self) -> str:
        """A hash of everything that decides which rows there are."""
        if self.media is not None:
            key = self.source.key
        elif self.documents:
            key = documents_key(self.corpus, documents=self.documents)
        else:
            key = content_key(self.corpus)
        return f"{key} {self.labels}{self.share if self.heldout else -self.share}"

    @property
    def name(self) -> str:
        return self.corpus.files[0]

    @property
    def source(self) -> Source:
        assert self.media is not None, "only pictures and sound have files of their own"
        return Source(self.corpus, self.media, "label" if self.labels else "text")

    def rows(self) -> Iterator[Any]:
        """Line number and texts; held out is every n-th row, spread evenly: a sorted corpus is represented too."""
        found: Iterator[Any]
        if self.media is not None:
            found = self.source.rows()
        elif self.documents:
            found = read_documents(self.corpus, documents=self.documents, stream=self.stream)
        elif self.labels:
            found = read_labelled(self.corpus, kind=self.labels)
        else:
            found = read_rows(self.corpus)
        for index, row in enumerate(found):
            if (int((index + 1) * self.share) > int(index * self.share)) == self.heldout:
                yield row
