"""Drawings of the report: an SVG picture, and the same numbers as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from saccade.lectures.claims import Drawing, Lines, Matrix

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#999999")  # Okabe and Ito
MARKS = ("o", "s", "^", "D", "v", "P", "X", "*")
MANY = 24  # points, above which a curve needs no marks


def as_svg(drawing: Drawing) -> str:
    """The picture; letters stay letters, so that they can be found and read aloud."""
    with matplotlib.rc_context({"svg.hashsalt": "saccade", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(5.6, 3.4), layout="constrained")
        axes = figure.add_subplot()
        if isinstance(drawing, Lines):
            _lines(axes, drawing)
        else:
            _matrix(figure, axes, drawing)
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata={"Date": None})
    return written.getvalue()


def _lines(axes: Axes, drawing: Lines) -> None:
    for index, (name, (x, y)) in enumerate(drawing.curves.items()):
        mark = MARKS[index % len(MARKS)] if len(x) <= MANY else ""
        axes.plot(x, y, label=name, color=COLOURS[index % len(COLOURS)], marker=mark, markersize=4, linewidth=1.4)
    axes.set_xscale("log" if drawing.log_x else "linear")
    axes.set_yscale("log" if drawing.log_y else "linear")
    axes.set_xlabel(drawing.x)
    axes.set_ylabel(drawing.y)
    axes.grid(alpha=0.3, linewidth=0.5)
    if len(drawing.curves) > 1:
        axes.legend(fontsize=8, frameon=False)


def _matrix(figure: Figure, axes: Axes, drawing: Matrix) -> None:
    low = min(min(row) for row in drawing.values)
    colours = "Blues" if low >= 0 else "RdBu"
    shown = axes.imshow(drawing.values, aspect="auto", cmap=colours, vmin=0 if low >= 0 else -1)
    axes.set_xlabel(drawing.columns)
    axes.set_ylabel(drawing.rows)
    if drawing.row_labels:
        axes.set_yticks(range(len(drawing.row_labels)), drawing.row_labels)
    if drawing.column_labels:
        axes.set_xticks(range(len(drawing.column_labels)), drawing.column_labels)
    figure.colorbar(shown, ax=axes, shrink=0.9)


def as_csv(drawing: Drawing) -> str:
    """One line for each point, or one for each row of a matrix."""
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerows(_rows(drawing))
    return written.getvalue()


def _rows(drawing: Drawing) -> Iterator[list[object]]:
    if isinstance(drawing, Lines):
        yield ["curve", drawing.x, drawing.y]
        for name, (x, y) in drawing.curves.items():
            yield from ([name, *point] for point in zip(x, y, strict=True))
        return
    width = len(drawing.values[0])
    yield [f"{drawing.rows} / {drawing.columns}", *(drawing.column_labels or range(1, width + 1))]
    labels = drawing.row_labels or [str(number) for number in range(1, len(drawing.values) + 1)]
    yield from ([label, *row] for label, row in zip(labels, drawing.values, strict=True))
