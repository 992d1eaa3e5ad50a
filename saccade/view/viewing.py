"""What was looked at, to be shown: in a terminal, as a picture, as a page, in a notebook, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from saccade.errors import SaccadeError
from saccade.files import atomic_write
from saccade.view.background import Background
from saccade.view.document import Document, document, listed
from saccade.view.html import frame, page
from saccade.view.labels import from_to, printable
from saccade.view.maps import AttentionMap, chosen, of_part
from saccade.view.route import Route
from saccade.view.terminal import heatmap
from saccade.view.words import Groups, join, join_labels

if TYPE_CHECKING:
    from saccade.view.picture import Panel

WIDTH = 100  # cells of a terminal, where nobody says how wide it is


@dataclass(frozen=True, eq=False, repr=False)
class View:
    """Maps of one text, with all that is needed to show them; a notebook shows the page."""

    title: str
    input: str | None
    output: str
    labels: Mapping[str, Sequence[str]]  # tokens: source, target, seen
    maps: Sequence[AttentionMap]
    words: Mapping[str, Groups] = field(default_factory=dict)  # which tokens make up a word, for each of the labels
    steps: Sequence[Mapping[str, Any]] = ()  # how the output was found
    background: Background | None = None
    other: View | None = None  # to be compared with
    route: Route | None = None  # where actions led: drawn beside what they looked at

    def beside(self, other: View) -> View:
        """The same, to be compared with another."""
        return replace(self, other=other)

    def only(self, *, part: str | None = None, layer: int | None = None, head: int | None = None) -> View:
        """The same with the maps that are chosen alone; `layer` and `head` are counted from 1."""
        maps = self.maps
        if part is not None or layer is not None:
            first = chosen(maps, part=part, layer=layer)
            maps = of_part(maps, first.part) if layer is None else [first]
        if head is not None:
            maps = [entry.head(head) for entry in maps]
        other = None if self.other is None else self.other.only(part=part, layer=layer, head=head)
        return replace(self, maps=maps, other=other)

    def document(self) -> Document:
        """All of it as plain data (see `saccade.view.document`)."""
        return listed(self.data())

    def data(self) -> Document:
        """The same with weights as arrays."""
        made = document(
            self.maps,
            self.labels,
            title=self.title,
            texts=(self.input, self.output),
            words=self.words,
            steps=self.steps,
            background=None if self.background is None else self.background.described(),
            other=None if self.other is None else self.other.data(),
        )
        return made if self.route is None else {**made, "route": self.route.described()}

    def json(self) -> str:
        return json.dumps(self.document(), ensure_ascii=False)

    def html(self) -> str:
        """The page: one file that needs nothing else."""
        return page(self.data())

    def text(
        self,
        *,
        width: int = WIDTH,
        part: str | None = None,
        layer: int | None = None,
        head: int | None = None,
        words: bool = False,
    ) -> str:
        """For a terminal: what was written, and the map of one layer; without a head, the mean of all."""
        entry = chosen(self.maps, part=part, layer=layer)
        weights, rows, columns = self._shown(entry, head, words=words)
        name = f"mean of {entry.heads} heads" if head is None and entry.heads > 1 else f"head {head or 1}"
        if self._has_picture(entry):
            from saccade.view.spotlight import grids

            drawn = grids(weights.mean(0), rows=rows, background=self._background, width=width)
        else:
            drawn = heatmap(weights.mean(0), rows=rows, columns=columns, width=width)
        whole = f"{self._whole_output()}\n\n{entry.address}, {name}\n{drawn}"
        if self.other is None:
            return whole
        below = self.other.text(width=width, part=part, layer=layer, head=head, words=words)
        return f"{self.title}: {whole}\n\n{self.other.title}: {below}"

    def save(
        self,
        path: str | Path,
        *,
        part: str | None = None,
        layer: int | None = None,
        head: int | None = None,
        words: bool = False,
        theme: str = "light",
    ) -> Path:
        """Writes a page (.html), data (.json), or a picture (.png, .svg) of all heads of one layer."""
        from saccade.view.picture import SUFFIXES  # here and below: what draws takes a while to load

        path = Path(path)
        if path.suffix.lower() in SUFFIXES:
            return self._draw(path, part, layer, head, words=words, theme=theme)
        some = self.only(part=part, layer=layer, head=head)
        makers = {".html": some.html, ".json": some.json}
        if path.suffix.lower() not in makers:
            known = ", ".join([*makers, *SUFFIXES])
            raise SaccadeError(f"the name of a view must end in one of {known}, got {path.name!r}; rename it")
        write(path, makers[path.suffix.lower()]())
        return path

    def _repr_html_(self) -> str:
        return frame(self.data())

    def __str__(self) -> str:
        return self.text() if self.maps else self._whole_output()

    def __repr__(self) -> str:
        return f"<view of {len(self.maps)} attention layers: {from_to(self.input or '', self.output)}>"

    # ---- inside

    def _whole_output(self) -> str:
        """What was written, behind its prompt where there was one."""
        return printable(self.output if self.labels.get("source") else f"{self.input or ''}{self.output}")

    def _has_picture(self, entry: AttentionMap) -> bool:
        return self.background is not None and self.background.columns == entry.columns

    @property
    def _background(self) -> Background:
        assert self.background is not None
        return self.background

    def _shown(
        self, entry: AttentionMap, head: int | None, *, words: bool
    ) -> tuple[NDArray, Sequence[str], Sequence[str]]:
        """Weights, rows and columns of all heads or of one, word by word where that is wanted."""
        weights = entry.weights if head is None else entry.head(head).weights
        rows, columns = entry.labels[entry.rows], entry.labels[entry.columns]
        if not words:
            return weights, rows, columns
        groups = [self.words.get(name) or [[i] for i in range(len(entry.labels[name]))] for name in entry.axes[1:]]
        weights = join(weights, rows=groups[0], columns=groups[1])
        return weights, join_labels(rows, groups[0]), join_labels(columns, groups[1])

    def _draw(
        self, path: Path, part: str | None, layer: int | None, head: int | None, *, words: bool, theme: str
    ) -> Path:
        from saccade.view.picture import draw_panels
        from saccade.view.spotlight import draw_spotlight

        entry = chosen(self.maps, part=part, layer=layer)
        title = from_to(self.input, self.output) if self.labels.get("source") and self.input else self._whole_output()
        if self._has_picture(entry):
            weights, rows, _ = self._shown(entry, head, words=words)
            return draw_spotlight(
                weights.mean(0), rows=rows, background=self._background, path=path, title=title, theme=theme
            )
        panels = self._panels(entry, head, words=words)
        if self.route is not None and self.other is None:
            from saccade.view.route_picture import draw_route

            return draw_route(panels[0], route=self.route, path=path, title=title, theme=theme)
        if self.other is not None:
            there = chosen(self.other.maps, part=entry.part, layer=layer)  # the last of each, where none is asked for
            named = [(self, panels), (self.other, self.other._panels(there, head, words=words))]
            panels = [replace(panel, name=f"{view.title}, {panel.name}") for view, some in named for panel in some]
            title = self.input or ""
        return draw_panels(panels, path=path, title=title, theme=theme)

    def _panels(self, entry: AttentionMap, head: int | None, *, words: bool) -> list[Panel]:
        from saccade.view.picture import Panel

        weights, rows, columns = self._shown(entry, head, words=words)
        numbers = range(1, entry.heads + 1) if head is None else [head]
        return [Panel(one, rows, columns, f"head {number}") for number, one in zip(numbers, weights, strict=True)]


def write(path: Path, text: str) -> None:
    """Writes a file that is whole or absent, into a folder that is made if need be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SaccadeError(
            f"cannot write {path}: {error.strerror or error}; check the folder and your permission to write there"
        ) from None
    atomic_write(path, text.encode())
