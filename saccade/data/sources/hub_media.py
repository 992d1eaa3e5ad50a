"""Write the pictures or recordings of a Hugging Face data set to a folder in the cache, as undecoded files.

The other columns are written to `metadata.jsonl` in the same folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from saccade.config.schema import Corpus
from saccade.data.media.pictures import PICTURE_SUFFIXES
from saccade.data.media.sound import SOUND_SUFFIXES
from saccade.data.sources import hub, table
from saccade.data.store.arrays import write_folder
from saccade.errors import SaccadeError
from saccade.files import get_cache_folder

FILE_COLUMN = "file_name"  # name of the column of files, unless the recipe names it
FEATURE_SUFFIXES = {"Image": PICTURE_SUFFIXES, "Audio": SOUND_SUFFIXES}  # by the class of a feature in `datasets`
BLOCK_ROWS = 16  # rows in memory at a time, each with a whole file


def is_media_dataset(name: str) -> bool:
    """Whether a name is a data set on the Hub, or a folder that `datasets` saved or that has parquet files.

    A name without a slash is a folder here, so that a mistyped one is not looked for on the Hub.
    """
    folder = Path(name)
    if not folder.is_dir():
        named = not folder.exists() and not folder.suffix and not name.startswith(".")
        return named and "/" in name and bool(hub.HUB_NAME.fullmatch(name))
    if any((folder / mark).exists() for mark in hub.SAVED_DATASET_FILES):
        return True
    if any((folder / f"metadata{kind}").is_file() for kind in table.TABLE_SUFFIXES):
        return False
    return any(not path.name.startswith("metadata.") for path in folder.rglob("*.parquet"))


def export_split(corpus: Corpus) -> Path:
    """Return the folder in the cache with the files of a split; write it if it is not there."""
    name, columns = corpus.files[0], corpus.columns or ()
    key = repr((hub.get_fingerprint(name, split=corpus.split), corpus.split, columns, corpus.examples))
    folder = get_cache_folder() / f"hub-{hashlib.blake2b(key.encode(), digest_size=16).hexdigest()}"
    if not folder.is_dir():
        write_folder(folder, lambda temporary: _write(temporary, corpus))
    return folder


def _write(folder: Path, corpus: Corpus) -> None:
    name, columns = corpus.files[0], corpus.columns or ()
    data, column, suffixes = _load_undecoded(name, corpus.split, columns)
    file_column = column if column in columns else FILE_COLUMN
    with (folder / "metadata.jsonl").open("w", encoding="utf-8") as metadata:
        for number, record in islice(hub.iter_records(data, block=BLOCK_ROWS), corpus.examples):
            file = f"{number:07d}{_get_suffix(record[column], suffixes)}"
            content = _get_bytes(record[column])
            if content is not None:  # otherwise it is reported later as a missing file
                (folder / file).write_bytes(content)
            values = dict(_select_metadata({key: value for key, value in record.items() if key != column}))
            metadata.write(json.dumps({**values, file_column: file}) + "\n")  # replaces a column of the same name


def _load_undecoded(name: str, split: str, columns: tuple[str, ...]) -> tuple[Any, str, tuple[str, ...]]:
    """Return a split whose files stay undecoded, their column, and the suffixes that such files may have."""
    data = hub.load_split(name, split)
    found = {
        column: type(kind).__name__ for column, kind in data.features.items() if type(kind).__name__ in FEATURE_SUFFIXES
    }
    column = next((column for column in columns if column in found), next(iter(found), None))
    if column is None:
        there = ", ".join(f"{column} ({getattr(kind, 'dtype', 'list')})" for column, kind in data.features.items())
        raise SaccadeError(
            f"data set {name!r} has no column of pictures or sound, got {there}; `datasets` calls them Image and Audio"
        )
    kind = data.features[column]
    return data.cast_column(column, type(kind)(decode=False)), column, FEATURE_SUFFIXES[found[column]]


def _get_suffix(value: Any, suffixes: tuple[str, ...]) -> str:
    path = Path(str((value or {}).get("path") or ""))
    return path.suffix.lower() if path.suffix.lower() in suffixes else suffixes[0]


def _get_bytes(value: Any) -> bytes | None:
    """Return the content of a file, which a cell has as bytes or as the path of a downloaded file."""
    if value is None:
        return None
    if value.get("bytes") is not None:
        return bytes(value["bytes"])
    path = Path(value.get("path") or "")
    return path.read_bytes() if path.is_file() else None


def _select_metadata(record: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the columns of texts, numbers and lists of texts; None becomes an empty text, which is dropped later."""
    for name, value in table.flatten(record).items():
        if value is None:
            yield name, ""
        elif isinstance(value, str | int | float) or (
            isinstance(value, list) and all(isinstance(item, str) for item in value)
        ):
            yield name, value
