"""Decoded pictures or recordings in memory-mapped arrays in a cache folder, and data sets whose source they are."""

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
from saccade.data.batching.batch import Field, Frames, Media, Pictures
from saccade.data.media.decoding import decode_all, get_decoding_key
from saccade.data.sources.bad_rows import BadRowError, OnBadRow, ignore_error
from saccade.data.sources.media import hash_media, name_file, read_media
from saccade.data.store.arrays import Store, compute_checksum, discard, write_folder
from saccade.data.tokenization.encode import EncodingCounts
from saccade.data.tokenization.labels import Labels
from saccade.data.tokenization.tokenizer import Tokenizer
from saccade.errors import SaccadeError
from saccade.parsing import read_json_object

VERSION = 3  # of the format; entries of another version are written again
META_FILE, VALUES_FILE = "meta.json", "values"

Ids = list[list[int]]


@dataclass(frozen=True)
class MediaSource:
    """A corpus of pictures or recordings, and the target of each: its "label", its "text", or none (FILES_ONLY)."""

    corpus: Corpus
    reader: MediaReader  # the part of a model's reader that reads the files
    target: str
    has_questions: bool = False  # whether the target is the answer to a question

    @property
    def key(self) -> str:
        """Identify the files and their targets in keys of the cache; the text must not change."""
        files = hash_media(self.corpus, medium=self.reader.medium, suffixes=self.reader.suffixes)
        return f"{files} {self.reader.medium} {self.target}{'?' * self.has_questions}"

    def iter_rows(self, on_bad_row: OnBadRow = ignore_error) -> Iterator[tuple[Any, ...]]:
        return read_media(
            self.corpus, medium=self.reader.medium, target=self.target, has_questions=self.has_questions,
            suffixes=self.reader.suffixes, on_bad_row=on_bad_row,
        )  # fmt: skip

    def list_paths(self) -> list[str]:
        """Return each file once, in the order of the rows."""
        return list(dict.fromkeys(path for _, path, *_ in self.iter_rows()))


class DecodedMedia:
    """The decoded files of one corpus, memory-mapped."""

    def __init__(self, folder: Path) -> None:
        meta = read_json_object(folder / META_FILE)
        self.offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.array(meta["lengths"], dtype=np.int64))])
        self.broken: dict[int, str] = {int(number): reason for number, reason in meta["broken"].items()}
        self.too_long: list[int] = meta["too_long"]  # those of the broken ones that are recordings of too many seconds
        shape = (int(self.offsets[-1]), *meta["shape"])
        self.values: np.ndarray = np.zeros(shape, meta["dtype"])
        if self.values.size:
            self.values = np.memmap(folder / VALUES_FILE, dtype=meta["dtype"], mode="r", shape=shape)

    def __len__(self) -> int:
        return len(self.offsets) - 1


def open_or_decode(source: MediaSource, key: str, cache: Path) -> DecodedMedia:
    """Open an entry of the cache; decode the files if there is none or it is damaged."""
    folder = cache / f"media-{sha256(f'{key} {get_decoding_key(source.reader)}'.encode()).hexdigest()[:32]}"
    if not _is_intact(folder):
        discard(folder)
        write_folder(folder, lambda temporary: _write_decoded(source, temporary))
    decoded = DecodedMedia(folder)
    if len(decoded) == len(decoded.broken):
        first = next(iter(decoded.broken.values()), "there is none")
        raise SaccadeError(f"no {source.reader.medium} of {source.corpus.files[0]} can be read: {first}")
    return decoded


def _is_intact(folder: Path) -> bool:
    try:
        meta = read_json_object(folder / META_FILE)
        return bool(meta["version"] == VERSION and compute_checksum(folder / VALUES_FILE) == meta["checksum"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _write_decoded(source: MediaSource, folder: Path) -> None:
    lengths, broken, layout, before = list[int](), dict[int, str](), dict[str, Any](), 0
    too_long: list[int] = []
    with (folder / VALUES_FILE).open("wb") as values:
        for name in decode_all(source.list_paths(), source.reader, folder):
            shard = folder / name
            found = json.loads(shard.with_suffix(".json").read_text(encoding="utf-8"))
            layout = found if found["shape"] or not layout else layout
            broken |= {before + int(number): reason for number, reason in found["broken"].items()}
            too_long += [before + number for number in found["too_long"]]
            lengths += np.fromfile(shard.with_suffix(".lengths"), dtype=np.int64).tolist()
            before = len(lengths)
            with shard.with_suffix(".values").open("rb") as decoded:
                shutil.copyfileobj(decoded, values)
            for suffix in (".json", ".lengths", ".values"):
                shard.with_suffix(suffix).unlink()
    meta = {"dtype": layout["dtype"], "shape": layout["shape"], "lengths": lengths, "broken": broken}
    meta["too_long"] = too_long
    meta |= {"version": VERSION, "checksum": compute_checksum(folder / VALUES_FILE)}
    (folder / META_FILE).write_text(json.dumps(meta), encoding="utf-8")


def find_unreadable(source: MediaSource, decoded: DecodedMedia) -> Iterator[BadRowError]:
    """Yield an error for each file that could not be decoded; recordings that are too long are none."""
    if len(decoded.broken) == len(decoded.too_long):
        return
    paths = source.list_paths()
    for number, reason in decoded.broken.items():
        if number in decoded.too_long:
            continue
        reason = " ".join(reason.replace(paths[number], "", 1).split()).replace(" :", ":")
        yield BadRowError(name_file(source.corpus, paths[number]), reason)


def format_too_long_note(source: MediaSource, decoded: DecodedMedia) -> str:
    """Return a line about recordings that are dropped because they are too long; empty if there are none."""
    if not (count := len(decoded.too_long)):
        return ""
    first = decoded.broken[decoded.too_long[0]]
    return f"dropped {count:,} of {len(decoded):,} {source.reader.medium_plural} that are too long; first {first}"


class MediaLibrary:
    """The decoded files of several corpora, numbered consecutively."""

    def __init__(self, sources: Sequence[MediaSource], media: Sequence[DecodedMedia]) -> None:
        self._media, self._num_states = list(media), sources[0].reader.states
        self._starts = np.cumsum([0, *map(len, media)])
        self._lengths = np.concatenate([np.diff(one.offsets) for one in media])
        self.size = int(self._starts[-1])
        self._sources = list(sources)

    @property
    def broken_numbers(self) -> list[int]:
        """Numbers of the files that cannot be read."""
        return [int(start) + i for media, start in zip(self._media, self._starts, strict=False) for i in media.broken]

    def get_file_numbers(self) -> dict[str, int]:
        """Return the number of each readable file, by its path."""
        return {
            path: int(start) + i
            for source, media, start in zip(self._sources, self._media, self._starts[:-1], strict=True)
            for i, path in enumerate(source.list_paths())
            if i not in media.broken
        }

    def get_lengths(self, numbers: np.ndarray) -> np.ndarray:
        """Return the number of states of each picture, or of frames of each recording."""
        if self._num_states is not None:
            return np.full(len(numbers), self._num_states, dtype=np.int64)
        return self._lengths[numbers]

    def collate(self, numbers: np.ndarray) -> Media:
        if self._num_states is None:
            return collate_media([self._get_item(number) for number in numbers], num_states=None)
        return collate_media([self._gather_pictures(numbers)], num_states=self._num_states)

    def _gather_pictures(self, numbers: np.ndarray) -> np.ndarray:
        """Gather pictures corpus by corpus, which is much faster than one by one."""
        corpora = np.searchsorted(self._starts, numbers, side="right") - 1
        pictures = np.empty((len(numbers), *self._media[0].values.shape[1:]), dtype=self._media[0].values.dtype)
        for corpus in np.unique(corpora):
            own, media = corpora == corpus, self._media[corpus]
            pictures[own] = media.values[media.offsets[numbers[own] - self._starts[corpus]]]
        return pictures

    def _get_item(self, number: int) -> np.ndarray:
        corpus = int(np.searchsorted(self._starts, number, side="right")) - 1
        media, index = self._media[corpus], int(number) - int(self._starts[corpus])
        return media.values[media.offsets[index] : media.offsets[index + 1]]


def collate_media(items: Sequence[np.ndarray], *, num_states: int | None) -> Media:
    """Collate arrays (n, ...) into a batch field: pictures with `num_states` states each, or padded frames if None."""
    if num_states is not None:
        values = torch.from_numpy(items[0] if len(items) == 1 else np.concatenate(items))
        return Pictures(values, torch.ones(len(values), num_states, dtype=torch.bool))
    lengths = np.array([len(item) for item in items])
    mask = np.arange(lengths.max()) < lengths[:, None]
    frames = np.zeros((*mask.shape, *items[0].shape[1:]), dtype=np.float32)
    frames[mask] = np.concatenate(items)
    return Frames(torch.from_numpy(frames), torch.from_numpy(mask))


class MediaStore(Store):
    """Rows whose source is a picture or recording, stored as its number in the library."""

    def __init__(self, folder: Path, library: MediaLibrary, *, weights: Sequence[float]) -> None:
        super().__init__(folder, weights=weights)
        self._library = library

    def get_lengths(self, rows: np.ndarray, *, side: int, variant: int = 0) -> np.ndarray:
        if side:
            return super().get_lengths(rows, side=side, variant=variant)
        return self._library.get_lengths(self._get_file_numbers(rows))

    def collate(self, rows: np.ndarray, *, side: int, variant: int = 0) -> Field:
        if side:
            return super().collate(rows, side=side, variant=variant)
        return self._library.collate(self._get_file_numbers(rows))

    def _get_file_numbers(self, rows: np.ndarray) -> np.ndarray:
        return self.gather_tokens(rows, np.zeros(len(rows), dtype=np.int64), side=0)


class MediaEncoder:
    """Encodes blocks of rows: the number of the file, the question if there are questions, and the text or label.

    Rows of unreadable files and rows with an unknown answer are skipped.
    """

    def __init__(
        self,
        file_numbers: dict[str, int],
        target: Tokenizer | Labels | None,
        *,
        max_length: int | None,
        num_files: int,
        question: Tokenizer | None = None,
    ) -> None:
        self._numbers, self._limit = file_numbers, max_length
        self._sides = [side for side in (question, target) if side is not None]
        self._answers = None if question is None else target
        self.id_bound = max([num_files, *(side.size + 1 for side in self._sides)])  # all ids are smaller

    def encode_block(self, block: list[Any], corpus: int, counts: EncodingCounts) -> list[Ids]:
        """Return the ids of each side of the rows that are kept."""
        counts.total += len(block)
        complete = []
        for line, path, *texts in block:
            if not all(text.strip() for text in texts):
                counts.count_dropped(counts.empty, corpus, line)
            elif path in self._numbers and (self._answers is None or self._answers.can_encode(texts[-1])):
                complete.append((line, self._numbers[path], texts))
        encoded = [side.encode_all([texts[i] for _, _, texts in complete]) for i, side in enumerate(self._sides)]
        sides: list[Ids] = [[] for _ in ("source", *self._sides)]
        for (line, number, texts), *ids in zip(complete, *encoded, strict=True):
            if self._limit is not None and max(map(len, ids)) > self._limit:
                counts.count_dropped(counts.long, corpus, line)
                continue
            counts.num_bytes += sum(len(text.encode()) for text in texts[-1:])
            for side, row in zip(sides, ([number], *ids), strict=True):
                side.append(row)
        return sides

    def encode_variant(self, number: int, plain: list[Ids]) -> list[Ids]:
        """Return the plain ids: there is no dropout."""
        return plain
