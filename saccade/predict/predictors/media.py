"""A trained run that reads pictures or sound: texts that are given to it are the names of files."""

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from saccade.config.schema import Decoding, FrameReader, MediaReader, PatchReader
from saccade.data.batching.batch import Batch, pad
from saccade.data.media.decoding import decode
from saccade.data.media.pictures import MOST_PIXELS
from saccade.data.sources.media import named_files
from saccade.data.store.media import field_of
from saccade.data.tokenization.words import Worded
from saccade.errors import SaccadeError
from saccade.predict.cells import cell_named, shown_on_grid
from saccade.predict.inputs import Tell
from saccade.predict.outputs import Hypothesis
from saccade.predict.predictors.labels import Labeller
from saccade.predict.predictors.predictor import Predictor
from saccade.predict.search.greedy import Found
from saccade.view.background import Background
from saccade.view.spectrogram import spectrogram
from saccade.view.viewing import View
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


class OfMedia(Predictor):
    """What is the same whether files are described or labelled."""

    names_inputs = True
    cell: int | None = None  # whose looks are shown; none: of the state that stands for all, or of all in the mean

    @property
    def medium(self) -> str:  # type: ignore[override]
        return self.reader.medium

    @property
    def media(self) -> MediaReader:
        assert isinstance(self.recipe.reader, MediaReader), "the task says so"
        return self.recipe.reader

    @property
    def reader(self) -> MediaReader:
        """What reads the files."""
        return self.media.of_files

    @cached_property
    def held(self) -> dict[str, Medium]:
        """Files that were given as bytes, by the names that stand for them."""
        return {}

    def hold(self, data: bytes, *, name: str, pixels: int = MOST_PIXELS) -> str:
        """Decodes a file that is not on the disk, and gives what stands for it where a file is named; see release()."""
        values = decode(data, self.reader, name=name, pixels=pixels)
        key = f"{HELD}{next(NUMBERS)}/{name}"
        self.held[key] = Medium(key, values, self.reader.states or len(values))
        return key

    def release(self, key: str) -> None:
        """Forgets what was held."""
        del self.held[key]

    @cached_property
    def ahead(self) -> dict[str, Medium]:
        """Files of folders that were decoded to see whether they can be, until they are read."""
        return {}

    def inputs(self, lines: Iterable[str], *, tell: Tell | None = None) -> Iterator[str]:
        """Each file that is named; a folder names all that are in it, with `tell` those that can be read."""
        for line in lines:
            name = line.rstrip("\r\n")
            files = named_files(name, medium=self.reader.medium)
            yield from files if tell is None or files == [name] else self._whole(name, files, tell)

    def candidates(
        self, texts: Sequence[str], *, decoding: Decoding | None = None, align: bool = False, scored: bool = True
    ) -> list[list[Hypothesis]]:
        """Some files at a time, so that memory does not grow with their number."""
        if isinstance(texts, str):
            raise SaccadeError(f"expected a list of files, got the single text {texts[:20]!r}; put it in a list")
        found: list[list[Hypothesis]] = []
        for begin in range(0, len(texts), AT_ONCE):
            part = texts[begin : begin + AT_ONCE]
            found += super().candidates(part, decoding=decoding, align=align, scored=scored)
        return found

    def unreadable(self, names: Iterable[str]) -> dict[str, str]:
        """Those that cannot be read, and why."""
        broken = {}
        for name in names:
            try:
                self._read([name], "file")
            except SaccadeError as error:
                broken[name] = str(error)
        return broken

    # ---- inside

    def _whole(self, name: str, files: Sequence[str], tell: Tell) -> Iterator[str]:
        """The files of a folder that can be read; one that cannot does not keep the others waiting."""
        broken = list[str]()
        for path in files:
            try:
                self.ahead[path] = self._decoded(path)
            except SaccadeError as error:
                broken.append(str(error))
                tell(broken[-1])
            else:
                yield path
        if len(broken) == len(files):
            raise SaccadeError(f"no {self.reader.medium} of {name} can be read: {broken[0]}")

    def _read(self, texts: Sequence[str], what: str, *, first: int = 1) -> list[Any]:
        """The files, decoded; those of the last call are still there, as they are asked for twice."""
        known: dict[str, Medium] = getattr(self, "_last", {}) | self.held
        self._last: dict[str, Medium] = {}
        for path in texts:
            if path not in self._last and path.strip():
                before = self.ahead.pop(path, None) or known.get(path)
                fresh = before is not None and before.stamp == stamp_of(path)
                self._last[path] = before if before is not None and fresh else self._decoded(path)
        return [self._last.get(path, []) for path in texts]

    def _decoded(self, path: str) -> Medium:
        stamp, values = stamp_of(path), decode(path, self.reader)
        return Medium(path, values, self.reader.states or len(values), stamp)

    def _fitting(self, texts: Sequence[str], decoding: Decoding) -> int:
        """How many files stand before the first one that cannot be read."""
        try:
            self._read(texts, "line")
        except SaccadeError:
            pass
        else:
            return len(texts)
        for number in range(len(texts)):
            try:
                self._read(texts[: number + 1], "line")
            except SaccadeError:
                return number
        return len(texts)

    def _batch(self, *, source: Sequence[Any], target: Sequence[list[int]] | None = None) -> Batch:
        fields: dict[str, Any] = {"source": field_of([one.values for one in source], states=self.reader.states)}
        if target is not None:
            fields["target"] = pad(target)
        return Batch(fields).to(self.device)

    def _hypothesis(self, item: Found, source: str, length: int, *, align: bool) -> Hypothesis:
        text = self.tokenizers.target.decode(item.ids)
        return Hypothesis(item.ids, text, item.score, item.log_prob, item.alignment if align else None)

    def _grid(self, row: Any) -> tuple[int, int]:
        """Rows and columns of the states of what was read, as they lie in it."""
        if isinstance(self.reader, FrameReader):
            return 1, -(-len(row.values) // self.reader.step)
        reader: Any = self.model.reader
        high, wide = reader.grid
        return int(high), int(wide)

    def _source_labels(self, row: Any) -> tuple[list[str], Groups]:
        high, wide = self._grid(row)
        if isinstance(self.reader, FrameReader):
            seconds = self.reader.step * self.reader.sound.hop
            return [f"{x * seconds:.2f} s" for x in range(wide)], [[i] for i in range(wide)]
        return [f"{y + 1},{x + 1}" for y in range(high) for x in range(wide)], [[i] for i in range(high * wide)]

    def _shown(self, address: str, weights: Tensor) -> Tensor:
        """Maps without the state that stands for all; of a reader, what that one looks at, or all in the mean."""
        settings = self.reader
        if address.startswith("reader.") and isinstance(settings, FrameReader):
            return weights.mean(1, keepdim=True)
        if address.startswith("reader."):
            return shown_on_grid(weights, settings, self._grid(None), cell=self.cell)
        first = isinstance(settings, PatchReader) and settings.first
        return weights[..., 1:] if first and "cross" in address else weights

    def _called(self, source: str) -> str:
        return Path(source).name

    def _background(self, row: Any) -> Background | None:
        if isinstance(self.reader, FrameReader):
            columns = self._grid(row)[1] * self.reader.step
            return Background.of(spectrogram(row.values, columns=columns), self._grid(row))
        return Background.of(row.values[0].transpose(1, 2, 0), self._grid(row))


class Describer(OfMedia):
    """Files in, texts out."""


class MediaLabeller(OfMedia, Labeller):
    """Files in, classes out."""

    def view(
        self, source: str, target: str | None = None, *, decoding: Decoding | None = None, title: str = ""
    ) -> View:
        """What the state that stands for all, or all states in the mean, look at: it is that which says the class.

        With a target `ROW,COLUMN`, what that cell looks at.
        """
        if target is not None and not isinstance(self.reader, FrameReader):
            chosen = copy(self)  # shares the model
            chosen.cell = cell_named(target, self._grid(None))
            return chosen.view(source, decoding=decoding, title=title)
        seen = super().view(source, target, decoding=decoding, title=title)
        who = seen.output if self.cell is None else f"from {seen.labels['source'][self.cell]}"
        label = {"target": [who]}
        maps = [
            replace(one, rows="target", labels={**label, one.columns: one.labels[one.columns]})
            if len(one.labels[one.rows]) == 1
            else one
            for one in seen.maps
        ]
        shown = {name: labels for one in maps for name, labels in one.labels.items()}
        return replace(seen, maps=maps, labels={**label, "source": seen.labels["source"], **shown})

    def _rows(self, texts: Sequence[str], *, first: int, lines: Sequence[int] | None = None) -> list[Worded]:
        return [Worded(row, [0]) for row in self._read(texts, "line", first=first)]

    def _fitting(self, texts: Sequence[str], decoding: Decoding) -> int:
        return OfMedia._fitting(self, texts, decoding)
