"""A reader of pictures that somebody else has built, as a table of a recipe."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import model_validator

from saccade.config.kinds import Custom
from saccade.config.media import CellStack, GridReader, PatchReader, PictureReader, Where
from saccade.config.table import Count, Share


class TimmReader(PictureReader):
    """A grid of cells that a network of the package timm makes of a picture."""

    kind: Literal["timm"] = "timm"
    name: str = "resnet18"  # one of timm.list_models()
    pretrained: bool = False  # whether its published weights are downloaded when a run begins
    tuned: bool = True  # whether it is trained with the rest; else it stays as it is
    step: Count = 32  # pixels along the side of a cell: chooses one of its maps
    dim: Count = 512  # of cells; a matrix makes them that wide
    stack: CellStack | None = None  # over the cells, such as self-attention
    positions: Where = "learned"
    dropout: Share = 0.0  # of cells

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of cells."""
        high, wide = self.sides
        return high // self.step, wide // self.step

    @property
    def states(self) -> int:
        return math.prod(self.grid)

    @model_validator(mode="after")
    def _whole_cells(self) -> TimmReader:
        for name, pixels in zip(("size", "width"), self.sides, strict=True):
            if pixels % self.step:
                raise ValueError(f"{name} must be a multiple of step = {self.step}, got {pixels}")
        width = None if self.stack is None or isinstance(self.stack, Custom) else self.stack.dim
        if width not in (None, self.dim):
            raise ValueError(f"stack.dim must be dim = {self.dim}, got {width}")
        return self


CellReader = PatchReader | GridReader | TimmReader  # what makes as many states of every picture
