"""An attention map, or a grid of them, as a PNG or SVG picture."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from numpy.typing import ArrayLike

from saccade.errors import SaccadeError
from saccade.view.fonts import drawable, families_for
from saccade.view.labels import checked, clusters, readable, shortened, visual_order

SUFFIXES = (".png", ".svg")
# Sequential maps that colour-blind people read too; nothing is the colour of the paper.
THEMES = {"light": ("Blues", "white", "#1b1b1b"), "dark": ("cividis", "#14161a", "#e6e6e6")}
LONGEST = 24.0  # inches of one side of the picture
LONGEST_LABEL = 24  # characters
CELL = 0.24  # inches; less when the map would become too large
POINTS = 72  # in an inch
UPRIGHT = 2  # characters of a column's label that fit over a cell; a longer label is turned


@dataclass(frozen=True)
class Panel:
    """One map (T, S) with its labels."""

    weights: ArrayLike
    rows: Sequence[str]
    columns: Sequence[str]
    name: str = ""


def draw(
    maps: Mapping[str, ArrayLike] | ArrayLike,
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    path: str | Path,
    title: str = "",
    theme: str = "light",
) -> Path:
    """Draws one map (T, S), or one panel for each entry of `maps`, and returns the path of the picture."""
    named = dict(maps) if isinstance(maps, Mapping) else {"": maps}
    panels = [Panel(weights, rows, columns, name) for name, weights in named.items()]
    return draw_panels(panels, path=path, title=title, theme=theme)


def draw_panels(panels: Sequence[Panel], *, path: str | Path, title: str = "", theme: str = "light") -> Path:
    """Draws maps with labels of their own side by side, in one scale of colours."""
    path = check_picture(path, theme=theme)
    if not panels:
        raise SaccadeError("maps must hold at least one map, got none")
    panels = [_in_order(panel) for panel in panels]
    texts = [title, *(text for panel in panels for text in (panel.name, *panel.rows, *panel.columns))]
    with styled(texts, theme=theme) as families:
        panels = [_drawable(panel, families) for panel in panels]
        save(_figure(panels, title=drawable(title, families=families), colours=THEMES[theme][0]), path)
    return path


def check_picture(path: str | Path, *, theme: str) -> Path:
    """The path of a picture that can be drawn in this theme."""
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise SaccadeError(f"the picture's name must end in .png or .svg, got {path.name!r}; rename it")
    if theme not in THEMES:
        raise SaccadeError(f"theme must be one of {', '.join(THEMES)}, got {theme!r}")
    return path


@contextmanager
def styled(texts: Sequence[str], *, theme: str) -> Iterator[list[str]]:
    """Fonts for these texts and the colours of a theme, as long as it lasts; gives the families of the fonts."""
    families = families_for([*texts, "U+0123456789ABCDEF"])
    with matplotlib.rc_context():
        _set(families, theme)
        yield families


def _in_order(panel: Panel) -> Panel:
    """The panel with readable labels, its columns from left to right as their text is written."""
    array = checked(panel.weights, rows=panel.rows, columns=panel.columns, name=panel.name or "weights")
    order = visual_order(panel.columns)
    rows = [shortened(readable(row), most=LONGEST_LABEL) for row in panel.rows]
    columns = [shortened(readable(panel.columns[i]), most=LONGEST_LABEL) for i in order]
    return Panel(array[:, order], rows, columns, panel.name)


def _drawable(panel: Panel, families: Sequence[str]) -> Panel:
    rows, columns = ([drawable(label, families=families) for label in side] for side in (panel.rows, panel.columns))
    return Panel(panel.weights, rows, columns, drawable(panel.name, families=families))


def _set(families: list[str], theme: str) -> None:
    """Settings of matplotlib, from its defaults up, so that a user's own never change the picture."""
    _, paper, ink = THEMES[theme]
    matplotlib.rcdefaults()
    matplotlib.rc("font", family=families)
    matplotlib.rc("text", color=ink, parse_math=False)  # a dollar sign is a dollar sign
    matplotlib.rc("axes", edgecolor=ink, facecolor=paper)
    matplotlib.rc("xtick", color=ink)
    matplotlib.rc("ytick", color=ink)
    matplotlib.rc("figure", facecolor=paper)
    matplotlib.rc("svg", hashsalt="saccade")  # the same map gives the same file


def _figure(panels: Sequence[Panel], *, title: str, colours: str) -> Figure:
    grid = _grid(panels)
    figure = Figure(figsize=grid.size(title=bool(title)), layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08))
    axes = figure.subplots(
        len(grid.heights), len(grid.widths), squeeze=False, width_ratios=grid.widths, height_ratios=grid.heights
    ).ravel()
    top = max(float(np.max(panel.weights)) for panel in panels) or 1.0
    for ax, panel in zip(axes, panels, strict=False):
        image = ax.imshow(np.asarray(panel.weights), cmap=colours, vmin=0.0, vmax=top, interpolation="nearest")
        _label(ax, panel, cell=grid.cell)
        ax.set_title(panel.name, fontsize=10)
    for ax in axes[len(panels) :]:
        ax.remove()
    bar = figure.colorbar(image, ax=list(axes[: len(panels)]), fraction=0.05, pad=0.02, aspect=25, shrink=0.9)
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_visible(False)
    if title:
        figure.suptitle(title_lines(title, inches=figure.get_figwidth()), fontsize=12)
    return figure


@dataclass(frozen=True)
class _Grid:
    """Panels side by side and one below the other: the cells of each column and row, and how large one is."""

    widths: list[int]
    heights: list[int]
    left: float  # inches for the labels of a panel's rows
    above: float
    cell: float

    def size(self, *, title: bool) -> tuple[float, float]:
        """Inches of the whole picture, with room for the scale of colours and the title."""
        wide = len(self.widths) * self.left + self.cell * sum(self.widths) + 0.9
        high = len(self.heights) * self.above + self.cell * sum(self.heights) + (0.6 if title else 0.2)
        return max(wide, 3.2), max(high, 1.8)


def _grid(panels: Sequence[Panel]) -> _Grid:
    across = _across(len(panels), rows=len(panels[0].rows), columns=len(panels[0].columns))
    widths = [max(len(panel.columns) for panel in panels[i::across]) for i in range(across)]
    heights = [max(len(p.rows) for p in panels[i : i + across]) for i in range(0, len(panels), across)]
    left = max(len(clusters(row)) for panel in panels for row in panel.rows) * 0.09 + 0.3
    long = max(len(clusters(column)) for panel in panels for column in panel.columns)
    above = (long if long > UPRIGHT else 1) * 0.09 + 0.35
    fits = min((LONGEST - across * left) / sum(widths), (LONGEST - len(heights) * above) / sum(heights))
    smallest = min(0.02, LONGEST / max(*widths, *heights))
    return _Grid(widths, heights, left=left, above=above, cell=max(smallest, min(CELL, fits)))


def title_lines(text: str, *, inches: float) -> str:
    """The title in at most two lines that fit the picture."""
    letters = int(inches * POINTS / (12 * 0.75))  # a letter is at most about three quarters as wide as high
    return "\n".join(textwrap.wrap(text, letters, max_lines=2, placeholder=" …"))


def _across(panels: int, *, rows: int, columns: int) -> int:
    """How many panels stand side by side: the whole is somewhat wider than high, with few holes."""
    ideal = min(panels, max(1, round(math.sqrt(1.6 * panels * (rows + 3) / (columns + 3)))))
    near = [across for across in (ideal, ideal - 1, ideal + 1) if 1 <= across <= panels]
    return min(near, key=lambda across: -panels % across)


def _label(ax: Axes, panel: Panel, *, cell: float) -> None:
    """Labels as large as the cells allow; where cells are too small to read, every second, third ... label."""
    size = min(10.0, max(5.0, 0.62 * cell * POINTS))
    step = max(1, math.ceil(1.25 * size / (cell * POINTS)))
    rows, columns = panel.rows, panel.columns
    ax.xaxis.tick_top()
    ax.set_xticks(range(0, len(columns), step), columns[::step])
    ax.set_yticks(range(0, len(rows), step), rows[::step])
    ax.tick_params(length=0, labelsize=size, pad=4)
    for tick, column in zip(ax.get_xticklabels(), columns[::step], strict=True):
        short = len(clusters(column)) <= UPRIGHT
        tick.set(rotation=0 if short else 90, verticalalignment="baseline" if short else "bottom")
    for side in ax.spines.values():
        side.set_linewidth(0.5)


def save(figure: Figure, path: Path) -> None:
    """Writes the picture, into a folder that is made if need be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        metadata = {"Date": None} if path.suffix.lower() == ".svg" else {}
        figure.savefig(path, dpi=150, metadata=metadata)
    except OSError as error:
        raise SaccadeError(f"cannot write the picture {path}: {error.strerror or error}") from error
