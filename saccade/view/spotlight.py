"""Attention weights as brightness of an image: where each output token attends to in a photograph or spectrogram."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image
from rich.cells import cell_len

from saccade.errors import SaccadeError
from saccade.plotting import Figure
from saccade.view.background import Background
from saccade.view.fonts import replace_missing_glyphs
from saccade.view.labels import shorten, to_readable
from saccade.view.picture import apply_style, check_picture_path, save_figure, wrap_title
from saccade.view.terminal import check_width, format_legend, get_shade, truncate

PANEL_INCHES = 1.9  # width
MAX_PANELS_PER_ROW = 8
MAX_LABEL_LENGTH = 18  # characters
MIN_BRIGHTNESS = 0.15  # where the weight is 0


def draw_spotlight(
    weights: ArrayLike,
    *,
    rows: Sequence[str],
    background: Background,
    path: str | Path,
    title: str = "",
    theme: str = "light",
) -> Path:
    """Draw the image, and once more for each row of a map (T, S), bright where that row attends."""
    path = check_picture_path(path, theme=theme)
    cells = background.to_grid(weights)
    names = [shorten(to_readable(row), max_length=MAX_LABEL_LENGTH) for row in rows]
    with apply_style([title, *names], theme=theme) as families:
        names = [replace_missing_glyphs(name, families=families) for name in names]
        count = len(names) if background.images else len(names) + 1
        across = -(-count // -(-count // MAX_PANELS_PER_ROW))  # rows of equal length
        panels = _build_panels(background, cells, names, per_row=across)
        save_figure(_build_figure(panels, title=replace_missing_glyphs(title, families=families), per_row=across), path)
    return path


def _build_panels(
    background: Background, grids: NDArray, names: Sequence[str], *, per_row: int
) -> list[tuple[NDArray, str]]:
    """Build panels (pixels, name): the image, then one per row of the map.

    Where each row has its own image, a row of `per_row` images is followed by a row with their attention.
    """
    if not background.images:
        pixels = background.decode_pixels() / 255
        return [
            (pixels, ""),
            *((darken_unattended(pixels, light), name) for light, name in zip(grids, names, strict=True)),
        ]
    panels: list[tuple[NDArray, str]] = []
    for start in range(0, len(names), per_row):
        part = range(start, min(start + per_row, len(names)))
        seen = [background.decode_pixels(row) / 255 for row in part]
        empty = [(np.zeros((*seen[0].shape[:2], 4)), "")] * (per_row - len(part))  # transparent
        panels += [(pixels, str(row + 1)) for row, pixels in zip(part, seen, strict=True)] + empty
        panels += [
            (darken_unattended(pixels, grids[row]), names[row]) for row, pixels in zip(part, seen, strict=True)
        ] + empty
    return panels


def _build_figure(panels: Sequence[tuple[NDArray, str]], *, title: str, per_row: int) -> Figure:
    down = -(-len(panels) // per_row)
    height, width = panels[0][0].shape[:2]
    size = (per_row * PANEL_INCHES, down * (PANEL_INCHES * height / width + 0.3) + (0.5 if title else 0.1))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(down, per_row, squeeze=False).ravel()
    for ax, (pixels, name) in zip(axes, panels, strict=False):
        ax.imshow(pixels)
        ax.set_title(name, fontsize=10)
    for ax in axes:
        ax.set_axis_off()
    if title:
        figure.suptitle(wrap_title(title, inches=size[0]), fontsize=12)
    return figure


def darken_unattended(pixels: NDArray, grid: NDArray) -> NDArray:
    """Darken an image where the attention weights (rows, columns) are small, interpolated bicubically."""
    top = float(grid.max()) or 1.0
    mask = Image.fromarray(np.uint8(255 * np.clip(grid / top, 0, 1)))
    size = (pixels.shape[1], pixels.shape[0])
    light = np.asarray(mask.resize(size, Image.Resampling.BICUBIC), dtype=float) / 255
    return pixels * (MIN_BRIGHTNESS + (1 - MIN_BRIGHTNESS) * light[..., None])


def format_grids(weights: ArrayLike, *, rows: Sequence[str], background: Background, width: int) -> str:
    """Format a map for a terminal: one small grid of patches per row, as many side by side as fit the width."""
    check_width(width)
    cells, grid_width = background.to_grid(weights), 2 * background.grid[1]
    if grid_width > width:
        raise SaccadeError(
            f"a grid of {background.grid[1]} columns needs a terminal of {grid_width} cells, got {width}; use --png"
        )
    each, top, blocks = (width + 2) // (grid_width + 2), float(cells.max()), []
    for start in range(0, len(rows), each):
        part = range(start, min(start + each, len(rows)))
        names = [truncate(to_readable(rows[i]), width=grid_width) for i in part]
        lines = [[name + " " * (grid_width - cell_len(name)) for name in names]]
        for line in range(background.grid[0]):
            lines.append(["".join(get_shade(value, top=top) * 2 for value in cells[i, line]) for i in part])
        blocks.append("\n".join("  ".join(line).rstrip() for line in lines))
    return "\n\n".join([*blocks, format_legend(top)])
