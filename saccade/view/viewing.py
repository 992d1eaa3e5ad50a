"""`View`: the attention weights of one decoded input, to show in a terminal, plot, page, notebook or as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

from saccade.errors import SaccadeError
from saccade.files import atomic_write
from saccade.view.background import Background
from saccade.view.document import Document, build_document, to_lists
from saccade.view.html import build_iframe, build_page
from saccade.view.labels import escape_control_characters, format_pair
from saccade.view.maps import AttentionMap, filter_by_part, select_map
from saccade.view.terminal import heatmap
from saccade.view.words import Groups, merge_labels, merge_tokens

if TYPE_CHECKING:
    from saccade.view.picture import Panel

DEFAULT_WIDTH = 100  # terminal cells


class StepMap(Protocol):
    """A map that the steps of an output lead through, which a plugin brings."""

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain data for the page: `items`, `ways`, `poses` and `colours` (see `saccade.view.document`)."""
        ...

    def draw(self, panel: Panel, *, path: Path, title: str, theme: str) -> Path:
        """Draw the map and, beside it, the attention weights of a panel."""
        ...


@dataclass(frozen=True, eq=False, repr=False)
class View:
    """The attention maps of one input and output with their labels; notebooks display it as the interactive page."""

    title: str
    input: str | None
    output: str
    labels: Mapping[str, Sequence[str]]  # tokens: source, target, seen
    maps: Sequence[AttentionMap]
    words: Mapping[str, Groups] = field(default_factory=dict)  # tokens of each word, for each of the labels
    steps: Sequence[Mapping[str, Any]] = ()  # decoding steps: next-token probabilities and beam
    background: Background | None = None
    other: View | None = None  # a second view to compare with
    route: StepMap | None = None  # a map that the steps lead through, drawn beside the attention weights

    def beside(self, other: View) -> View:
        """Return a copy that is shown next to another view."""
        return replace(self, other=other)

    def only(self, *, part: str | None = None, layer: int | None = None, head: int | None = None) -> View:
        """Return a copy with only the selected maps; `layer` and `head` are counted from 1."""
        maps = self.maps
        if part is not None or layer is not None:
            first = select_map(maps, part=part, layer=layer)
            maps = filter_by_part(maps, first.part) if layer is None else [first]
        if head is not None:
            maps = [entry.head(head) for entry in maps]
        other = None if self.other is None else self.other.only(part=part, layer=layer, head=head)
        return replace(self, maps=maps, other=other)

    def document(self) -> Document:
        """Convert to plain data for JSON (see `saccade.view.document`)."""
        return to_lists(self.data())

    def data(self) -> Document:
        """Convert to a document with weights as arrays."""
        data = build_document(
            self.maps,
            self.labels,
            title=self.title,
            texts=(self.input, self.output),
            words=self.words,
            steps=self.steps,
            background=None if self.background is None else self.background.to_dict(),
            other=None if self.other is None else self.other.data(),
        )
        return data if self.route is None else {**data, "route": self.route.to_dict()}

    def json(self) -> str:
        return json.dumps(self.document(), ensure_ascii=False)

    def html(self) -> str:
        """Build the interactive page, a self-contained HTML file."""
        return build_page(self.data())

    def text(
        self,
        *,
        width: int = DEFAULT_WIDTH,
        part: str | None = None,
        layer: int | None = None,
        head: int | None = None,
        words: bool = False,
    ) -> str:
        """Format for a terminal: the output and the map of one layer; by default, the mean of all heads."""
        entry = select_map(self.maps, part=part, layer=layer)
        weights, rows, columns = self._select_weights(entry, head, words=words)
        name = f"mean of {entry.heads} heads" if head is None and entry.heads > 1 else f"head {head or 1}"
        if self._has_picture(entry):
            from saccade.view.spotlight import format_grids

            map_text = format_grids(weights.mean(0), rows=rows, background=self._background, width=width)
        else:
            map_text = heatmap(weights.mean(0), rows=rows, columns=columns, width=width)
        text = f"{self._format_output()}\n\n{entry.address}, {name}\n{map_text}"
        if self.other is None:
            return text
        other_text = self.other.text(width=width, part=part, layer=layer, head=head, words=words)
        return f"{self.title}: {text}\n\n{self.other.title}: {other_text}"

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
        """Write a page (.html), data (.json), or a plot (.png, .svg) of all heads of one layer."""
        from saccade.view.picture import SUFFIXES  # here and below: matplotlib loads slowly

        path = Path(path)
        if path.suffix.lower() in SUFFIXES:
            return self._draw_picture(path, part, layer, head, words=words, theme=theme)
        selected = self.only(part=part, layer=layer, head=head)
        formats = {".html": selected.html, ".json": selected.json}
        if path.suffix.lower() not in formats:
            known = ", ".join([*formats, *SUFFIXES])
            raise SaccadeError(f"the name of a view must end in one of {known}, got {path.name!r}; rename it")
        write_text(path, formats[path.suffix.lower()]())
        return path

    def _repr_html_(self) -> str:
        return build_iframe(self.data())

    def __str__(self) -> str:
        return self.text() if self.maps else self._format_output()

    def __repr__(self) -> str:
        return f"<view of {len(self.maps)} attention layers: {format_pair(self.input or '', self.output)}>"

    def _format_output(self) -> str:
        """Format the output; for language models, preceded by the prompt."""
        return escape_control_characters(
            self.output if self.labels.get("source") else f"{self.input or ''}{self.output}"
        )

    def _has_picture(self, entry: AttentionMap) -> bool:
        return self.background is not None and self.background.columns == entry.columns

    @property
    def _background(self) -> Background:
        assert self.background is not None
        return self.background

    def _select_weights(
        self, entry: AttentionMap, head: int | None, *, words: bool
    ) -> tuple[NDArray, Sequence[str], Sequence[str]]:
        """Select weights, row labels and column labels of all heads or of one; `words` merges subword tokens."""
        weights = entry.weights if head is None else entry.head(head).weights
        rows, columns = entry.labels[entry.rows], entry.labels[entry.columns]
        if not words:
            return weights, rows, columns
        groups = [self.words.get(name) or [[i] for i in range(len(entry.labels[name]))] for name in entry.axes[1:]]
        weights = merge_tokens(weights, rows=groups[0], columns=groups[1])
        return weights, merge_labels(rows, groups[0]), merge_labels(columns, groups[1])

    def _draw_picture(
        self, path: Path, part: str | None, layer: int | None, head: int | None, *, words: bool, theme: str
    ) -> Path:
        from saccade.view.picture import draw_panels
        from saccade.view.spotlight import draw_spotlight

        entry = select_map(self.maps, part=part, layer=layer)
        title = (
            format_pair(self.input, self.output) if self.labels.get("source") and self.input else self._format_output()
        )
        if self._has_picture(entry):
            weights, rows, _ = self._select_weights(entry, head, words=words)
            return draw_spotlight(
                weights.mean(0), rows=rows, background=self._background, path=path, title=title, theme=theme
            )
        panels = self._build_panels(entry, head, words=words)
        if self.route is not None and self.other is None:
            return self.route.draw(panels[0], path=path, title=title, theme=theme)
        if self.other is not None:
            # by default, the last layer of each
            other_entry = select_map(self.other.maps, part=entry.part, layer=layer)
            both = [(self, panels), (self.other, self.other._build_panels(other_entry, head, words=words))]
            panels = [replace(panel, name=f"{view.title}, {panel.name}") for view, own in both for panel in own]
            title = self.input or ""
        return draw_panels(panels, path=path, title=title, theme=theme)

    def _build_panels(self, entry: AttentionMap, head: int | None, *, words: bool) -> list[Panel]:
        from saccade.view.picture import Panel

        weights, rows, columns = self._select_weights(entry, head, words=words)
        numbers = range(1, entry.heads + 1) if head is None else [head]
        return [Panel(one, rows, columns, f"head {number}") for number, one in zip(numbers, weights, strict=True)]


def write_text(path: Path, text: str) -> None:
    """Write a file atomically, creating its folder if needed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SaccadeError(
            f"cannot write {path}: {error.strerror or error}; check the folder and your permission to write there"
        ) from None
    atomic_write(path, text.encode())
