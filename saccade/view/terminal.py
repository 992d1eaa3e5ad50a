"""Heatmaps of attention weights as text for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from numpy.typing import ArrayLike, NDArray
from rich.cells import cell_len

from saccade.errors import SaccadeError
from saccade.view.labels import check_map, compute_visual_order, shorten, split_clusters, to_readable

SHADES = " ░▒▓█"
MIN_WIDTH = 20  # terminal cells
MAX_LABEL_LINES = 12  # of a column label, which is written downwards
LEFT_TO_RIGHT_MARK = "\u200e"  # invisible; keeps terminals with bidi support from reversing the whole line
LEFT_TO_RIGHT_OVERRIDE, END_OVERRIDE = "\u202d", "\u202c"  # for lines already in visual order


def heatmap(weights: ArrayLike, *, rows: Sequence[str], columns: Sequence[str], width: int) -> str:
    """Format a map (T, S) as lines of at most `width` terminal cells; columns that do not fit continue below."""
    array = check_map(weights, rows=rows, columns=columns)
    check_width(width)
    order = compute_visual_order(columns)
    array, heads = array[:, order], [to_readable(columns[i]) for i in order]
    names = [truncate(to_readable(row), width=width // 3) for row in rows]
    margin = max(map(cell_len, names))
    widest = max((cell_len(part) for head in heads for part in split_clusters(head)), default=1)
    available = width - margin - 1
    cell = 2 if widest > 1 or 2 * len(heads) <= available else 1
    each = available // cell
    top = float(array.max())
    blocks = []
    for start in range(0, len(heads), each):
        part = slice(start, start + each)
        lines = [
            *_format_header(heads[part], margin=margin, cell=cell),
            *_format_rows(array[:, part], names, cell=cell, top=top),
        ]
        blocks.append("\n".join(lines))
    scale = " " * (margin + 1) + format_legend(top)
    return "\n\n".join([*blocks, scale if cell_len(scale) <= width else scale.strip()])


def check_width(width: int) -> None:
    if width < MIN_WIDTH:
        raise SaccadeError(f"width must be at least {MIN_WIDTH}, got {width}; use a wider terminal or --png")


def _format_header(heads: Sequence[str], *, margin: int, cell: int) -> list[str]:
    """Format the labels of the columns, each written downwards and aligned at the bottom."""
    stacks = [split_clusters(shorten(head, max_length=MAX_LABEL_LINES)) for head in heads]
    height = max(map(len, stacks))
    lines = []
    for level in range(height):
        parts = [stack[level - height + len(stack)] if level >= height - len(stack) else "" for stack in stacks]
        line = " " * (margin + 1) + "".join(_pad(part, cell) for part in parts).rstrip()
        is_bidi = any(compute_visual_order([part, "a"]) != [0, 1] for part in parts)
        lines.append(LEFT_TO_RIGHT_OVERRIDE + line + END_OVERRIDE if is_bidi else line)
    return lines


def _format_rows(array: NDArray, names: Sequence[str], *, cell: int, top: float) -> list[str]:
    lines = []
    for name, weights in zip(names, array, strict=True):
        shades = "".join(get_shade(weight, top=top) * cell for weight in weights)
        mark = LEFT_TO_RIGHT_MARK if compute_visual_order([name, "a"]) != [0, 1] else ""
        lines.append(mark + " " * (max(map(cell_len, names)) - cell_len(name)) + name + mark + " " + shades.rstrip())
    return lines


def get_shade(weight: float, *, top: float) -> str:
    """Get one of five shades, at equal steps from 0 to the largest weight `top`."""
    share = weight / top if top > 0 else 0.0
    return SHADES[min(len(SHADES) - 1, max(0, int(share * len(SHADES))))]


def format_legend(top: float) -> str:
    return f"0 {SHADES} {top:.2f}"


def _pad(text: str, cells: int) -> str:
    return text + " " * (cells - cell_len(text))


def truncate(text: str, *, width: int) -> str:
    """Truncate a text to `width` terminal cells, with an ellipsis."""
    if cell_len(text) <= width:
        return text
    cut = ""
    for part in split_clusters(text):
        if cell_len(cut) + cell_len(part) > width - 1:
            break
        cut += part
    return cut + "…"
