"""Data sets of the Hugging Face Hub, by name or as a local folder, through `datasets` (imported when needed)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from saccade.data.sources import table
from saccade.data.sources.bad_rows import OnBadRow, raise_error
from saccade.data.sources.lines import did_you_mean
from saccade.errors import SaccadeError

HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?(:[\w.-]+)?")  # owner/name:configuration
SAVED_DATASET_FILES = ("dataset_dict.json", "state.json")  # in a folder that `datasets` has written


def read_pairs(
    name: str, *, split: str, columns: table.Columns, on_bad_row: OnBadRow = raise_error
) -> Iterator[table.Row]:
    """Yield the pairs of one split with their numbers; nested columns are named with a dot, `translation.en`."""
    rows = _iter_rows(load_split(name, split))
    return table.to_pairs(table.select_texts(rows, f"{name}[{split}]", columns, table.PAIR_COLUMNS, on_bad_row))


def read_column(
    name: str,
    *,
    split: str,
    columns: table.Columns,
    stream: bool = False,
    skip: int = 0,
    on_bad_row: OnBadRow = raise_error,
) -> Iterator[tuple[int, str]]:
    """Yield the texts of one column of a split with their numbers; with `stream`, they are fetched while being read.

    The first `skip` rows are left out, as `datasets` does it: a data set on disk is not read for this.
    """
    rows = _iter_rows(load_split(name, split, stream=stream), skip=skip)
    texts = table.select_texts(rows, f"{name}[{split}]", columns, table.TEXT_COLUMNS, on_bad_row)
    return ((number, text) for number, (text,) in texts)


def find_columns(
    name: str,
    *,
    split: str,
    columns: table.Columns,
    names: tuple[str, ...],
    stream: bool = False,
    on_bad_row: OnBadRow = raise_error,
) -> tuple[str, ...]:
    """Return the columns of a split that are read as `names`."""
    rows = _iter_rows(load_split(name, split, stream=stream), block=1)
    return table.find_record_columns(rows, f"{name}[{split}]", columns, names, on_bad_row)


def read_records(name: str, *, split: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the numbered rows of one split, with the names of classes in place of their numbers."""
    return iter_records(load_split(name, split))


def iter_records(data: Any, *, block: int = 1000) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield the numbered rows of a data set, with the names of classes; `block` rows are in memory at a time."""
    class_names = {column: names for column, kind in data.features.items() if (names := _get_class_names(kind))}
    for number, record in _iter_rows(data, block):
        yield number, {column: _to_class_names(value, class_names.get(column)) for column, value in record.items()}


def _get_class_names(kind: Any) -> list[str]:
    """Return the class names of a column or of a column of lists; none if it has no classes."""
    return getattr(kind, "names", None) or getattr(getattr(kind, "feature", None), "names", None) or []


def _to_class_names(value: Any, names: list[str] | None) -> Any:
    if names is None:
        return value
    if isinstance(value, list):
        return [_to_class_names(item, names) for item in value]
    return names[value] if isinstance(value, int) and 0 <= value < len(names) else value


def get_fingerprint(name: str, *, split: str) -> str:
    return str(load_split(name, split)._fingerprint)


def _iter_rows(data: Any, block: int = 1000, skip: int = 0) -> Iterator[tuple[int, Mapping[str, Any]]]:
    number = skip
    for rows in (data.skip(skip) if skip else data).iter(batch_size=block):
        keys = list(rows)
        for values in zip(*rows.values(), strict=True):
            number += 1
            yield number, dict(zip(keys, values, strict=True))


def load_split(name: str, split: str, *, stream: bool = False) -> Any:
    """Load one split of a data set: memory-mapped by `datasets`, or as a stream."""
    import datasets

    folder = Path(name)
    try:
        if any((folder / mark).exists() for mark in SAVED_DATASET_FILES):
            splits = datasets.load_from_disk(name)
        else:
            path, _, configuration = (name, "", "") if folder.is_dir() else name.partition(":")
            splits = datasets.load_dataset(path, configuration or None, **({"streaming": True} if stream else {}))
    except Exception as error:  # of many libraries: network, files, formats
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        expected = "expected a Hub name or a folder"
        if folder.is_dir():
            files = sorted(str(one) for one in folder.iterdir() if one.is_file() and not one.name.startswith("."))
            listed = f", such as {' '.join(files[:2])}" if files else ""
            expected = f"of a folder that is no data set, give the files{listed}"
        raise SaccadeError(f"data set {name!r} cannot be loaded ({reason}); {expected}") from None
    if not isinstance(splits, Mapping):
        return splits
    if split not in splits:
        known = ", ".join(splits)
        raise SaccadeError(f"data set {name!r} has no split {split!r}{did_you_mean(split, splits)} (splits: {known})")
    return splits[split]
