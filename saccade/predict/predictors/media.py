"""Inference with runs that read pictures or sound; their inputs are file names."""

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

from saccade.config.media import OwnMediaReader
from saccade.config.schema import FrameReader, MediaReader, PictureReader
from saccade.data.media.decoding import decode
from saccade.data.sources.media import list_files
from saccade.data.store.media import collate_media
from saccade.errors import SaccadeError
from saccade.predict.predictors.encoder import Encoder, FillPresenter, MaskDecoder
from saccade.predict.predictors.labels import LabelDecoder, Labeller, LabelPresenter
from saccade.predict.predictors.parts import InputCodec, LoadedModel, PredictorParts, Report
from saccade.predict.predictors.predictor import Predictor
from saccade.predict.predictors.text import SearchDecoder, TextPresenter
from saccade.view.background import Background
from saccade.view.spectrogram import render_spectrogram
from saccade.view.words import Groups

MAX_FILES_IN_MEMORY = 512  # decoded files in memory at a time
REGISTERED_PREFIX, FILE_NUMBERS = "held:", itertools.count(1)  # names of files given as bytes


@dataclass(frozen=True, eq=False)
class DecodedFile:
    """A decoded file; its length is the number of states that the reader makes of it, or of its frames."""

    path: str
    values: np.ndarray
    states: int
    stamp: tuple[int, int] | None = None  # modification time and size of the file when it was read

    def __len__(self) -> int:
        return self.states


def get_file_stamp(path: str) -> tuple[int, int] | None:
    """Return modification time (ns) and size of a file, to detect that it was replaced; None if it does not exist."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # not a valid file name
        return None
    return status.st_mtime_ns, status.st_size


class MediaCodec(InputCodec):
    """Reads files by name: a row is a decoded file."""

    input_noun = "files"
    shows_input_names = True
    reader: MediaReader  # reader configuration

    def __init__(self, loaded: LoadedModel) -> None:
        super().__init__(loaded)
        assert self.recipe.reader.media is not None, "the task says so"
        self.media, self.reader = self.recipe.reader.media, self.recipe.reader.media.file_reader
        self.medium = self.reader.medium
        self.registered: dict[str, DecodedFile] = {}  # files given as bytes, by the names that stand for them
        self._prefetched: dict[str, DecodedFile] = {}  # files decoded to validate a folder, until they are used
        self._last: dict[str, DecodedFile] = {}  # files of the last call, which are often requested again

    def split(self, texts: Sequence[str]) -> list[Sequence[str]]:
        """Split inputs, so that memory does not grow with the number of files."""
        return [texts[begin : begin + MAX_FILES_IN_MEMORY] for begin in range(0, len(texts), MAX_FILES_IN_MEMORY)]

    def expand(self, lines: Iterable[str], *, report: Report | None = None) -> Iterator[str]:
        """Yield the named files. A folder stands for its files; with `report`, only for those that can be read."""
        for line in lines:
            name = line.rstrip("\r\n")
            files = list_files(name, medium=self.medium, suffixes=self.reader.suffixes)
            yield from files if report is None or files == [name] else self._iterate_readable(name, files, report)

    def encode(self, texts: Sequence[str], what: str, *, numbers: Sequence[int] | None = None) -> list[Any]:
        known = self._last | self.registered
        self._last = {}
        for path in texts:
            if path not in self._last and path.strip():
                cached = self._prefetched.pop(path, None) or known.get(path)
                is_fresh = cached is not None and cached.stamp == get_file_stamp(path)
                self._last[path] = cached if cached is not None and is_fresh else self._decode(path)
        return [self._last.get(path, []) for path in texts]

    def make_fields(self, rows: Sequence[Any]) -> dict[str, Any]:
        return {"source": collate_media([row.values for row in rows], num_states=self.reader.states)}

    def register_file(self, data: bytes, *, name: str, max_pixels: int) -> str:
        return self.register_decoded(decode(data, self.reader, name=name, max_pixels=max_pixels), name=name)

    def register_decoded(self, values: np.ndarray, *, name: str) -> str:
        key = f"{REGISTERED_PREFIX}{next(FILE_NUMBERS)}/{name}"
        self.registered[key] = DecodedFile(key, values, self.reader.states or len(values))
        return key

    def release_file(self, key: str) -> None:
        del self.registered[key]

    def name_input(self, source: str) -> str:
        return Path(source).name

    def label_source(self, row: Any) -> tuple[list[str], Groups]:
        labels = self._label_cells(*self.get_grid(row))
        return labels, [[i] for i in range(len(labels))]

    def make_background(self, row: Any) -> Background | None:
        return Background.of(self._draw(row), self.get_grid(row))

    def get_grid(self, row: Any) -> tuple[int, int]:
        """Return rows and columns of the reader's states as they lie in the file."""
        raise NotImplementedError

    def _label_cells(self, high: int, wide: int) -> list[str]:
        raise NotImplementedError

    def _draw(self, row: Any) -> np.ndarray:
        """Return the file as an image for display."""
        raise NotImplementedError

    def _iterate_readable(self, name: str, files: Sequence[str], report: Report) -> Iterator[str]:
        """Yield the files of a folder that can be decoded, each before the next is read."""
        broken = list[str]()
        for path in files:
            try:
                self._prefetched[path] = self._decode(path)
            except SaccadeError as error:
                broken.append(str(error))
                report(broken[-1])
            else:
                yield path
        if len(broken) == len(files):
            raise SaccadeError(f"no {self.medium} of {name} can be read: {broken[0]}")

    def _decode(self, path: str) -> DecodedFile:
        stamp, values = get_file_stamp(path), decode(path, self.reader)
        return DecodedFile(path, values, self.reader.states or len(values), stamp)


class PictureCodec(MediaCodec):
    """Reads pictures, whose states are cells of a grid."""

    reader: PictureReader

    def get_grid(self, row: Any = None) -> tuple[int, int]:
        return self.reader.grid

    def crop_weights(self, address: str, weights: Tensor, *, cell: int | None = None) -> Tensor:
        """Drop the class token; for reader layers, pool the weights to the grid, see `pool_to_grid`."""
        if address.startswith("reader."):
            return pool_to_grid(weights, self.reader, self.get_grid(), cell=cell)
        return weights[..., self.reader.class_tokens :] if "cross" in address else weights

    def find_cell(self, target: str) -> int:
        return parse_cell(target, self.get_grid())

    def _label_cells(self, high: int, wide: int) -> list[str]:
        return [f"{y + 1},{x + 1}" for y in range(high) for x in range(wide)]

    def _draw(self, row: Any) -> np.ndarray:
        return np.asarray(row.values[0].transpose(1, 2, 0))


def pool_to_grid(
    weights: Float[Tensor, "H Q K"], reader: PictureReader, grid: tuple[int, int], *, cell: int | None
) -> Float[Tensor, "H 1 S"]:
    """Return the attention of one query over the cells of the grid.

    The query is `cell` if given, else the class token if the reader has one, else the mean over all cells. Layers with
    a finer grid (lower levels of a hierarchical reader) are summed over keys and averaged over queries of each cell.
    """
    class_tokens = reader.class_tokens
    if class_tokens and cell is None:
        return weights[:, :1, 1:]
    weights = weights[:, class_tokens:, class_tokens:]
    if (fine_grid := reader.get_level_grid(weights.shape[-1])) is not None:  # a finer grid of a lower level
        weights = group_by_cell(weights, fine_grid, grid).sum(-1)
        weights = group_by_cell(weights.mT, fine_grid, grid).mean(-1).mT
    return weights.mean(1, keepdim=True) if cell is None else weights[:, cell : cell + 1]


def group_by_cell(
    weights: Float[Tensor, "H Q K"], fine_grid: tuple[int, int], grid: tuple[int, int]
) -> Float[Tensor, "H Q S n"]:
    """Group the key positions of a finer grid by the cell that they lie in."""
    (rows, columns), (high, wide) = fine_grid, grid
    split = weights.unflatten(-1, (high, rows // high, wide, columns // wide))
    return split.transpose(-3, -2).flatten(-2).flatten(-3, -2)


def parse_cell(target: str, grid: tuple[int, int]) -> int:
    """Return the index of the cell `ROW,COLUMN`, both counted from 1."""
    found = re.fullmatch(r"\s*(\d+)\s*,\s*(\d+)\s*", target)
    high, wide = grid
    row, column = (int(found[1]), int(found[2])) if found else (0, 0)
    if not (1 <= row <= high and 1 <= column <= wide):
        raise SaccadeError(
            f"of a picture with a label, --target is a cell as ROW,COLUMN, up to {high},{wide}, got {target!r}"
        )
    return (row - 1) * wide + column - 1


class SoundCodec(MediaCodec):
    """Reads sound, whose states are a sequence in time."""

    reader: FrameReader

    def get_grid(self, row: Any) -> tuple[int, int]:
        return 1, -(-len(row.values) // self.reader.step)

    def crop_weights(self, address: str, weights: Tensor, *, cell: int | None = None) -> Tensor:
        """Average reader layers over all query frames."""
        return weights.mean(1, keepdim=True) if address.startswith("reader.") else weights

    def _label_cells(self, high: int, wide: int) -> list[str]:
        seconds = self.reader.step * self.reader.sound.hop
        return [f"{x * seconds:.2f} s" for x in range(wide)]

    def _draw(self, row: Any) -> np.ndarray:
        return render_spectrogram(row.values, columns=self.get_grid(row)[1] * self.reader.step)


class FeatureCodec(MediaCodec):
    """Reads files of a modality of the user's own, whose states are a sequence."""

    reader: OwnMediaReader

    def get_grid(self, row: Any) -> tuple[int, int]:
        return 1, -(-len(row.values) // self.reader.step)

    def crop_weights(self, address: str, weights: Tensor, *, cell: int | None = None) -> Tensor:
        """Average reader layers over all query positions."""
        return weights.mean(1, keepdim=True) if address.startswith("reader.") else weights

    def _label_cells(self, high: int, wide: int) -> list[str]:
        return [str(x * self.reader.step + 1) for x in range(wide)]

    def _draw(self, row: Any) -> np.ndarray:
        features = row.values.reshape(len(row.values), -1)
        return render_spectrogram(features, columns=self.get_grid(row)[1] * self.reader.step)


MEDIA_CODECS = {"picture": PictureCodec, "sound": SoundCodec}


def make_media_codec(loaded: LoadedModel) -> InputCodec:
    reader = loaded.recipe.reader
    return FeatureCodec(loaded) if reader.is_custom else MEDIA_CODECS[reader.medium](loaded)


Describer = partial(Predictor, parts=PredictorParts(make_media_codec, SearchDecoder, TextPresenter))
MediaLabeller = partial(Labeller, parts=PredictorParts(make_media_codec, LabelDecoder, LabelPresenter))
MediaEncoder = partial(Encoder, parts=PredictorParts(make_media_codec, MaskDecoder, FillPresenter))
