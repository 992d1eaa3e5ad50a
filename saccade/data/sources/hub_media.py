"""Data sets of the Hugging Face Hub with pictures or sound: their files, as they are, in a folder of the cache.

The bytes are taken out without decoding them, which is left to our own decoders; the other columns become a
`metadata.jsonl` beside them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from saccade.config.schema import Corpus
from saccade.data.media.pictures import SUFFIXES as PICTURES
from saccade.data.media.sound import SUFFIXES as SOUNDS
from saccade.data.sources import hub, table
from saccade.data.store.arrays import write_folder
from saccade.errors import SaccadeError
from saccade.files import default_cache

FILE = "file_name"  # what the column of files is called, unless the recipe names it
KINDS = {"Image": PICTURES, "Audio": SOUNDS}  # of `datasets`, with the names of their files
BLOCK = 16  # rows in memory, each with a whole file
MARKS = ("dataset_dict.json", "state.json")  # of a folder that `datasets` has saved


def is_set(name: str) -> bool:
    """Whether a name is that of a data set on the Hub, or of a folder with one: saved, or of parquet files."""
    folder = Path(name)
    if not folder.is_dir():
        named = not folder.exists() and not folder.suffix and not name.startswith(".")
        return named and bool(hub.NAME.fullmatch(name))
    if any((folder / mark).exists() for mark in MARKS):
        return True
    if any((folder / f"metadata{kind}").is_file() for kind in table.KINDS):
        return False
    return any(not path.name.startswith("metadata.") for path in folder.rglob("*.parquet"))


def unpacked(corpus: Corpus) -> Path:
    """The folder in the cache with the files of a split, made where it is not there yet."""
    name, columns = corpus.files[0], corpus.columns or ()
    asked = repr((hub.fingerprint(name, split=corpus.split), corpus.split, columns, corpus.examples))
    folder = default_cache() / f"hub-{hashlib.blake2b(asked.encode(), digest_size=16).hexdigest()}"
    if not folder.is_dir():
        write_folder(folder, lambda temporary: _write(temporary, corpus))
    return folder


def _write(folder: Path, corpus: Corpus) -> None:
    name, columns = corpus.files[0], corpus.columns or ()
    data, column, suffixes = _undecoded(name, corpus.split, columns)
    called = column if column in columns else FILE
    with (folder / "metadata.jsonl").open("w", encoding="utf-8") as notes:
        for number, record in islice(hub.spelled_records(data, block=BLOCK), corpus.examples):
            file = f"{number:07d}{_suffix(record[column], suffixes)}"
            content = _bytes(record[column])
            if content is not None:  # else it is told as a file that is not there
                (folder / file).write_bytes(content)
            said = dict(_said({key: value for key, value in record.items() if key != column}))
            notes.write(json.dumps({**said, called: file}) + "\n")  # also where a column of the set has that name


def _undecoded(name: str, split: str, columns: tuple[str, ...]) -> tuple[Any, str, tuple[str, ...]]:
    """A split whose files stay bytes, the column that they are in, and how such files are called."""
    data = hub.load(name, split)
    found = {column: type(kind).__name__ for column, kind in data.features.items() if type(kind).__name__ in KINDS}
    column = next((column for column in columns if column in found), next(iter(found), None))
    if column is None:
        there = ", ".join(f"{column} ({getattr(kind, 'dtype', 'list')})" for column, kind in data.features.items())
        raise SaccadeError(
            f"data set {name!r} has no column of pictures or sound, got {there}; `datasets` calls them Image and Audio"
        )
    kind = data.features[column]
    return data.cast_column(column, type(kind)(decode=False)), column, KINDS[found[column]]


def _suffix(value: Any, suffixes: tuple[str, ...]) -> str:
    path = Path(str((value or {}).get("path") or ""))
    return path.suffix.lower() if path.suffix.lower() in suffixes else suffixes[0]


def _bytes(value: Any) -> bytes | None:
    """What a cell has: the bytes themselves, or the path of a file that was downloaded."""
    if value is None:
        return None
    if value.get("bytes") is not None:
        return bytes(value["bytes"])
    path = Path(value.get("path") or "")
    return path.read_bytes() if path.is_file() else None


def _said(record: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What is said of a file in texts and numbers; nothing is an empty text, which is counted and left out."""
    for name, value in table.flatten(record).items():
        if value is None:
            yield name, ""
        elif isinstance(value, str | int | float) or (
            isinstance(value, list) and all(isinstance(item, str) for item in value)
        ):
            yield name, value
