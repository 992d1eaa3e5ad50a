"""Readers of pictures: cells, where they are, and a stack over them."""

from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from saccade.layers import masks
from saccade.layers.dropout import Dropout
from saccade.layers.grid import Picture
from saccade.layers.memory import Memory


class PictureReader(nn.Module):
    """Cells of a picture through a stack, where there is one; `first` is a learned vector that stands before them.

    `columns` is a recurrent stack over the largest number of each column, from left to right: its last state stands
    for the whole picture (Li et al. 2019, section 3.2).
    """

    def __init__(
        self,
        cells: nn.Module,
        stack: Any,
        *,
        dim: int,
        grid: tuple[int, int],
        positions: nn.Module | None,
        first: bool = False,
        columns: Any = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.columns = columns
        self.cells, self.stack, self.positions, self.dim, self.grid = cells, stack, positions, dim, grid
        self.first = nn.Parameter(torch.empty(dim)) if first else None
        if self.first is not None:
            nn.init.normal_(self.first, std=dim**-0.5)
        self.dropout = Dropout(dropout)

    def forward(self, pictures: Picture, mask: Bool[Tensor, "B S"]) -> Memory:
        """All states are real, and `mask` says so."""
        x = self.cells(pictures)
        if self.first is not None:
            x = torch.cat((self.first.to(x.dtype).expand(len(x), 1, -1), x), 1)
        if self.positions is not None:
            x = x + self.positions(masks.positions(x.shape[1], x.device)).to(x.dtype)
        x = self.dropout(x)
        if self.stack is not None:
            x = self.stack(x, None)[0]
        final = None if self.columns is None else self.columns(x.unflatten(1, self.grid).amax(1), None)[2]
        return Memory(x, mask, final=final, grid=self.grid)
