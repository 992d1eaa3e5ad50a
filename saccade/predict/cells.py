"""Which cell of a picture looks where: maps of a reader as they lie on its grid."""

import re

from jaxtyping import Float
from torch import Tensor

from saccade.config.schema import PictureReader
from saccade.errors import SaccadeError


def shown_on_grid(
    weights: Float[Tensor, "H Q K"], reader: PictureReader, grid: tuple[int, int], *, cell: int | None
) -> Float[Tensor, "H 1 S"]:
    """What one state looks at, cell by cell: the state before all cells, or all of them in the mean; or this cell."""
    first = reader.class_tokens
    if first and cell is None:
        return weights[:, :1, 1:]
    weights = weights[:, first:, first:]
    if (places := reader.get_level_grid(weights.shape[-1])) != grid:  # a level below the last: add up, cell by cell
        weights = by_cell(weights, places, grid).sum(-1)
        weights = by_cell(weights.mT, places, grid).mean(-1).mT
    return weights.mean(1, keepdim=True) if cell is None else weights[:, cell : cell + 1]


def by_cell(
    weights: Float[Tensor, "H Q K"], places: tuple[int, int], grid: tuple[int, int]
) -> Float[Tensor, "H Q S n"]:
    """The places of a finer grid that lie in each cell."""
    (rows, columns), (high, wide) = places, grid
    apart = weights.unflatten(-1, (high, rows // high, wide, columns // wide))
    return apart.transpose(-3, -2).flatten(-2).flatten(-3, -2)


def cell_named(target: str, grid: tuple[int, int]) -> int:
    """The number of the cell `ROW,COLUMN`, both counted from 1."""
    found = re.fullmatch(r"\s*(\d+)\s*,\s*(\d+)\s*", target)
    high, wide = grid
    row, column = (int(found[1]), int(found[2])) if found else (0, 0)
    if not (1 <= row <= high and 1 <= column <= wide):
        raise SaccadeError(
            f"of a picture with a label, --target is a cell as ROW,COLUMN, up to {high},{wide}, got {target!r}"
        )
    return (row - 1) * wide + column - 1
