"""Figures of the lecture report, as SVG, and their data as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from saccade.plotting import Figure

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#999999")  # Okabe and Ito
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
MAX_MARKED_POINTS = 24  # points of a curve, above which markers are omitted


class Drawing(Protocol):
    """A figure that a check can return."""

    @property
    def caption(self) -> str: ...

    def plot(self, figure: Figure) -> None:
        """Plot it with matplotlib."""
        ...

    def rows(self) -> Iterator[list[object]]:
        """Yield its data as lines of a CSV file, titles first."""
        ...


@dataclass(frozen=True)
class Lines:
    """Line plots with a common x axis: name -> (x, y)."""

    x: str
    y: str
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]]
    caption: str
    log_x: bool = False
    log_y: bool = False

    def plot(self, figure: Figure) -> None:
        axes = figure.add_subplot()
        for index, (name, (x, y)) in enumerate(self.curves.items()):
            mark = MARKS[index % len(MARKS)] if len(x) <= MAX_MARKED_POINTS else ""
            axes.plot(x, y, label=name, color=COLOURS[index % len(COLOURS)], marker=mark, markersize=4, linewidth=1.4)
        axes.set_xscale("log" if self.log_x else "linear")
        axes.set_yscale("log" if self.log_y else "linear")
        axes.set_xlabel(self.x)
        axes.set_ylabel(self.y)
        axes.grid(alpha=0.3, linewidth=0.5)
        if len(self.curves) > 1:
            axes.legend(fontsize=8, frameon=False)

    def rows(self) -> Iterator[list[object]]:
        """Yield one line for each point."""
        yield ["curve", self.x, self.y]
        for name, (x, y) in self.curves.items():
            yield from ([name, *point] for point in zip(x, y, strict=True))


@dataclass(frozen=True)
class Matrix:
    """A heat map, such as attention weights of queries (rows) over keys (columns)."""

    row_title: str
    column_title: str
    values: Sequence[Sequence[float]]
    caption: str
    row_labels: Sequence[str] = ()
    column_labels: Sequence[str] = ()

    def plot(self, figure: Figure) -> None:
        axes = figure.add_subplot()
        low = min(min(row) for row in self.values)
        colours = "Blues" if low >= 0 else "RdBu"
        image = axes.imshow(self.values, aspect="auto", cmap=colours, vmin=0 if low >= 0 else -1)
        axes.set_xlabel(self.column_title)
        axes.set_ylabel(self.row_title)
        if self.row_labels:
            axes.set_yticks(range(len(self.row_labels)), self.row_labels)
        if self.column_labels:
            axes.set_xticks(range(len(self.column_labels)), self.column_labels)
        figure.colorbar(image, ax=axes, shrink=0.9)

    def rows(self) -> Iterator[list[object]]:
        """Yield one line for each row of the matrix."""
        width = len(self.values[0])
        yield [f"{self.row_title} / {self.column_title}", *(self.column_labels or range(1, width + 1))]
        labels = self.row_labels or [str(number) for number in range(1, len(self.values) + 1)]
        yield from ([label, *row] for label, row in zip(labels, self.values, strict=True))


def to_svg(drawing: Drawing) -> str:
    """Render a figure as SVG; text stays text, so that it can be searched and read aloud."""
    from saccade.plotting import Figure, reproducible_plot

    with reproducible_plot():
        figure = Figure(figsize=(5.6, 3.4), layout="constrained")
        drawing.plot(figure)
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata={"Date": None})
    return written.getvalue()


def to_csv(drawing: Drawing) -> str:
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerows(drawing.rows())
    return written.getvalue()
