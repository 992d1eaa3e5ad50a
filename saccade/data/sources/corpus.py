"""Rows of a corpus of a recipe, or of its training or validation split; a row is its line number and its cells."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from saccade.config.schema import Corpus, Filter, MediaReader
from saccade.data.sources import documents, labelled, media, pairs
from saccade.data.sources.bad_rows import BadRowError, BadRows
from saccade.data.sources.documents import DocumentReader, hash_documents, read_documents
from saccade.data.sources.filtering import FilterReport, build_filter_key, filter_rows
from saccade.data.sources.labelled import read_labelled
from saccade.data.sources.media import FILES_ONLY
from saccade.data.sources.pairs import hash_pairs, read_rows
from saccade.data.sources.ranges import WHOLE, Share
from saccade.data.store.arrays import Store
from saccade.data.store.media import MediaSource
from saccade.data.tokenization.encode import EncodingCounts
from saccade.data.tokenization.labels import Labels
from saccade.data.tokenization.tokenizer import Tokenizers
from saccade.errors import SaccadeError


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
    filter: Filter | None = None  # drops rows of texts
    augment: bool = False  # whether rows may be augmented, as those of training may
    bad_rows: BadRows = field(default_factory=lambda: BadRows(""), compare=False)

    @property
    def key(self) -> str:
        """Identify the rows in keys of the cache; the text must not change, since runs resume by it."""
        kind = f"{self.label_kind}{'?' * self.has_questions}"
        key = f"{self.hash_corpus()} {kind}{self.share if self.heldout else -self.share}"
        return key if self.filter is None else f"{key} {build_filter_key(self.filter)}"

    def hash_corpus(self) -> str:
        """Identify the content of the corpus and how it is read."""
        if self.media_reader is not None:
            return self.media_source.key
        return hash_documents(self.corpus, unit=self.document_unit) if self.document_unit else hash_pairs(self.corpus)

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

    def iter_kept_rows(self, report: FilterReport | None = None) -> Iterator[Any]:
        """Yield the rows of the split that `filter` keeps; `report` counts the others."""
        if self.filter is None:
            return self.iter_rows()
        report = report or FilterReport(self.name)
        return filter_rows(self.iter_rows(), self.filter, has_label=bool(self.label_kind), report=report)

    def iter_rows(self) -> Iterator[Any]:
        """Yield the line number and the cells of each row of the split, before `filter`.

        Held-out rows are spread evenly over the corpus, which may be sorted. Of pictures and sound, files are held out
        with all their rows.
        """
        files: dict[str, int] = {}
        for number, example in enumerate(self._count_examples()):
            index = number if self.media_reader is None else files.setdefault(example[1], len(files))
            if (int((index + 1) * self.share) > int(index * self.share)) == self.heldout:
                yield from self.expand(example)

    def _count_examples(self) -> Iterator[Any]:
        """Yield all examples of the corpus; raise after the last one if too many rows were skipped."""
        count = 0
        try:
            for example in self.read_examples():
                count += 1
                yield example
        except SaccadeError:
            if not count:  # a file without any good row is called empty
                self.bad_rows.check_share(0)
            raise
        self.bad_rows.check_share(count)

    def read_examples(self) -> Iterator[Any]:
        """Read all examples of the corpus, held-out ones too."""
        if self.document_unit and self.media_reader is None:  # an empty document is no bad one
            on_bad_row = self.bad_rows
            return read_documents(self.corpus, unit=self.document_unit, stream=self.stream, on_bad_row=on_bad_row)
        return self._check_complete(self._read_rows())

    def _read_rows(self) -> Iterator[Any]:
        if self.media_reader is not None:
            return self.media_source.iter_rows(self.bad_rows)
        if self.label_kind:
            return read_labelled(self.corpus, kind=self.label_kind, on_bad_row=self.bad_rows)
        return read_rows(self.corpus, on_bad_row=self.bad_rows)

    def _check_complete(self, rows: Iterable[Any]) -> Iterator[Any]:
        """Pass on the rows whose cells are all empty, as blank lines are, or none of them; others are bad."""
        for row in rows:
            empty = [index for index, cell in enumerate(row[1:]) if not cell.strip()]
            if not empty or len(empty) == len(row) - 1:
                yield row
                continue
            name = self.name_cells(len(row) - 1)[empty[0]]
            file = self.name if self.media_reader else pairs.name_side(self.corpus, empty[0])
            self.bad_rows(BadRowError(f"{file}:{row[0]}", f"the {name} is empty"))

    def open_documents(self, share: Share = WHOLE, place: Mapping[str, Any] | None = None) -> DocumentReader:
        """Open a share of the documents that `filter` keeps, at a place where a reader of this share was before."""
        return DocumentReader(
            self.corpus, unit=self.document_unit, share=share, place=place, settings=self.filter,
            bad_rows=self.bad_rows,
        )  # fmt: skip

    def find_columns(self) -> tuple[str, ...]:
        """Return the columns of a table that are read, in the order of the cells of a row; none if it is no table."""
        if self.media_reader is not None:
            source, asks = self.media_source, self.has_questions
            return media.find_columns(self.corpus, source.target, has_questions=asks, on_bad_row=self.bad_rows)
        if self.document_unit:
            return documents.find_columns(self.corpus, stream=self.stream, on_bad_row=self.bad_rows)
        source_module = labelled if self.label_kind else pairs
        return source_module.find_columns(self.corpus, on_bad_row=self.bad_rows)

    def find_unnamed_columns(self) -> tuple[str, ...]:
        """Return the columns of a table that are read although the recipe names none; none if they are not clear."""
        if self.corpus.columns or len(self.corpus.files) != 1 or not Path(self.name).is_file():
            return ()
        try:
            return self.find_columns()
        except SaccadeError:  # reported where the rows are read
            return ()

    def name_cells(self, count: int) -> tuple[str, ...]:
        """Return what each cell of a row with `count` cells is."""
        if self.media_reader is not None:
            names = ("file", *("question",) * self.has_questions)
            target = "answer" if self.has_questions else "label" if self.label_kind else "text"
            return (*names, target)[:count]
        if self.label_kind:
            return ("text", "label") if count == 2 else ("first text", "second text", "label")
        return ("text",) if self.document_unit else ("source", "target")

    def expand(self, example: Any) -> Iterable[Any]:
        """The rows of one example: itself; a split of a plugin may augment it."""
        return (example,)

    def iter_texts(self) -> Iterator[Any]:
        """Yield what tokenizers are trained on: the texts of each row, without labels and paths."""
        first, last = self.media_reader is not None, -1 if self.label_kind else None
        return (tuple(cells[first:last]) for _, *cells in self.iter_kept_rows())

    def build_row_codec(
        self, splits: Sequence[CorpusSplit], tokenizers: Tokenizers, *, max_length: int | None
    ) -> RowCodec | None:
        """For rows of a plugin: their codec, for all splits; None where rows are texts, labels or files."""
        return None

    def get_row_noun(self, sides: tuple[str, ...]) -> str:
        """What messages call a row."""
        if self.media_reader is not None and sides == ("source", "label"):
            return self.media_reader.medium
        return ROW_NOUNS[sides]


class RowCodec(Protocol):
    """Encodes rows of a plugin, and opens the store of the encoded rows."""

    id_bound: int  # all ids are less than this

    def encode_block(self, block: list[Any], corpus: int, counts: EncodingCounts) -> list[list[list[int]]]:
        """Return the ids of each side of the rows that are kept."""
        ...

    def encode_variant(self, number: int, plain: list[list[list[int]]]) -> list[list[list[int]]]:
        """Return another encoding of a block, as BPE dropout has them; or the plain one."""
        ...

    def open_store(self, folder: Path, *, weights: Sequence[float]) -> Store: ...


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
}


def format_filter_notes(store: Store) -> list[str]:
    """Return messages about the rows that `data.filter` has dropped: how many, and why."""
    return [report.format_note(ROW_NOUNS[store.sides]) for report in store.filtered]


def format_dropped_notes(store: Store, splits: list[CorpusSplit], max_length: int | None) -> list[str]:
    """Return messages about dropped rows: how many, why, and where the first one is."""
    noun = splits[0].get_row_noun(store.sides)
    total = f"{store.dropped.total:,} {noun}{'s' if store.dropped.total > 1 else ''}"
    empty = "with an empty side" if len(store.sides) > 1 else "without a text"
    reasons = {empty: store.dropped.empty, f"longer than {max_length or 0:,} tokens": store.dropped.long}
    return [
        f"dropped {found[0]:,} of {total} {reason}; first at {splits[found[1]].name} line {found[2]}"
        for reason, found in reasons.items()
        if found
    ]
