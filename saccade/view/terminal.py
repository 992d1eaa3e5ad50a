"""An attention map as text, for a terminal of any width."""

from __future__ import annotations

from collections.abc import Sequence

from numpy.typing import ArrayLike, NDArray
from rich.cells import cell_len

from saccade.errors import SaccadeError
from saccade.view.labels import checked, clusters, readable, shortened, visual_order

SHADES = " ░▒▓█"
NARROWEST = 20  # cells of a terminal
TALLEST = 12  # lines of a column's label
LEFT_TO_RIGHT = "\u200e"  # invisible; keeps a terminal that reorders text from turning the whole line round
AS_GIVEN, END_AS_GIVEN = "\u202d", "\u202c"  # the same for a line whose columns are in order already


def heatmap(weights: ArrayLike, *, rows: Sequence[str], columns: Sequence[str], width: int) -> str:
    """A map (T, S) as lines of at most `width` cells; columns that do not fit go on below."""
    array = checked(weights, rows=rows, columns=columns)
    check_width(width)
    order = visual_order(columns)
    array, heads = array[:, order], [readable(columns[i]) for i in order]
    names = [cut_to(readable(row), width=width // 3) for row in rows]
    margin = max(map(cell_len, names))
    wide = max((cell_len(part) for head in heads for part in clusters(head)), default=1)
    room = width - margin - 1
    cell = 2 if wide > 1 or 2 * len(heads) <= room else 1
    each = room // cell
    top = float(array.max())
    blocks = []
    for start in range(0, len(heads), each):
        part = slice(start, start + each)
        lines = [*_head(heads[part], margin=margin, cell=cell), *_body(array[:, part], names, cell=cell, top=top)]
        blocks.append("\n".join(lines))
    scale = " " * (margin + 1) + legend(top)
    return "\n\n".join([*blocks, scale if cell_len(scale) <= width else scale.strip()])


def check_width(width: int) -> None:
    if width < NARROWEST:
        raise SaccadeError(f"width must be at least {NARROWEST}, got {width}; use a wider terminal or draw a picture")


def _head(heads: Sequence[str], *, margin: int, cell: int) -> list[str]:
    """The labels of the columns, each written downwards and standing on its column."""
    stacks = [clusters(shortened(head, most=TALLEST)) for head in heads]
    height = max(map(len, stacks))
    lines = []
    for level in range(height):
        parts = [stack[level - height + len(stack)] if level >= height - len(stack) else "" for stack in stacks]
        line = " " * (margin + 1) + "".join(_pad(part, cell) for part in parts).rstrip()
        turned = any(visual_order([part, "a"]) != [0, 1] for part in parts)
        lines.append(AS_GIVEN + line + END_AS_GIVEN if turned else line)
    return lines


def _body(array: NDArray, names: Sequence[str], *, cell: int, top: float) -> list[str]:
    lines = []
    for name, weights in zip(names, array, strict=True):
        shades = "".join(shade(weight, top=top) * cell for weight in weights)
        mark = LEFT_TO_RIGHT if visual_order([name, "a"]) != [0, 1] else ""
        lines.append(mark + " " * (max(map(cell_len, names)) - cell_len(name)) + name + mark + " " + shades.rstrip())
    return lines


def shade(weight: float, *, top: float) -> str:
    """Five steps of equal size from nothing to the largest weight of the map."""
    share = weight / top if top > 0 else 0.0
    return SHADES[min(len(SHADES) - 1, max(0, int(share * len(SHADES))))]


def legend(top: float) -> str:
    return f"0 {SHADES} {top:.2f}"


def _pad(text: str, cells: int) -> str:
    return text + " " * (cells - cell_len(text))


def cut_to(text: str, *, width: int) -> str:
    """The text, cut to `width` cells with an ellipsis."""
    if cell_len(text) <= width:
        return text
    cut = ""
    for part in clusters(text):
        if cell_len(cut) + cell_len(part) > width - 1:
            break
        cut += part
    return cut + "…"
