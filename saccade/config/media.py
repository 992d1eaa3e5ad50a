"""What reads pictures, and how a picture meets a question about it, as tables of a recipe; sound is like pictures."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from saccade.config.kinds import ByKind, Custom
from saccade.config.stacks import TransformerStack
from saccade.config.table import Count, JoinTraits, ReaderTraits, Share, StackTraits, Table

if TYPE_CHECKING:
    from saccade.config.schema import Recipe

CellStack = Annotated[TransformerStack | Custom, ByKind()]
Each = tuple[float, float, float]
Side = Annotated[int, Field(ge=1, le=4096)]  # in pixels
Where = Literal["learned", "sinusoidal", "none"]  # how a model is told where in its picture a cell is


def above_zero(std: Each) -> Each:
    if min(std) <= 0:
        raise ValueError(f"std must be above 0 for each colour, got {list(std)}")
    return std


class PictureChanges(Table):
    """What is changed at random in pictures that a model learns from; each of these is off at 0."""

    flip: Annotated[float, Field(ge=0, le=1)] = 0.0  # the share of pictures that are mirrored, left and right
    crop: Annotated[int, Field(ge=0)] = 0  # pixels, at most, by which pictures are moved up or down, left or right
    operations: Annotated[int, Field(ge=0)] = (
        0  # one after the other, each drawn of ten (RandAugment, Cubuk et al. 2020)
    )
    strength: Annotated[float, Field(ge=0, le=1)] = 0.5  # of these operations


class MediaReader(Table, ReaderTraits):
    """What every reader of pictures or sound has."""

    init: str = ""  # a run whose reader's weights to start from

    @property
    def media(self) -> MediaReader:
        return self

    @property
    def counted(self) -> str:
        """What outputs are counted in: pictures, sounds, or questions about them."""
        return "questions" if self.asks else f"{self.medium}s"

    @property
    def augmentation(self) -> Table | None:
        """The table `changes`, where it has one."""
        return None

    @property
    def of_files(self) -> MediaReader:
        """What reads the files: this one, or a part of it."""
        return self

    @property
    def states(self) -> int | None:
        """How many states every file has; None where that depends on its length."""
        return None

    @property
    def class_tokens(self) -> int:
        """States before those of the cells, which stand for the whole."""
        return 0

    def find_conflict(self, recipe: Recipe) -> str:
        what = f"a reader of {self.medium}s"
        if recipe.writer.shared_tie:
            return f'{what} has no token vectors to share; set writer.tie = "output"'
        if recipe.predict.replace_unknown:
            return f"{what} reads no words that could replace unknown ones; set predict.replace_unknown = false"
        if recipe.data.stream:
            return f"{what} keeps them decoded on the disk; set data.stream = false"
        if recipe.tokenizer.dropout:
            return f"{what} goes with one way to tokenise; set tokenizer.dropout = 0"
        if not recipe.tokenizer.shared and not self.asks:
            return f"{what} has one vocabulary, that of what is written; set tokenizer.shared = true"
        return ""

    def find_stack_conflict(self, stack: StackTraits | None) -> str:
        """Reversible stacks are made for texts."""
        if stack is None or not stack.is_reversible:
            return ""
        return f'reader.stack.residual = "reversible" is for readers of texts, got one of {self.medium}s; leave it out'


class PictureReader(MediaReader):
    """Pictures of one size: others are scaled."""

    medium: ClassVar[str] = "picture"
    is_picture: ClassVar[bool] = True
    size: Side = 224  # pixels of each side of what is read
    width: Side | None = None  # pixels from left to right, where these are others than those of the height
    fit: Literal["crop", "stretch", "pad"] = "crop"  # of another shape: ends are lost, or the shape, or a border added
    resample: Literal["bilinear", "bicubic"] = "bilinear"  # how pictures are scaled
    margin: Annotated[int, Field(ge=0, le=4096)] = 0  # pixels that are then cut off on each side
    changes: PictureChanges = PictureChanges()

    @property
    def column_layers(self) -> int:
        """Layers of an LSTM over the columns of cells."""
        return 0

    @property
    def augmentation(self) -> Table:
        return self.changes

    @property
    def sides(self) -> tuple[int, int]:
        """Pixels from top to bottom, and from left to right."""
        return self.size, self.width or self.size

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of cells."""
        raise NotImplementedError

    def get_level_grid(self, places: int) -> tuple[int, int] | None:
        """Rows and columns of the level of the network that has so many places; None where it has no levels."""
        return None


class PatchReader(PictureReader):
    """Square patches of a picture, each a vector as a word is (ViT, Dosovitskiy et al. 2021)."""

    kind: Literal["patches"] = "patches"
    patch: Count = 16  # pixels of the side of a patch
    stem: tuple[Count, ...] = ()  # channels of convolutions in the place of one matrix; the last halve the sides
    mean: Each = (0.5, 0.5, 0.5)  # taken off red, green and blue, which are numbers from 0 to 1
    std: Annotated[Each, AfterValidator(above_zero)] = (0.5, 0.5, 0.5)  # by which the rest is divided
    first: bool = True  # a learned vector before the patches, whose state stands for the whole picture
    stack: CellStack = TransformerStack()
    positions: Where = "learned"
    dropout: Share = 0.0  # of patches and positions

    @property
    def class_token(self) -> bool:
        return self.first

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        high, wide = self.sides
        return high // self.patch, wide // self.patch

    @property
    def class_tokens(self) -> int:
        return int(self.first)

    @property
    def states(self) -> int:
        return math.prod(self.grid) + self.first

    @property
    def patches(self) -> PatchReader:
        return self

    def find_conflict(self, recipe: Recipe) -> str:
        return self.find_stack_conflict(self.stack) or super().find_conflict(recipe)

    @model_validator(mode="after")
    def _whole_patches(self) -> PatchReader:
        for name, pixels in zip(("size", "width"), self.sides, strict=True):
            if pixels % self.patch:
                raise ValueError(f"{name} must be a multiple of patch = {self.patch}, got {pixels}")
        if self.stem and self.patch not in [1 << n for n in range(len(self.stem) + 1)]:
            raise ValueError(
                f"each convolution of stem halves the sides at most once, so that patch must be a power of 2, with "
                f"{len(self.stem)} of them at most {1 << len(self.stem)}, got {self.patch}"
            )
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
    attention: tuple[Count, ...] = ()  # levels, from 1, after which all places look at all others (Zhang et al. 2019)
    flat: Annotated[int, Field(ge=0)] = 0  # the last n levels halve the height alone: letters stand side by side
    columns: Annotated[int, Field(ge=0)] = 0  # layers of an LSTM over columns, whose last state stands for the whole
    stack: CellStack | None = None  # over the cells, such as self-attention; its dim is that of the last level
    positions: Where = "learned"
    dropout: Share = 0.0  # of cells

    @property
    def column_layers(self) -> int:
        return self.columns

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of cells."""
        high, wide = self.sides
        levels = len(self.channels)
        return high >> levels, wide >> levels - self.flat

    def get_level_grid(self, places: int) -> tuple[int, int]:
        high, wide = self.grid
        sides = ((high << above, wide << above - min(self.flat, above)) for above in range(len(self.channels)))
        return next(side for side in sides if side[0] * side[1] == places)

    @property
    def states(self) -> int:
        return math.prod(self.grid)

    def find_conflict(self, recipe: Recipe) -> str:
        return self.find_stack_conflict(self.stack) or super().find_conflict(recipe)

    @model_validator(mode="after")
    def _whole_cells(self) -> GridReader:
        levels = len(self.channels)
        if max(self.attention, default=0) > levels:
            raise ValueError(f"attention numbers levels, of which there are {levels}, got {max(self.attention)}")
        if self.flat > levels:
            raise ValueError(f"flat must be at most the number of levels, {levels}, got {self.flat}")
        for name, pixels, halved in zip(("size", "width"), self.sides, (levels, levels - self.flat), strict=True):
            if pixels % (1 << halved):
                raise ValueError(
                    f"{name} must be a multiple of {1 << halved}, as each of {halved} levels halves it, got {pixels}"
                )
        width = None if self.stack is None or self.stack.is_custom else self.stack.width
        if width not in (None, self.channels[-1]):
            raise ValueError(f"stack.dim must be that of the last level, {self.channels[-1]}, got {width}")
        return self


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
    def backbone(self) -> TimmReader:
        return self

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of cells."""
        high, wide = self.sides
        return high // self.step, wide // self.step

    @property
    def states(self) -> int:
        return math.prod(self.grid)

    def find_conflict(self, recipe: Recipe) -> str:
        return self.find_stack_conflict(self.stack) or super().find_conflict(recipe)

    @model_validator(mode="after")
    def _whole_cells(self) -> TimmReader:
        for name, pixels in zip(("size", "width"), self.sides, strict=True):
            if pixels % self.step:
                raise ValueError(f"{name} must be a multiple of step = {self.step}, got {pixels}")
        width = None if self.stack is None or self.stack.is_custom else self.stack.width
        if width not in (None, self.dim):
            raise ValueError(f"stack.dim must be dim = {self.dim}, got {width}")
        return self


CellReader = PatchReader | GridReader | TimmReader  # what makes as many states of every picture


# ---- a picture and a question


class GlimpsesJoin(Table, JoinTraits):
    """The whole question looks at all cells, several times at once (Kazemi and Elqursh 2017)."""

    kind: Literal["glimpses"] = "glimpses"
    glimpses: Count = 2
    hidden: Count = 512  # width of the layer in which a cell meets the question
    dropout: Share = 0.0  # of cells


class HopsJoin(Table, JoinTraits):
    """Each word looks at all cells, and then the question with what it has seen looks again (Xu and Saenko 2016)."""

    kind: Literal["hops"] = "hops"
    hops: Count = 2
    dim: Count = 512  # of what is seen
    dropout: Share = 0.0  # of cells


class ConcatJoin(Table, JoinTraits):
    """All cells and all words one after the other, and a stack over both where there is one."""

    kind: Literal["concat"] = "concat"
    dim: Count = 512  # to which both are brought; that of the stack
    stack: CellStack | None = None

    @property
    def is_side_by_side(self) -> bool:
        return self.stack is None


class QuestionJoin(Table, JoinTraits):
    """The question alone: how well answers can be guessed without seeing."""

    reads_picture: ClassVar[bool] = False
    kind: Literal["question"] = "question"


Join = Annotated[GlimpsesJoin | HopsJoin | ConcatJoin | QuestionJoin | Custom, ByKind()]
