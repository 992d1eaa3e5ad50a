"""The table [reader] of a recipe for images, and the fusion of an image and a question."""

from __future__ import annotations

import inspect
import math
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from saccade.config.kinds import ByKind, Custom, OwnKind
from saccade.config.stacks import TransformerStack
from saccade.config.table import Count, JoinTraits, ReaderTraits, Repeats, Share, StackTraits, Table

if TYPE_CHECKING:
    from saccade.config.schema import Recipe

CellStack = Annotated[TransformerStack | Custom, ByKind()]
Rgb = tuple[float, float, float]
Pixels = Annotated[int, Field(ge=1, le=4096)]
CellPositions = Literal["learned", "sinusoidal", "none"]


def check_std(std: Rgb) -> Rgb:
    if min(std) <= 0:
        raise ValueError(f"std must be above 0 for each color, got {list(std)}")
    return std


class ImageAugmentation(Table):
    """Random augmentation of training images, different for each image and step. Each is off at 0."""

    flip: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Probability that an image is mirrored horizontally. 0.5 suits photographs; 0 where left and right matter, as for
    text."""
    crop: Annotated[int, Field(ge=0)] = 0
    """Random crop: images are padded by this many pixels and cropped back at a random offset. 4 suits images of 32
    pixels. 0 disables it."""
    num_ops: Annotated[int, Field(ge=0)] = 0
    """RandAugment: number of random operations applied one after the other, each sampled from ten (Cubuk et al. 2020).
    0 disables it; 2 is usual."""
    magnitude: Annotated[float, Field(ge=0, le=1)] = 0.5
    """RandAugment: strength of the operations, from 0 (none) to 1 (strongest)."""
    erase: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Random erasing: probability that noise replaces a rectangle of the image, of 2% to a third of its area (Zhong et
    al. 2020). 0 disables it; 0.25 is usual for long trainings on photographs, and too much for short ones."""

    @property
    def any(self) -> bool:
        return bool(self.flip or self.crop or self.num_ops or self.erase)


class MediaReader(Table, ReaderTraits):
    """Base class of readers of images and audio."""

    init: str = ""
    """Run whose reader weights training starts from. Empty: they are initialized at random."""

    @property
    def media(self) -> MediaReader:
        return self

    @property
    def unit(self) -> str:
        """What one input is called in reports: pictures, sounds, or questions."""
        return "questions" if self.has_question else self.medium_plural

    @property
    def augmentation(self) -> Table | None:
        """The table `augment`, where it has one."""
        return None

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Suffixes of its files; empty: the usual ones of the medium."""
        return ()

    @property
    def file_reader(self) -> MediaReader:
        """The reader of the files: this one, or a part of it."""
        return self

    @property
    def states(self) -> int | None:
        """Number of memory states per file; None where it depends on the length."""
        return None

    @property
    def class_tokens(self) -> int:
        """Number of class tokens before the cells."""
        return 0

    def find_conflict(self, recipe: Recipe) -> str:
        what = f"a reader of {self.medium_plural}"
        if recipe.writer.shared_tie:
            return f'{what} has no token embeddings to share; set writer.tie = "output"'
        if recipe.predict.replace_unknown:
            return f"{what} reads no words that could replace unknown ones; set predict.replace_unknown = false"
        if any(corpus.format for corpus in (*recipe.data.train, *recipe.data.valid_corpora)):
            return f"{what} has files of its own; data.train.0.format is for text, leave it out"
        if recipe.data.stream:
            return f"{what} stores them decoded on disk; set data.stream = false"
        if recipe.tokenizer.dropout:
            return f"{what} supports one tokenization of its texts; set tokenizer.dropout = 0"
        if not recipe.tokenizer.shared and not self.has_question:
            return f"{what} has one vocabulary, that of the outputs; set tokenizer.shared = true"
        return ""

    def find_stack_conflict(self, stack: StackTraits | None) -> str:
        """Why the stack is incompatible with this reader; reversible stacks are for text."""
        if stack is None or not stack.is_reversible:
            return ""
        got = f"one of {self.medium_plural}"
        return f'reader.stack.residual = "reversible" is for readers of text, got {got}; leave it out'


class OwnMediaReader(OwnKind, MediaReader):
    """A reader of the user's own for files of any modality.

    Its class has the attributes `medium`, what one file is called, and `suffixes` of the files, and a function
    `decode(data, name, **settings)` from the bytes of a file to an array (T, ...); `step`, 1 by default, is the number
    of these T per memory state. An instance is called with values (B, T, ...) and a mask (B, T).
    """

    model_config = ConfigDict(extra="allow")
    kind: str

    @classmethod
    def accepts(cls, maker: Any) -> bool:
        return bool(getattr(maker, "medium", ""))

    @model_validator(mode="after")
    def _check_class(self) -> OwnMediaReader:
        if self.maker is None:  # a recipe that is only read
            return self
        suffixes, what = getattr(self.maker, "suffixes", None), f"a reader of {self.medium_plural}, {self.kind},"
        if not isinstance(suffixes, tuple | list) or not suffixes or not all(str(one)[:1] == "." for one in suffixes):
            raise ValueError(f'{what} needs the suffixes of its files, such as suffixes = (".csv",), got {suffixes!r}')
        if not callable(getattr(self.maker, "decode", None)):
            raise ValueError(f"{what} needs a static method decode(data, name) from bytes to an array; add it")
        return self

    @property
    def medium(self) -> str:  # type: ignore[override]  # of the class that the user brings
        return str(self.maker.medium)

    @property
    def medium_plural(self) -> str:
        return f"{self.medium} files"

    @property
    def suffixes(self) -> tuple[str, ...]:
        return tuple(self.maker.suffixes)

    @property
    def step(self) -> int:
        return int(getattr(self.maker, "step", 1))

    def decode(self, data: bytes, name: str) -> Any:
        """Call the user's function with those settings that it takes."""
        taken = inspect.signature(self.maker.decode).parameters
        return self.maker.decode(data, name, **{key: value for key, value in self.settings().items() if key in taken})


class PictureReader(MediaReader):
    """Base class of readers of images; all images are resized to one shape."""

    medium: ClassVar[str] = "picture"
    is_picture: ClassVar[bool] = True
    size: Pixels = 224
    """Height of the images in pixels, and their width unless `width` is given."""
    width: Pixels | None = None
    """Width of the images in pixels. None: the same as `size`."""
    fit: Literal["crop", "stretch", "pad"] = "crop"
    """How an image of another aspect ratio is made to fit: "crop" cuts its ends off, "stretch" distorts it, "pad" adds
    a grey border."""
    resample: Literal["bilinear", "bicubic"] = "bilinear"
    """Interpolation by which images are resized. Imported models need the one that they were trained with."""
    margin: Annotated[int, Field(ge=0, le=4096)] = 0
    """Pixels that are cropped from each side after resizing, as in the center crop of ImageNet models."""
    augment: ImageAugmentation = ImageAugmentation()
    """Random augmentation of the training images."""

    @property
    def column_layers(self) -> int:
        """Layers of the LSTM over the columns of the feature map."""
        return 0

    @property
    def augmentation(self) -> Table:
        return self.augment

    @property
    def image_shape(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self.size, self.width or self.size

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of cells."""
        raise NotImplementedError

    def get_level_grid(self, cells: int) -> tuple[int, int] | None:
        """Rows and columns of the level that has this many cells; None where the reader has no levels."""
        return None


class PatchReader(PictureReader):
    """Reads an image as square patches, each projected to a vector (ViT, Dosovitskiy et al. 2021)."""

    kind: Literal["patches"] = "patches"
    """Chooses this reader: patches of an image."""
    patch_size: Count = 16
    """Side of a patch in pixels. Smaller patches see finer detail; half the size is four times as many positions."""
    stem: tuple[Count, ...] = ()
    """Output channels of a convolutional stem in place of the linear patch projection (Xiao et al. 2021); the last ones
    halve the resolution. Empty: the linear projection."""
    mean: Rgb = (0.5, 0.5, 0.5)
    """Mean of red, green and blue that is subtracted from pixel values between 0 and 1."""
    std: Annotated[Rgb, AfterValidator(check_std)] = (0.5, 0.5, 0.5)
    """Standard deviation of red, green and blue by which pixel values are divided after that."""
    class_token: bool = True
    """Prepend a learned class token, whose final state represents the whole image. Without it, use writer.pooling =
    "mean"."""
    stack: CellStack = TransformerStack()
    """The layers over the patches."""
    positions: CellPositions = "learned"
    """Position vectors added to the patches: learned, fixed sinusoids of the index, or none."""
    dropout: Share = 0.0
    """Dropout probability of the patch vectors after positions are added."""

    @property
    def has_class_token(self) -> bool:
        return self.class_token

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        high, wide = self.image_shape
        return high // self.patch_size, wide // self.patch_size

    @property
    def class_tokens(self) -> int:
        return int(self.class_token)

    @property
    def states(self) -> int:
        return math.prod(self.grid) + self.class_token

    @property
    def patches(self) -> PatchReader:
        return self

    def find_conflict(self, recipe: Recipe) -> str:
        return self.find_stack_conflict(self.stack) or super().find_conflict(recipe)

    @model_validator(mode="after")
    def _whole_patches(self) -> PatchReader:
        for name, pixels in zip(("size", "width"), self.image_shape, strict=True):
            if pixels % self.patch_size:
                raise ValueError(f"{name} must be a multiple of patch_size = {self.patch_size}, got {pixels}")
        if self.stem and self.patch_size not in [1 << n for n in range(len(self.stem) + 1)]:
            raise ValueError(
                "each convolution of stem halves the sides at most once, so that patch_size must be a power of 2, with "
                f"{len(self.stem)} of them at most {1 << len(self.stem)}, got {self.patch_size}"
            )
        return self


class GridReader(PictureReader):
    """Reads an image as a grid of cells, the feature map of a convolutional network (Xu et al. 2015).

    Each level of the network halves height and width.
    """

    kind: Literal["grid"] = "grid"
    """Chooses this reader: the feature map of a small convolutional network."""
    channels: Annotated[tuple[Count, ...], Field(min_length=1)] = (
        64,
        128,
        256,
        512,
    )
    """Output channels of each level; the last one is the width of the cells."""
    depth: Repeats = 1
    """Residual blocks of two convolutions in each level. More are slower and more accurate."""
    attention_levels: tuple[Count, ...] = ()
    """Levels, counted from 1, that are followed by self-attention over all cells (Zhang et al. 2019). Empty: none."""
    height_only_levels: Annotated[int, Field(ge=0)] = 0
    """The last n levels halve only the height, which keeps letters of a line of text side by side. 0 for photographs.
    """
    column_lstm_layers: Annotated[int, Field(ge=0)] = 0
    """Layers of an LSTM over the columns of the feature map, whose final state summarizes the image (Li et al. 2019).
    0: none."""
    stack: CellStack | None = None
    """Layers over the cells, such as a Transformer; its width must be that of the last level. None: no such layers."""
    positions: CellPositions = "learned"
    """Position vectors added to the cells: learned, fixed sinusoids of the index, or none."""
    dropout: Share = 0.0
    """Dropout probability of the cells."""

    @property
    def column_layers(self) -> int:
        return self.column_lstm_layers

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of cells."""
        high, wide = self.image_shape
        levels = len(self.channels)
        return high >> levels, wide >> levels - self.height_only_levels

    def get_level_grid(self, cells: int) -> tuple[int, int]:
        high, wide = self.grid
        sides = (
            (high << above, wide << above - min(self.height_only_levels, above)) for above in range(len(self.channels))
        )
        return next(side for side in sides if side[0] * side[1] == cells)

    @property
    def states(self) -> int:
        return math.prod(self.grid)

    def find_conflict(self, recipe: Recipe) -> str:
        return self.find_stack_conflict(self.stack) or super().find_conflict(recipe)

    @model_validator(mode="after")
    def _whole_cells(self) -> GridReader:
        levels = len(self.channels)
        if max(self.attention_levels, default=0) > levels:
            raise ValueError(
                f"attention_levels must be at most the number of levels, {levels}, got {max(self.attention_levels)}"
            )
        if self.height_only_levels > levels:
            raise ValueError(
                f"height_only_levels must be at most the number of levels, {levels}, got {self.height_only_levels}"
            )
        for name, pixels, halved in zip(
            ("size", "width"), self.image_shape, (levels, levels - self.height_only_levels), strict=True
        ):
            if pixels % (1 << halved):
                raise ValueError(
                    f"{name} must be a multiple of {1 << halved}, as each of {halved} levels halves it, got {pixels}"
                )
        width = None if self.stack is None or self.stack.is_custom else self.stack.width
        if width not in (None, self.channels[-1]):
            raise ValueError(f"stack.dim must be that of the last level, {self.channels[-1]}, got {width}")
        return self


class TimmReader(PictureReader):
    """Reads an image as the feature map of a pretrained network of the package timm."""

    kind: Literal["timm"] = "timm"
    """Chooses this reader: a backbone of the package timm."""
    name: str = "resnet18"
    """Name of the network, one of timm.list_models()."""
    pretrained: bool = False
    """Download the published weights when a run starts. False: random initialization."""
    trainable: bool = True
    """Fine-tune the network with the rest. False keeps it frozen, which is faster and suits small data."""
    stride: Count = 32
    """Pixels per cell of the feature map; chooses one of the network's feature maps. Smaller strides give more cells.
    """
    dim: Count = 512
    """Width of the cells after a linear projection of the feature map."""
    stack: CellStack | None = None
    """Layers over the cells, such as a Transformer; its width must be `dim`. None: no such layers."""
    positions: CellPositions = "learned"
    """Position vectors added to the cells: learned, fixed sinusoids of the index, or none."""
    dropout: Share = 0.0
    """Dropout probability of the cells."""

    @property
    def backbone(self) -> TimmReader:
        return self

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of cells."""
        high, wide = self.image_shape
        return high // self.stride, wide // self.stride

    @property
    def states(self) -> int:
        return math.prod(self.grid)

    def find_conflict(self, recipe: Recipe) -> str:
        return self.find_stack_conflict(self.stack) or super().find_conflict(recipe)

    @model_validator(mode="after")
    def _whole_cells(self) -> TimmReader:
        for name, pixels in zip(("size", "width"), self.image_shape, strict=True):
            if pixels % self.stride:
                raise ValueError(f"{name} must be a multiple of stride = {self.stride}, got {pixels}")
        width = None if self.stack is None or self.stack.is_custom else self.stack.width
        if width not in (None, self.dim):
            raise ValueError(f"stack.dim must be dim = {self.dim}, got {width}")
        return self


CellReader = PatchReader | GridReader | TimmReader  # as many states for every picture


# ---- an image and a question


class GlimpsesJoin(Table, JoinTraits):
    """The encoded question attends to the image several times in parallel (Kazemi and Elqursh 2017)."""

    kind: Literal["glimpses"] = "glimpses"
    """Chooses this fusion: parallel glimpses of the question at the image."""
    glimpses: Repeats = 2
    """Number of parallel attention distributions over the image."""
    hidden_dim: Count = 512
    """Width of the hidden layer that scores a cell against the question."""
    dropout: Share = 0.0
    """Dropout probability of the cells before attention."""


class HopsJoin(Table, JoinTraits):
    """Each word attends to the image, then the question with its context attends again (Xu and Saenko 2016)."""

    kind: Literal["hops"] = "hops"
    """Chooses this fusion: several hops of attention."""
    hops: Repeats = 2
    """Number of successive rounds of attention to the image."""
    dim: Count = 512
    """Width of the attended image features."""
    question_length: Count | None = None
    """Encode the question as in the paper: the sum of its word vectors, each times a learned weight of its position, of
    which there are this many, at least data.max_length. The layers of `reader.question.stack` are then left out, and
    its width is that of the words, which must be `dim`. None: the question is the last state of these layers."""
    dropout: Share = 0.0
    """Dropout probability of the cells before attention."""

    def find_join_conflict(self, recipe: Recipe) -> str:
        reader: Any = recipe.reader  # joined, as it has a join
        length, width = self.question_length, reader.question.stack.width
        if length is not None and length < recipe.data.max_length:
            return (
                f"reader.join.question_length = {length} has no weight for the last words of a question of "
                f"data.max_length = {recipe.data.max_length}; set one to the other"
            )
        if length is not None and width != self.dim:
            return (
                f"reader.join.question_length adds words to image features, which must have the same width; got "
                f"reader.question.stack.dim = {width} and reader.join.dim = {self.dim}; set one to the other"
            )
        return ""


class ConcatJoin(Table, JoinTraits):
    """Image cells and question tokens as one sequence, with layers over both."""

    kind: Literal["concat"] = "concat"
    """Chooses this fusion: one sequence of cells and tokens."""
    dim: Count = 512
    """Width to which cells and tokens are projected; that of the stack."""
    stack: CellStack | None = None
    """Layers over the joint sequence, such as a Transformer. None: cells and tokens are only concatenated."""

    @property
    def is_side_by_side(self) -> bool:
        return self.stack is None


class QuestionJoin(Table, JoinTraits):
    """The question alone, without the image: a baseline of what can be guessed."""

    reads_picture: ClassVar[bool] = False
    kind: Literal["question"] = "question"
    """Chooses the question alone: the language-only baseline."""


Join = Annotated[GlimpsesJoin | HopsJoin | ConcatJoin | QuestionJoin | Custom, ByKind()]
