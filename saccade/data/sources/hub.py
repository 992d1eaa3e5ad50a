"""Data sets of the Hugging Face Hub, by name or as a local folder, through `datasets` (imported when needed)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from saccade.data.sources import table
from saccade.data.sources.lines import did_you_mean
from saccade.errors import SaccadeError

NAME = re.compile(r"[\w.-]+(/[\w.-]+)?(:[\w.-]+)?")  # owner/name:configuration


def read(name: str, *, split: str, columns: table.Columns) -> Iterator[table.Row]:
    """The pairs of one split; columns inside columns are named with a dot, `translation.en`."""
    return table.pairs(_texts(name, split, columns, table.NAMES))


def read_column(name: str, *, split: str, columns: table.Columns, stream: bool = False) -> Iterator[tuple[int, str]]:
    """The texts of one column of one split; with `stream`, fetched as they are read, and not kept."""
    return ((number, texts[0]) for number, texts in _texts(name, split, columns, table.TEXT, stream=stream))


def read_records(name: str, *, split: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The numbered rows of one split; classes that are stored as numbers by their names."""
    return spelled_records(load(name, split))


def spelled_records(data: Any, *, block: int = 1000) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The numbered rows of a data set, with names in the place of numbers of classes; `block` of them in memory."""
    named = {column: names for column, kind in data.features.items() if (names := _class_names(kind))}
    for number, record in _records(data, block):
        yield number, {column: _spelled(value, named.get(column)) for column, value in record.items()}


def _class_names(kind: Any) -> list[str]:
    """The names of the classes in a column, also in one of lists; none where it has no classes."""
    return getattr(kind, "names", None) or getattr(getattr(kind, "feature", None), "names", None) or []


def _spelled(value: Any, names: list[str] | None) -> Any:
    if names is None:
        return value
    if isinstance(value, list):
        return [_spelled(item, names) for item in value]
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else value


def fingerprint(name: str, *, split: str) -> str:
    return str(load(name, split)._fingerprint)


def _texts(
    name: str, split: str, columns: table.Columns, wanted: tuple[str, ...], *, stream: bool = False
) -> Iterator[table.Texts]:
    return table.from_records(_records(load(name, split, stream=stream)), f"{name}[{split}]", columns, wanted)


def _records(data: Any, block: int = 1000) -> Iterator[tuple[int, Mapping[str, Any]]]:
    number = 0
    for rows in data.iter(batch_size=block):
        keys = list(rows)
        for values in zip(*rows.values(), strict=True):
            number += 1
            yield number, dict(zip(keys, values, strict=True))


def load(name: str, split: str, *, stream: bool = False) -> Any:
    """A data set: memory-mapped by `datasets`, so it does not sit in memory either; or a stream of it."""
    import datasets

    folder = Path(name)
    try:
        if any((folder / mark).exists() for mark in ("dataset_dict.json", "state.json")):
            splits = datasets.load_from_disk(name)
        else:
            path, _, configuration = (name, "", "") if folder.is_dir() else name.partition(":")
            splits = datasets.load_dataset(path, configuration or None, **({"streaming": True} if stream else {}))
    except Exception as error:  # of many libraries: network, files, formats
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise SaccadeError(f"data set {name!r} cannot be loaded ({first}); expected a Hub name or a folder") from None
    if not isinstance(splits, Mapping):
        return splits
    if split not in splits:
        known = ", ".join(splits)
        raise SaccadeError(f"data set {name!r} has no split {split!r}{did_you_mean(split, splits)} (splits: {known})")
    return splits[split]
