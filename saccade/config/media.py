"""What reads pictures, as tables of a recipe; what reads sound is like it."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from saccade.config.kinds import ByKind, Custom
from saccade.config.stacks import TransformerStack
from saccade.config.table import Count, Share, Table

CellStack = Annotated[TransformerStack | Custom, ByKind()]
Where = Literal["learned", "sinusoidal", "none"]  # how a model is told where in its picture a cell is


class PictureChanges(Table):
    """What is changed at random in pictures that a model learns from; each of these is off at 0."""

    flip: Annotated[float, Field(ge=0, le=1)] = 0.0  # the share of pictures that are mirrored, left and right
    crop: Annotated[int, Field(ge=0)] = 0  # pixels, at most, by which pictures are moved up or down, left or right
    operations: Annotated[int, Field(ge=0)] = (
        0  # one after the other, each drawn of ten (RandAugment, Cubuk et al. 2020)
    )
    strength: Annotated[float, Field(ge=0, le=1)] = 0.5  # of these operations


class MediaReader(Table):
    """What every reader of pictures or sound has."""

    medium: ClassVar[str]  # the name of what is read, for messages
    init: str = ""  # a run whose reader's weights to start from


class PictureReader(MediaReader):
    """Pictures of one size: others are scaled."""

    medium: ClassVar[str] = "picture"
    size: Annotated[int, Field(ge=1, le=4096)] = 224  # pixels of each side of what is read
    fit: Literal["crop", "stretch"] = "crop"  # pictures that are no squares lose their ends, or their shape
    changes: PictureChanges = PictureChanges()


class PatchReader(PictureReader):
    """Square patches of a picture, each a vector as a word is (ViT, Dosovitskiy et al. 2021)."""

    kind: Literal["patches"] = "patches"
    patch: Count = 16  # pixels of the side of a patch
    first: bool = True  # a learned vector before the patches, whose state stands for the whole picture
    stack: CellStack = TransformerStack()
    positions: Where = "learned"
    dropout: Share = 0.0  # of patches and positions

    @property
    def grid(self) -> int:
        """Patches along a side."""
        return self.size // self.patch

    @property
    def states(self) -> int:
        return self.grid**2 + self.first

    @model_validator(mode="after")
    def _whole_patches(self) -> PatchReader:
        if self.size % self.patch:
            raise ValueError(f"size must be a multiple of patch = {self.patch}, got {self.size}")
        return self


class GridReader(PictureReader):
    """A grid of cells that convolutions make of a picture; each level halves its sides (Xu et al. 2015)."""

    kind: Literal["grid"] = "grid"
    channels: Annotated[tuple[Count, ...], Field(min_length=1)] = (
        64,
        128,
        256,
        512,
    )  # of each level, the last of cells
    depth: Count = 1  # blocks of two convolutions in each level
    stack: CellStack | None = None  # over the cells, such as self-attention; its dim is that of the last level
    positions: Where = "learned"
    dropout: Share = 0.0  # of cells

    @property
    def grid(self) -> int:
        """Cells along a side."""
        return self.size >> len(self.channels)

    @property
    def states(self) -> int:
        return self.grid**2

    @model_validator(mode="after")
    def _whole_cells(self) -> GridReader:
        step = 1 << len(self.channels)
        if self.size % step:
            raise ValueError(
                f"size must be a multiple of {step}, as each of {len(self.channels)} levels halves it, got {self.size}"
            )
        width = None if self.stack is None or isinstance(self.stack, Custom) else self.stack.dim
        if width not in (None, self.channels[-1]):
            raise ValueError(f"stack.dim must be that of the last level, {self.channels[-1]}, got {width}")
        return self
