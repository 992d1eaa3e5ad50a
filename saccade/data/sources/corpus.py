"""A corpus of a recipe, or a share of it, as rows: whatever it holds, a row is a number and what stands in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from saccade.config.schema import ActionWriter, Corpus, MediaReader
from saccade.data.sources.documents import documents_key, read_documents
from saccade.data.sources.labelled import read_labelled
from saccade.data.sources.media import ALONE
from saccade.data.sources.pairs import content_key, read_rows
from saccade.data.store.arrays import Store
from saccade.data.store.media import Source
from saccade.data.tokenization.labels import Labels
from saccade.data.worlds.route_store import SIDES as ROUTES
from saccade.data.worlds.routes import read_routes, routes_key


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
    walks: ActionWriter | None = None  # what writes actions, where they are routes
    varied: bool = False  # routes to learn from: also mirrored, and from every direction where that is open

    @property
    def key(self) -> str:
        """A hash of everything that decides which rows there are."""
        if self.media is not None:
            key = self.source.key
        elif self.walks is not None:
            key = f"{routes_key(self.corpus)} {self.varied} {self.walks.mirror}"
        elif self.documents:
            key = documents_key(self.corpus, documents=self.documents)
        else:
            key = content_key(self.corpus)
        return f"{key} {self.labels}{'?' * self.asks}{self.share if self.heldout else -self.share}"

    @property
    def name(self) -> str:
        return self.corpus.files[0]

    @property
    def source(self) -> Source:
        assert self.media is not None, "only pictures and sound have files of their own"
        wanted = "label" if self.labels else ALONE if self.documents else "text"
        return Source(self.corpus, self.media.of_files, wanted, self.asks)

    @property
    def asks(self) -> bool:
        """Whether rows have a question."""
        return self.media is not None and self.media.asks

    def rows(self) -> Iterator[Any]:
        """Line number and texts; held out is every n-th row, spread evenly: a sorted corpus is represented too.

        Of pictures and sound it is every n-th file, with all that is said of it.
        """
        found: Iterator[Any]
        if self.media is not None:
            found = self.source.rows()
        elif self.walks is not None:
            found = read_routes(self.corpus)
        elif self.documents:
            found = read_documents(self.corpus, documents=self.documents, stream=self.stream)
        elif self.labels:
            found = read_labelled(self.corpus, kind=self.labels)
        else:
            found = read_rows(self.corpus)
        files: dict[str, int] = {}
        row: Any
        for number, row in enumerate(found):
            index = number if self.media is None else files.setdefault(row[1], len(files))
            if (int((index + 1) * self.share) > int(index * self.share)) == self.heldout:
                yield from [row] if self.walks is None else row.rows(varied=self.varied, mirror=self.walks.mirror)


def unanswerable(part: Part, labels: Labels | None) -> list[str]:
    """What is told of questions whose answer is none of those that are learned."""
    if not part.asks or labels is None:
        return []
    answers, known = [answer for *_, answer in part.rows()], set(labels.names)
    count = sum(answer not in known for answer in answers)
    told = f"{count:,} of {len(answers):,} questions of {part.name} have an answer that the training data lacks"
    return [f"{told}; whatever is said to them is wrong, and the loss leaves them out"] if count else []


# ---- What a row of a store is called, and what is told of those that were left out.


WHAT = {  # a row, by its sides
    ("source", "target"): "pair",
    ("source", "label"): "text",
    ("target",): "document",
    ("source",): "file",
    ("source", "question", "target"): "question",
    ("source", "question", "label"): "question",
    ROUTES: "route",
}


def notes_of(store: Store, parts: list[Part], limit: int | None) -> list[str]:
    """What was dropped and why, with the place of the first one, under the names that the files have now."""
    what = WHAT[store.sides]
    total = f"{store.dropped.total:,} {what}{'s' if store.dropped.total > 1 else ''}"
    empty = "with an empty side" if len(store.sides) > 1 else "without a text"
    reasons = {empty: store.dropped.empty, f"longer than {limit or 0:,} tokens": store.dropped.long}
    return [
        f"dropped {found[0]:,} of {total} {reason}; first at {parts[found[1]].name} line {found[2]}"
        for reason, found in reasons.items()
        if found
    ]
