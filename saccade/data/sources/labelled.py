"""Texts with labels, read as a stream: one text or two, and a class, a number, or a tag for each word.

A corpus is one of
* a file with columns (table.py): the label is the column `label`, `tags` or `score`, the texts are the others, without
  numbers of rows (`idx`, `index`, `id`); without a header, the last of two or three columns is the label. `columns`
  names or counts the texts and, last, the label. Lists of words and of tags may be lists, or texts with spaces;
* two line-aligned files: texts, or words, and labels;
* for tags, any other file: a word a line, its tag in the last column, and an empty line after each text (CoNLL);
* the name of a Hugging Face data set, or the folder of one (hub.py);
* `embedded:NAME`, made by saccade itself (judged.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any

from saccade.config.schema import Corpus
from saccade.data.sources import hub, table
from saccade.data.sources.lines import numbered_lines, open_file
from saccade.data.sources.pairs import PREFIX, is_hub, read_rows
from saccade.data.synthetic import embedded
from saccade.data.tokenization.labels import Labels
from saccade.errors import SaccadeError

Row = tuple[Any, ...]  # the number of its line, one text or two, the label

LABEL_NAMES = ("label", "tags", "score")
NUMBERS = ("idx", "index", "id")  # columns that only count rows
NEW_DOCUMENT = "-DOCSTART-"


def read_labelled(corpus: Corpus, *, kind: str) -> Iterator[Row]:
    """The rows of a corpus, at most `corpus.examples` of them; `kind` is that of their labels."""
    name = corpus.files[0]
    if len(corpus.files) == 2:
        rows: Iterator[Row] = read_rows(corpus)
    elif name.startswith(PREFIX):
        rows = embedded.read_labelled(name.removeprefix(PREFIX), corpus.examples, kind=kind)
    elif is_hub(name):
        rows = _from_records(hub.read_records(name, split=corpus.split), f"{name}[{corpus.split}]", corpus)
    elif table.kind(Path(name)):
        rows = _from_records(table.records(Path(name), is_header=_header_of(corpus)), name, corpus)
    elif kind == "tags":
        rows = _word_by_word(Path(name))
    else:
        raise SaccadeError(
            f"{name} has no labels: give one {', '.join(table.KINDS)} file with columns, or two line-aligned files, of "
            "texts and of labels"
        )
    found = ((*row[:-1], row[-1].strip()) for row in islice(rows, corpus.examples))
    return _aligned(found, name) if kind == "tags" else found


def like(corpus: Corpus, first: Corpus) -> Corpus:
    """A corpus that names no columns has those of the first one, where both are single files."""
    alone = len(corpus.files) == len(first.files) == 1 and not corpus.files[0].startswith(PREFIX)
    return corpus if corpus.columns or not alone else corpus.model_copy(update={"columns": first.columns})


def checked(rows: Callable[[], Iterator[Row]], labels: Labels, name: str) -> Callable[[], Iterator[Row]]:
    """The same rows, whose labels must be known; one that is not is told with its place."""

    def known() -> Iterator[Row]:
        for row in rows():
            try:
                labels.encode(row[-1]) if row[-1] else []  # what has no label is dropped later on, and counted
            except SaccadeError as error:
                raise SaccadeError(f"{name}:{row[0]}: {error}") from None
            if len(row) - 2 != labels.texts:
                raise SaccadeError(
                    f"{name}:{row[0]}: a label is about {labels.texts} text{'s' * (labels.texts > 1)} in the training "
                    f"data, here about {len(row) - 2}; give the columns of both alike"
                )
            yield row

    return known


def _header_of(corpus: Corpus) -> Callable[[list[str]], bool]:
    """Whether the first line of a .tsv or .csv is a header: a .csv has one, unless columns are counted."""
    columns, is_csv = corpus.columns, table.kind(Path(corpus.files[0])) == ".csv"

    def is_header(first: list[str]) -> bool:
        if columns is not None:
            return not table.are_counted(columns, first)
        return is_csv or any(name in first for name in LABEL_NAMES)

    return is_header


def _from_records(records: Iterable[tuple[int, Mapping[str, Any]]], name: str, corpus: Corpus) -> Iterator[Row]:
    rows = iter(records)
    first = next(rows, None)
    if first is None:
        return
    columns = _columns(corpus.columns, list(table.flatten(first[1])), f"{name}:{first[0]}")
    for number, record in chain([first], rows):
        flat = table.flatten(record)
        for column in columns:
            if column not in flat:
                raise table.unknown_column(f"{name}:{number}", column, list(flat))
        yield number, *(_as_text(flat[column], f"{name}:{number}", column) for column in columns)


def _columns(asked: tuple[str, ...] | None, there: list[str], where: str) -> tuple[str, ...]:
    """Texts, and then the label."""
    if asked is not None:
        if len(asked) < 2:
            raise SaccadeError(f"{where}: columns names one text or two and the label, got only {asked[0]!r}")
        return asked
    label = next((name for name in LABEL_NAMES if name in there), there[-1])
    texts = [name for name in there if name != label and name not in NUMBERS]
    if not texts:
        raise SaccadeError(f"{where}: expected one text or two and a label, got only the column {label!r}")
    if len(texts) > 2:
        example = ", ".join(f'"{name}"' for name in [*texts[:1], label])
        raise SaccadeError(
            f"{where}: which of the columns {', '.join(there)} are the texts, and which is the label? say it: "
            f"columns = [{example}], or give a file with these alone"
        )
    return (*texts, label)


def _as_text(value: Any, where: str, column: str) -> str:
    """A cell as it is written; a list of words with spaces between them."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"{value}"
    if isinstance(value, list):
        words = [_as_text(item, where, column) for item in value]
        if wrong := [word for word in words if len(word.split()) != 1]:
            raise SaccadeError(f"{where}: {wrong[0]!r} in column {column!r} is not one word; join or remove it")
        return " ".join(words)
    raise SaccadeError(f"{where}: expected text, a number or a list in column {column!r}, got {type(value).__name__}")


def _word_by_word(path: Path) -> Iterator[Row]:
    """Files of the CoNLL shared tasks: the first column is the word, the last one its tag."""
    with open_file(path) as file:
        words, tags, begin = list[str](), list[str](), 1
        for number, line in numbered_lines(file, str(path)):
            cells = line.split()
            if cells and cells[0] != NEW_DOCUMENT:
                if len(cells) < 2:
                    raise SaccadeError(f"{path}:{number}: expected a word and its tag in each line, got {line!r}")
                begin = begin if words else number
                words.append(cells[0])
                tags.append(cells[-1])
            elif words:
                yield begin, " ".join(words), " ".join(tags)
                words, tags = [], []
        if words:
            yield begin, " ".join(words), " ".join(tags)


def _aligned(rows: Iterable[Row], name: str) -> Iterator[Row]:
    for row in rows:
        if len(row) != 3:
            raise SaccadeError(f"{name}:{row[0]}: words and their tags are two columns, got {len(row) - 1}")
        words, tags = len(row[1].split()), len(row[2].split())
        if words != tags:
            raise SaccadeError(f"{name}:{row[0]}: there are {words} words and {tags} tags; each word needs one")
        yield row
