"""Decoded pictures or sound in memory-mapped arrays, kept in a cache folder, and pairs of which they are one side."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch

from saccade.config.schema import Corpus, MediaReader
from saccade.data.batching.batch import Frames, Ground, Media, Pictures, Tokens
from saccade.data.media.decoding import decode_all, settings_of
from saccade.data.sources.archives import TARS
from saccade.data.sources.media import folder_of, media_key, read_media
from saccade.data.store.arrays import Store, checksum, discard, write_folder
from saccade.data.tokenization.encode import Tally
from saccade.data.tokenization.labels import Labels
from saccade.data.tokenization.tokenizer import Tokenizer
from saccade.errors import SaccadeError

VERSION = 2  # of the folder; entries of another version are made again
META, VALUES = "meta.json", "values"
FEW = 3  # broken files that one line names
NAMED = 100  # of them, each in a line of its own

Ids = list[list[int]]


@dataclass(frozen=True)
class Source:
    """A corpus of pictures or sound, and what of each file is wanted: its "label", its "text", or the file "alone"."""

    corpus: Corpus
    reader: MediaReader  # of the files alone
    wanted: str
    asks: bool = False  # whether that is the answer to a question

    @property
    def key(self) -> str:
        """A hash of the corpus, and which of its columns says what files there are."""
        medium = self.reader.medium
        return f"{media_key(self.corpus, medium=medium)} {medium} {self.wanted}{'?' * self.asks}"

    def rows(self) -> Iterator[tuple[Any, ...]]:
        return read_media(self.corpus, medium=self.reader.medium, wanted=self.wanted, asks=self.asks)

    def paths(self) -> list[str]:
        """Every file once, in the order in which rows name them."""
        return list(dict.fromkeys(path for _, path, *_ in self.rows()))


class Decoded:
    """The files of one corpus, read through the page cache."""

    def __init__(self, folder: Path) -> None:
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
        self.offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.array(meta["lengths"], dtype=np.int64))])
        self.broken: dict[int, str] = {int(number): why for number, why in meta["broken"].items()}
        shape = (int(self.offsets[-1]), *meta["shape"])
        self.values: np.ndarray = np.zeros(shape, meta["dtype"])
        if self.values.size:
            self.values = np.memmap(folder / VALUES, dtype=meta["dtype"], mode="r", shape=shape)

    def __len__(self) -> int:
        return len(self.offsets) - 1


def decoded(source: Source, key: str, cache: Path) -> Decoded:
    """An entry of the cache, made where there is none or it is damaged."""
    folder = cache / f"media-{sha256(f'{key} {settings_of(source.reader)}'.encode()).hexdigest()[:32]}"
    if not _whole(folder):
        discard(folder)
        write_folder(folder, lambda temporary: _decode(source, temporary))
    found = Decoded(folder)
    if len(found) == len(found.broken):
        first = next(iter(found.broken.values()), "there is none")
        raise SaccadeError(f"no {source.reader.medium} of {source.corpus.files[0]} can be read: {first}")
    return found


def _whole(folder: Path) -> bool:
    try:
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
        return bool(meta["version"] == VERSION and checksum(folder / VALUES) == meta["checksum"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _decode(source: Source, folder: Path) -> None:
    lengths, broken, kinds, before = list[int](), dict[int, str](), dict[str, Any](), 0
    with (folder / VALUES).open("wb") as values:
        for name in decode_all(source.paths(), source.reader, folder):
            part = folder / name
            found = json.loads(part.with_suffix(".json").read_text(encoding="utf-8"))
            kinds = found if found["shape"] or not kinds else kinds
            broken |= {before + int(number): why for number, why in found["broken"].items()}
            lengths += np.fromfile(part.with_suffix(".lengths"), dtype=np.int64).tolist()
            before = len(lengths)
            with part.with_suffix(".values").open("rb") as made:
                shutil.copyfileobj(made, values)
            for suffix in (".json", ".lengths", ".values"):
                part.with_suffix(suffix).unlink()
    meta = {"dtype": kinds["dtype"], "shape": kinds["shape"], "lengths": lengths, "broken": broken}
    meta |= {"version": VERSION, "checksum": checksum(folder / VALUES)}
    (folder / META).write_text(json.dumps(meta), encoding="utf-8")


def skipped(source: Source, found: Decoded) -> list[str]:
    """What is told of files that could not be read: a line, or one for each of them."""
    if not found.broken:
        return []
    broken, name = list(found.broken.values()), source.corpus.files[0]
    if name.lower().endswith(TARS):  # its files lie in the cache, of which nobody knows
        broken = [why.replace(str(folder_of(source.corpus)), name, 1) for why in broken]
    count = f"skipped {len(broken):,} of {len(found):,} {source.reader.medium}s:"
    if len(broken) <= FEW:
        return [f"{count} {'; '.join(broken)}"]
    more = [f"  and {len(broken) - NAMED:,} more"] if len(broken) > NAMED else []
    return [count, *(f"  {why}" for why in broken[:NAMED]), *more]


class Library:
    """The files of several corpora, numbered one corpus after the other."""

    def __init__(self, sources: Sequence[Source], parts: Sequence[Decoded]) -> None:
        self._parts, self._states = list(parts), sources[0].reader.states
        self._starts = np.cumsum([0, *map(len, parts)])
        self._lengths = np.concatenate([np.diff(part.offsets) for part in parts])
        self.size = int(self._starts[-1])
        self._sources = list(sources)

    @property
    def broken(self) -> list[int]:
        """The numbers of those that cannot be read."""
        return [int(start) + i for part, start in zip(self._parts, self._starts, strict=False) for i in part.broken]

    def numbers(self) -> dict[str, int]:
        """The number of every file that can be read, by its path."""
        return {
            path: int(start) + i
            for source, part, start in zip(self._sources, self._parts, self._starts[:-1], strict=True)
            for i, path in enumerate(source.paths())
            if i not in part.broken
        }

    def lengths(self, numbers: np.ndarray) -> np.ndarray:
        """States of a picture, frames of sound."""
        if self._states is not None:
            return np.full(len(numbers), self._states, dtype=np.int64)
        return self._lengths[numbers]

    def field(self, numbers: np.ndarray) -> Media:
        if self._states is None:
            return field_of([self._item(number) for number in numbers], states=None)
        return field_of([self._pictures(numbers)], states=self._states)

    def _pictures(self, numbers: np.ndarray) -> np.ndarray:
        """All at once, corpus by corpus: one by one takes as long as a GPU learns from them."""
        parts = np.searchsorted(self._starts, numbers, side="right") - 1
        made = np.empty((len(numbers), *self._parts[0].values.shape[1:]), dtype=self._parts[0].values.dtype)
        for which in np.unique(parts):
            mine, part = parts == which, self._parts[which]
            made[mine] = part.values[part.offsets[numbers[mine] - self._starts[which]]]
        return made

    def _item(self, number: int) -> np.ndarray:
        which = int(np.searchsorted(self._starts, number, side="right")) - 1
        part, at = self._parts[which], int(number) - int(self._starts[which])
        return part.values[part.offsets[at] : part.offsets[at + 1]]


def field_of(items: Sequence[np.ndarray], *, states: int | None) -> Media:
    """Arrays (n, ...) of files as one field of a batch; `states` are those of a picture, none for sound."""
    if states is not None:
        values = torch.from_numpy(items[0] if len(items) == 1 else np.concatenate(items))
        return Pictures(values, torch.ones(len(values), states, dtype=torch.bool))
    lengths = np.array([len(item) for item in items])
    mask = np.arange(lengths.max()) < lengths[:, None]
    frames = np.zeros((*mask.shape, *items[0].shape[1:]), dtype=np.float32)
    frames[mask] = np.concatenate(items)
    return Frames(torch.from_numpy(frames), torch.from_numpy(mask))


class MediaStore(Store):
    """Pairs whose source is a picture or sound; the tokens of that side are its number in the library."""

    def __init__(self, folder: Path, library: Library, *, weights: Sequence[float]) -> None:
        super().__init__(folder, weights=weights)
        self._library = library

    def lengths(self, rows: np.ndarray, *, side: int, variant: int = 0) -> np.ndarray:
        if side:
            return super().lengths(rows, side=side, variant=variant)
        return self._library.lengths(self._numbers(rows))

    def collate(self, rows: np.ndarray, *, side: int, variant: int = 0) -> Tokens | Media | Ground:
        if side:
            return super().collate(rows, side=side, variant=variant)
        return self._library.field(self._numbers(rows))

    def _numbers(self, rows: np.ndarray) -> np.ndarray:
        return self.tokens(rows, np.zeros(len(rows), dtype=np.int64), side=0)


class MediaEncoder:
    """Blocks of rows to ids: the number of the file, a question where one is asked, and a text or a label.

    Rows of broken files are left out, and so are those with an answer that nobody has learned.
    """

    def __init__(
        self,
        numbers: dict[str, int],
        target: Tokenizer | Labels | None,
        *,
        limit: int | None,
        files: int,
        question: Tokenizer | None = None,
    ) -> None:
        self._numbers, self._limit = numbers, limit
        self._sides = [side for side in (question, target) if side is not None]
        self._answers = None if question is None else target
        self.largest = max([files, *(side.size + 1 for side in self._sides)])  # no id is as large

    def plain(self, block: list[Any], corpus: int, tally: Tally) -> list[Ids]:
        """The ids of the rows of a block that are kept."""
        tally.total += len(block)
        full = []
        for line, path, *texts in block:
            if not all(text.strip() for text in texts):
                tally.drop(tally.empty, corpus, line)
            elif path in self._numbers and (self._answers is None or self._answers.knows(texts[-1])):
                full.append((line, self._numbers[path], texts))
        made = [side.encode_all([texts[i] for _, _, texts in full]) for i, side in enumerate(self._sides)]
        sides: list[Ids] = [[] for _ in ("source", *self._sides)]
        for (line, number, texts), *ids in zip(full, *made, strict=True):
            if self._limit is not None and max(map(len, ids)) > self._limit:
                tally.drop(tally.long, corpus, line)
                continue
            tally.bytes += sum(len(text.encode()) for text in texts[-1:])
            for side, row in zip(sides, ([number], *ids), strict=True):
                side.append(row)
        return sides

    def variant(self, number: int, plain: list[Ids]) -> list[Ids]:
        """There is only one."""
        return plain
