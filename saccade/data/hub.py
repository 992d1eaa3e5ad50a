"""Data sets of the Hugging Face Hub, by name or as a local folder, through `datasets` (imported when needed)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from saccade.data import table
from saccade.data.lines import did_you_mean
from saccade.errors import SaccadeError

NAME = re.compile(r"[\w.-]+(/[\w.-]+)?(:[\w.-]+)?")  # owner/name:configuration


def read(name: str, *, split: str, columns: table.Columns) -> Iterator[table.Row]:
    """The pairs of one split; columns inside columns are named with a dot, `translation.en`."""
    return table.pairs(_texts(name, split, columns, table.NAMES))


def read_column(name: str, *, split: str, columns: table.Columns) -> Iterator[tuple[int, str]]:
    """The texts of one column of one split."""
    return ((number, texts[0]) for number, texts in _texts(name, split, columns, table.TEXT))


def fingerprint(name: str, *, split: str) -> str:
    return str(_load(name, split)._fingerprint)


def _texts(name: str, split: str, columns: table.Columns, wanted: tuple[str, ...]) -> Iterator[table.Texts]:
    return table.from_records(_records(_load(name, split)), f"{name}[{split}]", columns, wanted)


def _records(data: Any) -> Iterator[tuple[int, Mapping[str, Any]]]:
    number = 0
    for block in data.iter(batch_size=1000):
        keys = list(block)
        for values in zip(*block.values(), strict=True):
            number += 1
            yield number, dict(zip(keys, values, strict=True))


def _load(name: str, split: str) -> Any:
    """A map-style data set: memory-mapped by `datasets`, so it does not sit in memory either."""
    import datasets

    folder = Path(name)
    try:
        if any((folder / mark).exists() for mark in ("dataset_dict.json", "state.json")):
            splits = datasets.load_from_disk(name)
        else:
            path, _, configuration = (name, "", "") if folder.is_dir() else name.partition(":")
            splits = datasets.load_dataset(path, configuration or None)
    except Exception as error:  # of many libraries: network, files, formats
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise SaccadeError(f"data set {name!r} cannot be loaded ({first}); expected a Hub name or a folder") from None
    if not isinstance(splits, Mapping):
        return splits
    if split not in splits:
        known = ", ".join(splits)
        raise SaccadeError(f"data set {name!r} has no split {split!r}{did_you_mean(split, splits)} (splits: {known})")
    return splits[split]
