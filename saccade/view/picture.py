"""Heatmaps of attention weights as PNG or SVG files, drawn with matplotlib."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from saccade.errors import SaccadeError
from saccade.plotting import Axes, ConstrainedLayoutEngine, Figure, matplotlib, plot_defaults
from saccade.view.fonts import find_families, replace_missing_glyphs
from saccade.view.labels import check_map, compute_visual_order, shorten, split_clusters, to_readable

SUFFIXES = (".png", ".svg")
# Color map, background and text color. The color maps are sequential and suit color-blind readers; a weight of 0 has
# the color of the background.
THEMES = {"light": ("Blues", "white", "#1b1b1b"), "dark": ("cividis", "#14161a", "#e6e6e6")}
MAX_INCHES = 24.0  # of each side of the figure
MAX_LABEL_LENGTH = 24  # characters
MAX_CELL_INCHES = 0.24  # cells are smaller where the figure would become too large
POINTS_PER_INCH = 72
MAX_UPRIGHT_LENGTH = 2  # longer column labels are rotated


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
    """Draw one map (T, S), or one panel for each entry of `maps`, and return the path of the file."""
    named = dict(maps) if isinstance(maps, Mapping) else {"": maps}
    panels = [Panel(weights, rows, columns, name) for name, weights in named.items()]
    return draw_panels(panels, path=path, title=title, theme=theme)


def draw_panels(panels: Sequence[Panel], *, path: str | Path, title: str = "", theme: str = "light") -> Path:
    """Draw several maps, each with its own labels, side by side with a shared color scale."""
    path = check_picture_path(path, theme=theme)
    if not panels:
        raise SaccadeError("expected at least one map, got none")
    panels = [_prepare_panel(panel) for panel in panels]
    texts = [title, *(text for panel in panels for text in (panel.name, *panel.rows, *panel.columns))]
    with apply_style(texts, theme=theme) as families:
        panels = [_replace_missing_glyphs(panel, families) for panel in panels]
        save_figure(
            _build_figure(panels, title=replace_missing_glyphs(title, families=families), colours=THEMES[theme][0]),
            path,
        )
    return path


def check_picture_path(path: str | Path, *, theme: str) -> Path:
    """Return the path; raise if its suffix or the theme is unknown."""
    path = Path(path)
    if path.suffix.lower() not in SUFFIXES:
        raise SaccadeError(f"the file name must end in .png or .svg, got {path.name!r}; rename it")
    if theme not in THEMES:
        raise SaccadeError(f"theme must be one of {', '.join(THEMES)}, got {theme!r}")
    return path


@contextmanager
def apply_style(texts: Sequence[str], *, theme: str) -> Iterator[list[str]]:
    """Set fonts for these texts and the colors of a theme inside the context; yield the font families."""
    families = find_families([*texts, "U+0123456789ABCDEF"])
    with plot_defaults():
        _set_rc(families, theme)
        yield families


def _prepare_panel(panel: Panel) -> Panel:
    """Make the labels readable and short, and put the columns in visual order (right-to-left scripts)."""
    array = check_map(panel.weights, rows=panel.rows, columns=panel.columns, name=panel.name or "weights")
    order = compute_visual_order(panel.columns)
    rows = [shorten(to_readable(row), max_length=MAX_LABEL_LENGTH) for row in panel.rows]
    columns = [shorten(to_readable(panel.columns[i]), max_length=MAX_LABEL_LENGTH) for i in order]
    return Panel(array[:, order], rows, columns, panel.name)


def _replace_missing_glyphs(panel: Panel, families: Sequence[str]) -> Panel:
    rows, columns = (
        [replace_missing_glyphs(label, families=families) for label in side] for side in (panel.rows, panel.columns)
    )
    return Panel(panel.weights, rows, columns, replace_missing_glyphs(panel.name, families=families))


def _set_rc(families: list[str], theme: str) -> None:
    """Set fonts and colors on top of matplotlib's defaults."""
    _, background, ink = THEMES[theme]
    matplotlib.rc("font", family=families)
    matplotlib.rc("text", color=ink)
    matplotlib.rc("axes", edgecolor=ink, facecolor=background)
    matplotlib.rc("xtick", color=ink)
    matplotlib.rc("ytick", color=ink)
    matplotlib.rc("figure", facecolor=background)
    matplotlib.rc("svg", hashsalt="saccade")  # reproducible ids: the same map gives the same file


def _build_figure(panels: Sequence[Panel], *, title: str, colours: str) -> Figure:
    grid = _compute_grid(panels)
    figure = Figure(
        figsize=grid.compute_size(title=bool(title)), layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08)
    )
    axes = figure.subplots(
        len(grid.heights), len(grid.widths), squeeze=False, width_ratios=grid.widths, height_ratios=grid.heights
    ).ravel()
    top = max(float(np.max(panel.weights)) for panel in panels) or 1.0
    for ax, panel in zip(axes, panels, strict=False):
        image = ax.imshow(np.asarray(panel.weights), cmap=colours, vmin=0.0, vmax=top, interpolation="nearest")
        _draw_labels(ax, panel, cell=grid.cell)
        ax.set_title(panel.name, fontsize=10)
    for ax in axes[len(panels) :]:
        ax.remove()
    bar = figure.colorbar(image, ax=list(axes[: len(panels)]), fraction=0.05, pad=0.02, aspect=25, shrink=0.9)
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_visible(False)
    if title:
        figure.suptitle(wrap_title(title, inches=figure.get_figwidth()), fontsize=12)
    return figure


@dataclass(frozen=True)
class _Grid:
    """Layout of panels in rows and columns: number of cells of each column and row, and sizes in inches."""

    widths: list[int]
    heights: list[int]
    label_width: float  # inches of the row labels, at the left
    label_height: float  # inches of the column labels, above
    cell: float

    def compute_size(self, *, title: bool) -> tuple[float, float]:
        """Compute width and height of the figure in inches, including color bar and title."""
        width = len(self.widths) * self.label_width + self.cell * sum(self.widths) + 0.9
        height = len(self.heights) * self.label_height + self.cell * sum(self.heights) + (0.6 if title else 0.2)
        return max(width, 3.2), max(height, 1.8)


def _compute_grid(panels: Sequence[Panel]) -> _Grid:
    across = _choose_panels_per_row(len(panels), rows=len(panels[0].rows), columns=len(panels[0].columns))
    widths = [max(len(panel.columns) for panel in panels[i::across]) for i in range(across)]
    heights = [max(len(p.rows) for p in panels[i : i + across]) for i in range(0, len(panels), across)]
    left = max(len(split_clusters(row)) for panel in panels for row in panel.rows) * 0.09 + 0.3
    long = max(len(split_clusters(column)) for panel in panels for column in panel.columns)
    above = (long if long > MAX_UPRIGHT_LENGTH else 1) * 0.09 + 0.35
    fits = min((MAX_INCHES - across * left) / sum(widths), (MAX_INCHES - len(heights) * above) / sum(heights))
    smallest = min(0.02, MAX_INCHES / max(*widths, *heights))
    return _Grid(widths, heights, label_width=left, label_height=above, cell=max(smallest, min(MAX_CELL_INCHES, fits)))


def wrap_title(text: str, *, inches: float) -> str:
    """Wrap a title to at most two lines that fit the width of the figure."""
    letters = int(inches * POINTS_PER_INCH / (12 * 0.75))  # 12 points high, about 3/4 as wide
    return "\n".join(textwrap.wrap(text, letters, max_lines=2, placeholder=" …"))


def _choose_panels_per_row(panels: int, *, rows: int, columns: int) -> int:
    """Choose the number of panels per row: the figure is somewhat wider than high, with few empty places."""
    ideal = min(panels, max(1, round(math.sqrt(1.6 * panels * (rows + 3) / (columns + 3)))))
    near = [across for across in (ideal, ideal - 1, ideal + 1) if 1 <= across <= panels]
    return min(near, key=lambda across: -panels % across)


def _draw_labels(ax: Axes, panel: Panel, *, cell: float) -> None:
    """Draw labels as large as the cells allow; where they would be unreadable, only every second, third ... one."""
    size = min(10.0, max(5.0, 0.62 * cell * POINTS_PER_INCH))
    step = max(1, math.ceil(1.25 * size / (cell * POINTS_PER_INCH)))
    rows, columns = panel.rows, panel.columns
    ax.xaxis.tick_top()
    ax.set_xticks(range(0, len(columns), step), columns[::step])
    ax.set_yticks(range(0, len(rows), step), rows[::step])
    ax.tick_params(length=0, labelsize=size, pad=4)
    for tick, column in zip(ax.get_xticklabels(), columns[::step], strict=True):
        short = len(split_clusters(column)) <= MAX_UPRIGHT_LENGTH
        tick.set(rotation=0 if short else 90, verticalalignment="baseline" if short else "bottom")
    for side in ax.spines.values():
        side.set_linewidth(0.5)


def save_figure(figure: Figure, path: Path) -> None:
    """Save the figure, creating its folder if needed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        metadata = {"Date": None} if path.suffix.lower() == ".svg" else {}
        figure.savefig(path, dpi=150, metadata=metadata)
    except OSError as error:
        raise SaccadeError(f"cannot write {path}: {error.strerror or error}") from error
