"""Documents for language models, read as a stream.

A corpus is one of
* a text file, plain or .gz or .xz, whose documents are its lines, what stands between empty lines, or all of it;
* a file with columns (table.py), of which one is the text of a document;
* a folder of such files, with all folders in it, in the order of their names;
* the name of a Hugging Face data set, or the folder of one as `datasets` saves it (hub.py);
* `embedded:NAME`, made by saccade itself (embedded.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from saccade.config.schema import Corpus
from saccade.data.sources import hub, table
from saccade.data.sources.lines import numbered_lines, open_file
from saccade.data.sources.pairs import PREFIX, file_key, is_hub
from saccade.data.synthetic import embedded
from saccade.errors import SaccadeError

Document = tuple[int, str]  # the number of its first line (or row), counted from 1, and its text

TEXT_FILES = (".txt", ".txt.gz", ".txt.xz")
SAVED = ("dataset_dict.json", "state.json")  # in a folder that `datasets` has written


def read_documents(corpus: Corpus, *, documents: str, stream: bool = False) -> Iterator[Document]:
    """The documents of a corpus, at most `corpus.examples` of them; `documents` says what one is in a text file.

    With `stream`, a data set of the Hub is not downloaded before it is read.
    """
    found = (found for name in corpus.files for found in _read(name, corpus, documents, stream=stream))
    return islice(found, corpus.examples)


def documents_key(corpus: Corpus, *, documents: str) -> str:
    """A hash of everything that decides which documents these are: the bytes of files, not their names."""
    parts = []
    for name in corpus.files:
        if name.startswith(PREFIX):
            parts.append(embedded.version(name.removeprefix(PREFIX)))
        elif not (files := _files(name)):
            parts.append(hub.fingerprint(name, split=corpus.split))
        else:
            parts += [file_key(path) for path in files]
    return repr((documents, corpus.columns, corpus.examples, parts))


def _read(name: str, corpus: Corpus, documents: str, *, stream: bool) -> Iterator[Document]:
    if name.startswith(PREFIX):
        yield from embedded.read_texts(name.removeprefix(PREFIX), corpus.examples)
    elif not (files := _files(name)):
        yield from hub.read_column(name, split=corpus.split, columns=corpus.columns, stream=stream)
    for path in files if not name.startswith(PREFIX) else []:
        yield from table.read_column(path, columns=corpus.columns) if table.kind(path) else _cut(path, documents)


def _files(name: str) -> list[Path]:
    """The files behind a name; none where it is a data set."""
    path = Path(name)
    if not path.is_dir():
        return [] if is_hub(name) else [path]
    if any((path / mark).exists() for mark in SAVED):
        return []
    found = sorted(file for file in path.rglob("*") if file.is_file() and _is_text(file))
    if not found:
        raise SaccadeError(
            f"there is no text in the folder {path}; expected files that end with .txt, {', '.join(table.KINDS)}, "
            "or these with .gz or .xz behind it"
        )
    return found


def _is_text(path: Path) -> bool:
    return path.name.endswith(TEXT_FILES) or bool(table.kind(path))


def _cut(path: Path, documents: str) -> Iterator[Document]:
    """The documents of a text file; only the one that is being read is in memory."""
    with open_file(path) as file:
        begin, lines, any_text = 1, list[str](), False
        for number, line in numbered_lines(file, str(path)):
            ends = documents == "lines" or (documents == "blank" and not line.strip())
            if line.strip() or documents == "file":
                begin = begin if lines else number
                lines.append(line)
            if ends and lines:
                yield begin, "\n".join(lines)
                lines, any_text = [], True
        if any(line.strip() for line in lines):
            yield begin, "\n".join(lines)
        elif not any_text:
            raise SaccadeError(f"{path} is empty; expected some text")
