"""Tokenized rows in memory-mapped arrays in a cache folder.

An entry of the cache is a folder: for each side and variant a file of tokens (uint16 or uint32) and one of offsets
(int64, one more than rows), and meta.json with the size and checksum of each. It is written under a temporary name and
renamed, so that it is complete or absent.
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
from saccade.data.sources.filtering import FilterReport
from saccade.errors import SaccadeError
from saccade.parsing import read_json_object

VERSION = 2  # of the format; entries of another version are written again
META_FILE = "meta.json"


class DroppedRows(NamedTuple):
    """Number of rows read, and of rows dropped for each reason: count, and corpus and line of the first one."""

    total: int
    empty: tuple[int, ...]
    long: tuple[int, ...]


class Store(Rows):
    """Tokenized pairs or documents of an entry of the cache, memory-mapped."""

    def __init__(self, folder: Path, *, weights: Sequence[float] = ()) -> None:
        meta = read_json_object(folder / META_FILE)
        self.name = folder.name  # contains a hash of rows, tokenizers and settings
        self.sides: tuple[str, ...] = tuple(meta["sides"])
        self.num_bytes: int = meta["bytes"]  # UTF-8 bytes of the text of the last side
        self.num_variants: int = meta["variants"]
        self.dropped = DroppedRows(meta["total"], tuple(meta["empty"]), tuple(meta["long"]))
        self.filtered = [FilterReport.from_json(values) for values in meta.get("filtered", [])]  # one for each corpus
        self.bad_rows: list[dict[str, Any]] = meta.get("bad_rows", [])  # see sources/bad_rows.py
        self.max_tokens: int = meta["longest"]  # length of the longest side of any row
        self.corpus_sizes: list[int] = meta["parts"]  # rows of each corpus
        self.weights = list(weights) or [1.0] * len(self.corpus_sizes)
        names = [[folder / f"{side}-{number}" for side in self.sides] for number in range(self.num_variants)]
        self._tokens = [[_memory_map(name.with_suffix(".tokens"), meta["dtype"]) for name in row] for row in names]
        self._offsets = [[_memory_map(name.with_suffix(".offsets"), "int64") for name in row] for row in names]

    def get_lengths(self, rows: np.ndarray, *, side: int, variant: int = 0) -> np.ndarray:
        """Return the number of tokens of each of these rows on one side."""
        offsets = self._offsets[variant][side]
        rows = rows.astype(np.int64)  # uint32 row numbers could overflow below
        return offsets[rows + 1] - offsets[rows]

    def gather(self, rows: np.ndarray, *, side: int, variant: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens of these rows, concatenated, and the length of each row."""
        starts = self._offsets[variant][side][rows]
        lengths = self.get_lengths(rows, side=side, variant=variant)
        ends = np.cumsum(lengths)
        indices = np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - lengths), lengths)
        return self._tokens[variant][side][indices], lengths

    def gather_tokens(self, rows: np.ndarray, positions: np.ndarray, *, side: int, variant: int = 0) -> np.ndarray:
        """Return one token for each row and position in it."""
        return self._tokens[variant][side][self._offsets[variant][side][rows] + positions]


def open_store(folder: Path, *, weights: Sequence[float] = ()) -> Store | None:
    """Open an entry of the cache; None if there is none or it is damaged."""
    try:
        meta = read_json_object(folder / META_FILE)
        intact = meta["version"] == VERSION and all(
            (folder / name).stat().st_size == size and compute_checksum(folder / name) == crc
            for name, (size, crc) in meta["files"].items()
        )
        is_listed = "bad_rows" in meta or not meta["empty"]  # older entries only count them
        return Store(folder, weights=weights) if intact and is_listed else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def compute_checksum(path: Path) -> int:
    value = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            value = zlib.crc32(block, value)
    return value


class ArrayWriter:
    """Context manager that writes the files of tokens and offsets of one side and variant."""

    def __init__(self, folder: Path, *, name: str, dtype: str) -> None:
        self._names = (f"{name}.tokens", f"{name}.offsets")
        self._files = [(folder / file).open("wb") for file in self._names]
        self._dtype = dtype
        self._end = 0
        self._sizes, self._sums = [0, 0], [0, 0]
        self._write(1, np.zeros(1, dtype=np.int64))

    def append(self, rows: Sequence[Sequence[int]]) -> None:
        """Append rows of ids."""
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

    def __enter__(self) -> ArrayWriter:
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as stack:  # closes all even if one of them fails
            for file in self._files:
                stack.callback(file.close)

    def get_files(self) -> dict[str, tuple[int, int]]:
        """Return the size and checksum of each file."""
        return dict(zip(self._names, zip(self._sizes, self._sums, strict=True), strict=True))


def write_store(folder: Path, fill: Callable[[Path], dict[str, Any]]) -> None:
    """Write an entry of the cache; `fill` writes the arrays into a folder and returns the metadata."""

    def fill_with_meta(temporary: Path) -> None:
        meta = fill(temporary)
        (temporary / META_FILE).write_text(
            json.dumps({"version": VERSION, **meta}, ensure_ascii=False), encoding="utf-8"
        )

    write_folder(folder, fill_with_meta)


def discard(folder: Path) -> None:
    """Delete a damaged entry of the cache, if there is one."""
    shutil.rmtree(folder, ignore_errors=True)


def write_folder(folder: Path, fill: Callable[[Path], None]) -> None:
    """Fill a folder under a temporary name, then rename it.

    If several processes write the same folder at the same time, the first one is kept.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            fill(temporary)
            try:
                temporary.rename(folder)
            except OSError:  # another process was faster; the same key means the same content
                if not folder.is_dir():
                    raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise SaccadeError(
            f"the cache {folder.parent} cannot be written: {error.strerror or error}; "
            "free some space or set SACCADE_CACHE to another folder"
        ) from None


def _memory_map(path: Path, dtype: str) -> np.ndarray:
    if not path.stat().st_size:
        return np.zeros(0, dtype=dtype)
    return np.memmap(path, dtype=dtype, mode="r")
