"""Tokenised pairs in memory-mapped arrays, kept in a cache folder.

An entry of the cache is a folder: for each side and variant a file of tokens (uint16 or uint32) and one of offsets
(int64, one more than pairs), and meta.json with the size and checksum of each. It is written under a temporary name and
renamed, so that it is whole or absent.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import zlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from saccade.data.batching.batches import Rows
from saccade.errors import SaccadeError

VERSION = 2  # of the folder; entries of another version are made again
META = "meta.json"


class Dropped(NamedTuple):
    """Pairs read, and those left out: how many, and the corpus and the line of the first one."""

    total: int
    empty: tuple[int, ...]
    long: tuple[int, ...]


class Store(Rows):
    """Pairs (or single texts) of token rows, read through the page cache: they never sit in memory of our own."""

    def __init__(self, folder: Path, *, weights: Sequence[float] = ()) -> None:
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
        self.name = folder.name  # a hash of the pairs, the tokenizers and the settings
        self.sides: tuple[str, ...] = tuple(meta["sides"])
        self.bytes: int = meta["bytes"]  # of the texts of the last side, in UTF-8
        self.variants: int = meta["variants"]
        self.dropped = Dropped(meta["total"], tuple(meta["empty"]), tuple(meta["long"]))
        self.longest: int = meta["longest"]  # tokens of the longer side of any pair
        self.parts: list[int] = meta["parts"]  # pairs of each corpus, one after the other
        self.weights = list(weights) or [1.0] * len(self.parts)
        names = [[folder / f"{side}-{number}" for side in self.sides] for number in range(self.variants)]
        self._tokens = [[_map(name.with_suffix(".tokens"), meta["dtype"]) for name in row] for row in names]
        self._offsets = [[_map(name.with_suffix(".offsets"), "int64") for name in row] for row in names]

    def lengths(self, rows: np.ndarray, *, side: int, variant: int = 0) -> np.ndarray:
        """Tokens of these rows on one side (0 source, 1 target)."""
        offsets = self._offsets[variant][side]
        rows = rows.astype(np.int64)  # the type of a row number may be too small for one more
        return offsets[rows + 1] - offsets[rows]

    def gather(self, rows: np.ndarray, *, side: int, variant: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of these rows, one row after the other, and the lengths of the rows."""
        begins = self._offsets[variant][side][rows]
        lengths = self.lengths(rows, side=side, variant=variant)
        ends = np.cumsum(lengths)
        places = np.arange(ends[-1] if len(ends) else 0) + np.repeat(begins - (ends - lengths), lengths)
        return self._tokens[variant][side][places], lengths

    def tokens(self, rows: np.ndarray, inside: np.ndarray, *, side: int, variant: int = 0) -> np.ndarray:
        """One token for each row and place inside of it."""
        return self._tokens[variant][side][self._offsets[variant][side][rows] + inside]


def open_store(folder: Path, *, weights: Sequence[float] = ()) -> Store | None:
    """An entry of the cache, or None where there is none or it is damaged."""
    try:
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
        whole = meta["version"] == VERSION and all(
            (folder / name).stat().st_size == size and checksum(folder / name) == crc
            for name, (size, crc) in meta["files"].items()
        )
        return Store(folder, weights=weights) if whole else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def checksum(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            value = zlib.crc32(block, value)
    return value


class Appender:
    """Files of tokens and offsets of one side and variant, written row by row; closed by `with`."""

    def __init__(self, folder: Path, *, name: str, dtype: str) -> None:
        self._names = (f"{name}.tokens", f"{name}.offsets")
        self._files = [(folder / file).open("wb") for file in self._names]
        self._dtype = dtype
        self._end = 0
        self._sizes, self._sums = [0, 0], [0, 0]
        self._write(1, np.zeros(1, dtype=np.int64))

    def add(self, rows: Sequence[Sequence[int]]) -> None:
        lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        self._write(0, np.fromiter(chain.from_iterable(rows), self._dtype, count=int(lengths.sum())))
        offsets = self._end + np.cumsum(lengths)
        self._write(1, offsets)
        self._end = int(offsets[-1]) if len(rows) else self._end

    def _write(self, which: int, values: np.ndarray) -> None:
        data = values.tobytes()
        self._files[which].write(data)
        self._sizes[which] += len(data)
        self._sums[which] = zlib.crc32(data, self._sums[which])

    def __enter__(self) -> Appender:
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as all_of_them:  # also where closing one of them fails
            for file in self._files:
                all_of_them.callback(file.close)

    def files(self) -> dict[str, tuple[int, int]]:
        """The size and checksum of each file."""
        return dict(zip(self._names, zip(self._sizes, self._sums, strict=True), strict=True))


def write_store(folder: Path, fill: Callable[[Path], dict[str, Any]]) -> None:
    """Makes an entry of the cache: `fill` writes the arrays into a folder and gives the meta data."""

    def make(temporary: Path) -> None:
        meta = fill(temporary)
        (temporary / META).write_text(json.dumps({"version": VERSION, **meta}, ensure_ascii=False), encoding="utf-8")

    write_folder(folder, make)


def discard(folder: Path) -> None:
    """Takes a damaged entry out of the cache, before another one is made."""
    shutil.rmtree(folder, ignore_errors=True)


def write_folder(folder: Path, fill: Callable[[Path], None]) -> None:
    """Fills a folder under a temporary name and renames it.

    Other processes may do the same at the same time, and read what the first of them has made: that one is kept.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            fill(temporary)
            try:
                temporary.rename(folder)
            except OSError:  # another process was faster; its entry has the same key, hence the same content
                if not folder.is_dir():
                    raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise SaccadeError(
            f"the cache {folder.parent} cannot be written: {error.strerror or error}; "
            "free some space or set SACCADE_CACHE to another folder"
        ) from None


def _map(path: Path, dtype: str) -> np.ndarray:
    if not path.stat().st_size:
        return np.zeros(0, dtype=dtype)
    return np.memmap(path, dtype=dtype, mode="r")
