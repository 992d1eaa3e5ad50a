"""Rows of a corpus of a recipe, or of its training or validation split; a row is its line number and its cells."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from saccade.config.schema import ActionWriter, Corpus, Filter, MediaReader
from saccade.data.sources.documents import hash_documents, read_documents
from saccade.data.sources.filtering import FilterReport, build_filter_key, filter_rows
from saccade.data.sources.labelled import read_labelled
from saccade.data.sources.media import FILES_ONLY
from saccade.data.sources.pairs import hash_pairs, read_rows
from saccade.data.store.arrays import Store
from saccade.data.store.media import MediaSource
from saccade.data.tokenization.labels import Labels
from saccade.data.worlds.route_store import ROUTE_SIDES
from saccade.data.worlds.routes import hash_routes, read_routes


@dataclass(frozen=True)
class CorpusSplit:
    """A corpus, or the share of it that is (or is not) held out for validation, and what is read from it."""

    corpus: Corpus
    share: float = 0.0  # of rows that are held out
    heldout: bool = False
    document_unit: str = ""  # documents instead of pairs; what a document is in a text file: "lines", "blank" or "file"
    stream: bool = False  # read a data set of the Hub without downloading it first
    label_kind: str = ""  # texts with labels of this kind
    media_reader: MediaReader | None = None  # pictures or sound, and the reader of the model
    action_writer: ActionWriter | None = None  # routes, and the writer of the model
    filter: Filter | None = None  # drops rows of texts
    augment: bool = False  # routes also mirrored, and from every direction if the first one is not given

    @property
    def key(self) -> str:
        """Identify the rows in keys of the cache; the text must not change, since runs resume by it."""
        if self.media_reader is not None:
            key = self.media_source.key
        elif self.action_writer is not None:
            key = f"{hash_routes(self.corpus)} {self.augment} {self.action_writer.mirror}"
        elif self.document_unit:
            key = hash_documents(self.corpus, unit=self.document_unit)
        else:
            key = hash_pairs(self.corpus)
        key = f"{key} {self.label_kind}{'?' * self.has_questions}{self.share if self.heldout else -self.share}"
        return key if self.filter is None else f"{key} {build_filter_key(self.filter)}"

    @property
    def name(self) -> str:
        return self.corpus.files[0]

    @property
    def media_source(self) -> MediaSource:
        assert self.media_reader is not None, "only pictures and sound have files of their own"
        target = "label" if self.label_kind else FILES_ONLY if self.document_unit else "text"
        return MediaSource(self.corpus, self.media_reader.file_reader, target, self.has_questions)

    @property
    def has_questions(self) -> bool:
        """Whether rows have a question about a picture."""
        return self.media_reader is not None and self.media_reader.has_question

    def iter_rows(self, report: FilterReport | None = None) -> Iterator[Any]:
        """Yield the line number and the cells of each row of the split that `filter` keeps; `report` counts the others.

        Held-out rows are spread evenly over the corpus, which may be sorted. Of pictures and sound, files are held out
        with all their rows.
        """
        rows = self._iter_unfiltered_rows()
        if self.filter is None:
            return rows
        report = report or FilterReport(self.name)
        return filter_rows(rows, self.filter, has_label=bool(self.label_kind), report=report)

    def _iter_unfiltered_rows(self) -> Iterator[Any]:
        rows: Iterator[Any]
        if self.media_reader is not None:
            rows = self.media_source.iter_rows()
        elif self.action_writer is not None:
            rows = read_routes(self.corpus)
        elif self.document_unit:
            rows = read_documents(self.corpus, unit=self.document_unit, stream=self.stream)
        elif self.label_kind:
            rows = read_labelled(self.corpus, kind=self.label_kind)
        else:
            rows = read_rows(self.corpus)
        files: dict[str, int] = {}
        row: Any
        for number, row in enumerate(rows):
            index = number if self.media_reader is None else files.setdefault(row[1], len(files))
            if (int((index + 1) * self.share) > int(index * self.share)) == self.heldout:
                yield from (
                    [row]
                    if self.action_writer is None
                    else row.iter_rows(augment=self.augment, mirror=self.action_writer.mirror)
                )


def format_unanswerable_notes(split: CorpusSplit, labels: Labels | None) -> list[str]:
    """Count questions with an answer that is none of the labels; return a message if there are any."""
    if not split.has_questions or labels is None:
        return []
    answers, known = [answer for *_, answer in split.iter_rows()], set(labels.names)
    count = sum(answer not in known for answer in answers)
    found = f"{count:,} of {len(answers):,} questions of {split.name} have an answer that the training data lacks"
    return [f"{found}; every prediction for them counts as wrong, and the loss leaves them out"] if count else []


ROW_NOUNS = {  # what messages call a row, by its sides
    ("source", "target"): "pair",
    ("source", "label"): "text",
    ("target",): "document",
    ("source",): "file",
    ("source", "question", "target"): "question",
    ("source", "question", "label"): "question",
    ROUTE_SIDES: "route",
}


def format_filter_notes(store: Store) -> list[str]:
    """Return messages about the rows that `data.filter` has dropped: how many, and why."""
    return [report.format_note(ROW_NOUNS[store.sides]) for report in store.filtered]


def format_dropped_notes(store: Store, splits: list[CorpusSplit], max_length: int | None) -> list[str]:
    """Return messages about dropped rows: how many, why, and where the first one is."""
    noun = ROW_NOUNS[store.sides]
    total = f"{store.dropped.total:,} {noun}{'s' if store.dropped.total > 1 else ''}"
    empty = "with an empty side" if len(store.sides) > 1 else "without a text"
    reasons = {empty: store.dropped.empty, f"longer than {max_length or 0:,} tokens": store.dropped.long}
    return [
        f"dropped {found[0]:,} of {total} {reason}; first at {splits[found[1]].name} line {found[2]}"
        for reason, found in reasons.items()
        if found
    ]
