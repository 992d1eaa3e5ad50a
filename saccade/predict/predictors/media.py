"""A trained run that reads pictures or sound: texts that are given to it are the names of files."""

import itertools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from saccade.config.schema import FrameReader, MediaReader, PictureReader
from saccade.data.media.decoding import decode
from saccade.data.sources.media import named_files
from saccade.data.store.media import field_of
from saccade.errors import SaccadeError
from saccade.predict.predictors.encoder import Encoder, FillPresenter, MaskDecoder
from saccade.predict.predictors.labels import LabelDecoder, Labeller, LabelPresenter
from saccade.predict.predictors.parts import InputCodec, LoadedModel, Parts, Report
from saccade.predict.predictors.predictor import Predictor
from saccade.predict.predictors.text import SearchDecoder, TextPresenter
from saccade.view.background import Background
from saccade.view.spectrogram import spectrogram
from saccade.view.words import Groups

AT_ONCE = 512  # files that are decoded at the same time
HELD, NUMBERS = "held:", itertools.count(1)  # names of files that are given as bytes


@dataclass(frozen=True, eq=False)
class Medium:
    """A decoded file; its length is that of what a model makes of it, or of its frames."""

    path: str
    values: np.ndarray
    states: int
    stamp: tuple[int, int] | None = None  # of the file, when it was read

    def __len__(self) -> int:
        return self.states


def stamp_of(path: str) -> tuple[int, int] | None:
    """What tells a file from one that was written in its place; none where there is none."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):  # a name that no file can have
        return None
    return found.st_mtime_ns, found.st_size


class MediaCodec(InputCodec):
    """Reads files, by their names: a row is a decoded file."""

    noun = "files"
    names_inputs = True
    reader: MediaReader  # the table of what reads the files

    def __init__(self, loaded: LoadedModel) -> None:
        super().__init__(loaded)
        assert self.recipe.reader.media is not None, "the task says so"
        self.media, self.reader = self.recipe.reader.media, self.recipe.reader.media.of_files
        self.medium = self.reader.medium
        self.held: dict[str, Medium] = {}  # files that were given as bytes, by the names that stand for them
        self._ahead: dict[str, Medium] = {}  # files of folders that were decoded to validate them, until they are read
        self._last: dict[str, Medium] = {}  # files of the last call, as they are often asked for twice

    def split(self, texts: Sequence[str]) -> list[Sequence[str]]:
        """Memory does not grow with the number of files."""
        return [texts[begin : begin + AT_ONCE] for begin in range(0, len(texts), AT_ONCE)]

    def expand(self, lines: Iterable[str], *, report: Report | None = None) -> Iterator[str]:
        """Each file that is named; a folder names all files in it, with `report` those that can be read."""
        for line in lines:
            name = line.rstrip("\r\n")
            files = named_files(name, medium=self.medium)
            yield from files if report is None or files == [name] else self._readable(name, files, report)

    def encode(self, texts: Sequence[str], what: str, *, numbers: Sequence[int] | None = None) -> list[Any]:
        known = self._last | self.held
        self._last = {}
        for path in texts:
            if path not in self._last and path.strip():
                before = self._ahead.pop(path, None) or known.get(path)
                fresh = before is not None and before.stamp == stamp_of(path)
                self._last[path] = before if before is not None and fresh else self._decode(path)
        return [self._last.get(path, []) for path in texts]

    def make_fields(self, rows: Sequence[Any]) -> dict[str, Any]:
        return {"source": field_of([row.values for row in rows], states=self.reader.states)}

    def hold(self, data: bytes, *, name: str, pixels: int) -> str:
        values = decode(data, self.reader, name=name, pixels=pixels)
        key = f"{HELD}{next(NUMBERS)}/{name}"
        self.held[key] = Medium(key, values, self.reader.states or len(values))
        return key

    def release(self, key: str) -> None:
        del self.held[key]

    def name_input(self, source: str) -> str:
        return Path(source).name

    def label_source(self, row: Any) -> tuple[list[str], Groups]:
        labels = self._label_cells(*self.get_grid(row))
        return labels, [[i] for i in range(len(labels))]

    def make_background(self, row: Any) -> Background | None:
        return Background.of(self._draw(row), self.get_grid(row))

    def get_grid(self, row: Any) -> tuple[int, int]:
        """Rows and columns of the states of a file, as they lie in it."""
        raise NotImplementedError

    def _label_cells(self, high: int, wide: int) -> list[str]:
        raise NotImplementedError

    def _draw(self, row: Any) -> np.ndarray:
        """A file as a picture."""
        raise NotImplementedError

    def _readable(self, name: str, files: Sequence[str], report: Report) -> Iterator[str]:
        """The files of a folder that can be decoded; each is yielded before the next is read."""
        broken = list[str]()
        for path in files:
            try:
                self._ahead[path] = self._decode(path)
            except SaccadeError as error:
                broken.append(str(error))
                report(broken[-1])
            else:
                yield path
        if len(broken) == len(files):
            raise SaccadeError(f"no {self.medium} of {name} can be read: {broken[0]}")

    def _decode(self, path: str) -> Medium:
        stamp, values = stamp_of(path), decode(path, self.reader)
        return Medium(path, values, self.reader.states or len(values), stamp)


class PictureCodec(MediaCodec):
    """Reads pictures, whose states are cells of a grid."""

    reader: PictureReader

    def get_grid(self, row: Any = None) -> tuple[int, int]:
        return self.reader.grid

    def crop_weights(self, address: str, weights: Tensor, *, cell: int | None = None) -> Tensor:
        """Maps without the class token; of a reader, the attention of that token, of a cell, or of all in the mean."""
        if address.startswith("reader."):
            return shown_on_grid(weights, self.reader, self.get_grid(), cell=cell)
        return weights[..., self.reader.class_tokens :] if "cross" in address else weights

    def find_cell(self, target: str) -> int:
        return cell_named(target, self.get_grid())

    def _label_cells(self, high: int, wide: int) -> list[str]:
        return [f"{y + 1},{x + 1}" for y in range(high) for x in range(wide)]

    def _draw(self, row: Any) -> np.ndarray:
        return np.asarray(row.values[0].transpose(1, 2, 0))


def shown_on_grid(
    weights: Float[Tensor, "H Q K"], reader: PictureReader, grid: tuple[int, int], *, cell: int | None
) -> Float[Tensor, "H 1 S"]:
    """What one state looks at, cell by cell: the state before all cells, or all of them in the mean; or this cell."""
    first = reader.class_tokens
    if first and cell is None:
        return weights[:, :1, 1:]
    weights = weights[:, first:, first:]
    if (places := reader.get_level_grid(weights.shape[-1])) is not None:  # of a level below the last: add up by cell
        weights = by_cell(weights, places, grid).sum(-1)
        weights = by_cell(weights.mT, places, grid).mean(-1).mT
    return weights.mean(1, keepdim=True) if cell is None else weights[:, cell : cell + 1]


def by_cell(
    weights: Float[Tensor, "H Q K"], places: tuple[int, int], grid: tuple[int, int]
) -> Float[Tensor, "H Q S n"]:
    """The places of a finer grid that lie in each cell."""
    (rows, columns), (high, wide) = places, grid
    apart = weights.unflatten(-1, (high, rows // high, wide, columns // wide))
    return apart.transpose(-3, -2).flatten(-2).flatten(-3, -2)


def cell_named(target: str, grid: tuple[int, int]) -> int:
    """The number of the cell `ROW,COLUMN`, both counted from 1."""
    found = re.fullmatch(r"\s*(\d+)\s*,\s*(\d+)\s*", target)
    high, wide = grid
    row, column = (int(found[1]), int(found[2])) if found else (0, 0)
    if not (1 <= row <= high and 1 <= column <= wide):
        raise SaccadeError(
            f"of a picture with a label, --target is a cell as ROW,COLUMN, up to {high},{wide}, got {target!r}"
        )
    return (row - 1) * wide + column - 1


class SoundCodec(MediaCodec):
    """Reads sound, whose states follow each other in time."""

    reader: FrameReader

    def get_grid(self, row: Any) -> tuple[int, int]:
        return 1, -(-len(row.values) // self.reader.step)

    def crop_weights(self, address: str, weights: Tensor, *, cell: int | None = None) -> Tensor:
        """Of a reader, the attention of all frames in the mean."""
        return weights.mean(1, keepdim=True) if address.startswith("reader.") else weights

    def _label_cells(self, high: int, wide: int) -> list[str]:
        seconds = self.reader.step * self.reader.sound.hop
        return [f"{x * seconds:.2f} s" for x in range(wide)]

    def _draw(self, row: Any) -> np.ndarray:
        return spectrogram(row.values, columns=self.get_grid(row)[1] * self.reader.step)


CODECS = {"picture": PictureCodec, "sound": SoundCodec}


def make_media_codec(loaded: LoadedModel) -> InputCodec:
    return CODECS[loaded.recipe.reader.medium](loaded)


Describer = partial(Predictor, parts=Parts(make_media_codec, SearchDecoder, TextPresenter))
MediaLabeller = partial(Labeller, parts=Parts(make_media_codec, LabelDecoder, LabelPresenter))
MediaEncoder = partial(Encoder, parts=Parts(make_media_codec, MaskDecoder, FillPresenter))
