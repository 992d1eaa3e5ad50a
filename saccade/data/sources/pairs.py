"""Pairs of texts from files, data sets and generators, read as a stream.

A corpus is one of
* two line-aligned text files, plain or .gz or .xz;
* one file with columns: .tsv, .csv, .jsonl or .parquet (table.py), each also .gz, the first three also .xz;
* the name of a Hugging Face data set (`name` or `name:configuration`) or the folder of one (hub.py);
* `embedded:NAME`, made by saccade itself (embedded.py).
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Sequence
from itertools import islice, zip_longest
from pathlib import Path
from typing import IO, cast

from saccade.config.schema import Corpus
from saccade.data.sources import hub, table
from saccade.data.sources.lines import file_error, missing, numbered_lines, open_file
from saccade.data.synthetic import embedded
from saccade.errors import SaccadeError

Row = tuple[int, str, str]  # line (or row) number counted from 1, source, target

PREFIX = "embedded:"


def taken(corpora: Sequence[Corpus], made: int | None) -> list[Corpus]:
    """The corpora, with so much of embedded data as is `made` where they do not say it themselves."""
    few = {"examples": made}
    return [
        corpus.model_copy(update=few) if corpus.files[0].startswith(PREFIX) and corpus.examples is None else corpus
        for corpus in corpora
    ]


def read_pairs(corpus: Corpus) -> Iterator[tuple[str, str]]:
    """The pairs of a corpus, at most `corpus.examples` of them."""
    for _, source, target in read_rows(corpus):
        yield source, target


def read_rows(corpus: Corpus) -> Iterator[Row]:
    """The pairs of a corpus with the number of the line that each comes from."""
    name = corpus.files[0]
    if len(corpus.files) == 2:
        rows = _two_files(Path(name), Path(corpus.files[1]))
    elif name.startswith(PREFIX):
        return embedded.read(name.removeprefix(PREFIX), corpus.examples)
    elif is_hub(name):
        rows = hub.read(name, split=corpus.split, columns=corpus.columns)
    else:
        rows = table.read(Path(name), columns=corpus.columns)
    return islice(rows, corpus.examples)


def read_lines(path: str | Path) -> Iterator[str]:
    """The lines of one text file; `-` is standard input, each line given on as soon as it is there."""
    if str(path) == "-":
        return (line for _, line in numbered_lines(_standard_input(), "standard input"))
    return (line for _, line in _lines_of(Path(path)))


def _standard_input() -> IO[bytes]:
    """A file object of its own: a thread that waits in that of `sys.stdin` makes Python abort when the program ends."""
    try:
        return open(sys.stdin.fileno(), "rb", closefd=False)
    except OSError:  # a stand-in without a file, as in tests and notebooks
        return cast(IO[bytes], sys.stdin.buffer)


def content_key(corpus: Corpus) -> str:
    """A hash of everything that decides which pairs `read_pairs` gives: the bytes of files, not their names."""
    name = corpus.files[0]
    digest = hashlib.blake2b(digest_size=16)
    digest.update(repr((corpus.columns, corpus.examples)).encode())
    if name.startswith(PREFIX) and len(corpus.files) == 1:
        digest.update(embedded.version(name.removeprefix(PREFIX)).encode())
    elif len(corpus.files) == 1 and is_hub(name):
        digest.update(hub.fingerprint(name, split=corpus.split).encode())
    else:
        for file in corpus.files:
            digest.update(file_key(Path(file)).encode())
    return digest.hexdigest()


def file_key(path: Path) -> str:
    """A hash of the content of a file, and of the ends of its name, which say how it is read."""
    digest = hashlib.blake2b(repr(table.suffixes(path)).encode(), digest_size=16)
    _hash_file(path, digest)
    return digest.hexdigest()


def is_hub(name: str) -> bool:
    """Whether a single name is a data set (its folder, or its name on the Hub) and not a file."""
    path = Path(name)
    if path.is_dir():
        return True
    return not path.exists() and not path.suffix and bool(hub.NAME.fullmatch(name))


def _hash_file(path: Path, digest: hashlib.blake2b) -> None:
    if path.is_dir() or not path.exists():
        raise missing(path)
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise file_error(path, error) from None


def _lines_of(path: Path) -> Iterator[tuple[int, str]]:
    with open_file(path) as file:
        count = 0
        for count, line in numbered_lines(file, str(path)):
            yield count, line
    if not count:
        raise SaccadeError(f"{path} is empty; expected one example a line")


def _two_files(source: Path, target: Path) -> Iterator[Row]:
    """Line n of one file belongs to line n of the other."""
    for path in (source, target):
        if table.kind(path):
            raise SaccadeError(f"{path} has columns: give it alone, without a second file")
    shorter: Path | None = None
    count = {source: 0, target: 0}
    for left, right in zip_longest(_lines_of(source), _lines_of(target)):
        if left and right and shorter is None:
            yield left[0], left[1], right[1]
        else:  # read on to the end: the message gives both counts
            shorter = source if left is None else target
        count[source] += left is not None
        count[target] += right is not None
    if shorter:
        raise SaccadeError(
            f"{source} has {count[source]:,} lines and {target} has {count[target]:,}; "
            f"line n of one must be the translation of line n of the other"
        )
