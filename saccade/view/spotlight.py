"""Attention as light on a picture: what each word looked at, in a photograph or a spectrogram."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray
from PIL import Image
from rich.cells import cell_len

from saccade.errors import SaccadeError
from saccade.view.background import Background
from saccade.view.fonts import drawable
from saccade.view.labels import readable, shortened
from saccade.view.picture import check_picture, save, styled, title_lines
from saccade.view.terminal import check_width, cut_to, legend, shade

WIDE = 1.9  # inches of one picture in a grid of them
ACROSS = 8  # pictures side by side, at most
LONGEST_LABEL = 18  # characters
DIM = 0.15  # of the light that is left where nothing is looked at


def draw_spotlight(
    weights: ArrayLike,
    *,
    rows: Sequence[str],
    background: Background,
    path: str | Path,
    title: str = "",
    theme: str = "light",
) -> Path:
    """Draws the picture, and for each row of a map (T, S) once more with light where that row looks."""
    path = check_picture(path, theme=theme)
    cells = background.cells(weights)
    names = [shortened(readable(row), most=LONGEST_LABEL) for row in rows]
    with styled([title, *names], theme=theme) as families:
        names = [drawable(name, families=families) for name in names]
        count = len(names) if background.images else len(names) + 1
        across = -(-count // -(-count // ACROSS))  # rows as long as each other
        panels = _panels(background, cells, names, across=across)
        save(_figure(panels, title=drawable(title, families=families), across=across), path)
    return path


def _panels(background: Background, cells: NDArray, names: Sequence[str], *, across: int) -> list[tuple[NDArray, str]]:
    """The picture, then each row's light on it; where each row has its own, so many pictures and then their lights."""
    if not background.images:
        pixels = background.pixels() / 255
        return [(pixels, ""), *((lit(pixels, light), name) for light, name in zip(cells, names, strict=True))]
    panels: list[tuple[NDArray, str]] = []
    for begin in range(0, len(names), across):
        part = range(begin, min(begin + across, len(names)))
        seen = [background.pixels(row) / 255 for row in part]
        nothing = [(np.zeros((*seen[0].shape[:2], 4)), "")] * (across - len(part))  # one can see through it
        panels += [(pixels, str(row + 1)) for row, pixels in zip(part, seen, strict=True)] + nothing
        panels += [(lit(pixels, cells[row]), names[row]) for row, pixels in zip(part, seen, strict=True)] + nothing
    return panels


def _figure(panels: Sequence[tuple[NDArray, str]], *, title: str, across: int) -> Figure:
    down = -(-len(panels) // across)
    high, wide = panels[0][0].shape[:2]
    size = (across * WIDE, down * (WIDE * high / wide + 0.3) + (0.5 if title else 0.1))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(down, across, squeeze=False).ravel()
    for ax, (pixels, name) in zip(axes, panels, strict=False):
        ax.imshow(pixels)
        ax.set_title(name, fontsize=10)
    for ax in axes:
        ax.set_axis_off()
    if title:
        figure.suptitle(title_lines(title, inches=size[0]), fontsize=12)
    return figure


def lit(pixels: NDArray, cells: NDArray) -> NDArray:
    """The picture, dark where nothing is looked at: light grows with the weight, smoothly from cell to cell."""
    top = float(cells.max()) or 1.0
    mask = Image.fromarray(np.uint8(255 * np.clip(cells / top, 0, 1)))
    size = (pixels.shape[1], pixels.shape[0])
    light = np.asarray(mask.resize(size, Image.Resampling.BICUBIC), dtype=float) / 255
    return pixels * (DIM + (1 - DIM) * light[..., None])


def grids(weights: ArrayLike, *, rows: Sequence[str], background: Background, width: int) -> str:
    """For a terminal: the cells of each row as a small map under its label, as many side by side as fit."""
    check_width(width)
    cells, wide = background.cells(weights), 2 * background.grid[1]
    if wide > width:
        raise SaccadeError(
            f"a grid of {background.grid[1]} columns needs a terminal of {wide} cells, got {width}; draw a picture"
        )
    each, top, blocks = (width + 2) // (wide + 2), float(cells.max()), []
    for start in range(0, len(rows), each):
        part = range(start, min(start + each, len(rows)))
        names = [cut_to(readable(rows[i]), width=wide) for i in part]
        lines = [[name + " " * (wide - cell_len(name)) for name in names]]
        for line in range(background.grid[0]):
            lines.append(["".join(shade(value, top=top) * 2 for value in cells[i, line]) for i in part])
        blocks.append("\n".join("  ".join(line).rstrip() for line in lines))
    return "\n\n".join([*blocks, legend(top)])
