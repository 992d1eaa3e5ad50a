"""Tables of a recipe: how a model knows positions."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from saccade.config.kinds import ByKind, Custom
from saccade.config.table import Count, PositionTraits, Table

Positive = Annotated[float, Field(gt=0.0)]


class PositionTable(Table, PositionTraits):
    """What all kinds of positions have in common."""


class Sinusoidal(PositionTable):
    kind: Literal["sinusoidal"] = "sinusoidal"
    layout: Literal["interleaved", "concatenated"] = "interleaved"
    frequencies: Literal["paper", "tensor2tensor"] = "paper"
    how: Literal["add", "concat"] = "add"

    @property
    def concatenated(self) -> bool:
        return self.how == "concat"


class Learned(PositionTable):
    kind: Literal["learned"] = "learned"
    length: Count = 1024
    how: Literal["add", "concat"] = "add"

    @property
    def concatenated(self) -> bool:
        return self.how == "concat"

    def find_misfit(self, longest: int) -> str:
        if self.length >= longest:
            return ""
        return (
            f"positions.length must be at least data.max_length = {longest}, got {self.length}; "
            "set one of them to the other"
        )

    @property
    def learned(self) -> Learned:
        return self


class NoPositions(PositionTable):
    kind: Literal["none"] = "none"


class Axial(PositionTable):
    """Two small tables in the place of a long one (Kitaev et al. 2020): position p has row p // n and column p % n."""

    kind: Literal["axial"] = "axial"
    shape: tuple[Count, Count] = (64, 64)  # rows and columns; their product is the longest text
    first: Count | None = None  # features for the row, the others are for the column; none: a quarter of them

    def find_misfit(self, longest: int) -> str:
        rows, columns = self.shape
        if rows * columns >= longest:
            return ""
        return (
            f"positions.shape must have at least data.max_length = {longest} places, got {rows} x {columns} = "
            f"{rows * columns}; raise one of them, or lower data.max_length"
        )

    @property
    def axial(self) -> Axial:
        return self


class Stretch(Table):
    """Rotary positions for longer texts than a model was pretrained with: slow turns become slower (Llama 3.1)."""

    factor: Positive = 8.0  # pairs with fewer than `low` turns in a text of `length` turn so many times slower
    low: Positive = 1.0
    high: Positive = 4.0  # those with more turns stay as they are; in between it is a mixture
    length: Count = 8192


class Rotary(PositionTable):
    inside_attention: ClassVar[bool] = True
    kind: Literal["rotary"] = "rotary"
    base: float = 10000.0
    stretch: Stretch | None = None

    @property
    def rotary(self) -> Rotary:
        return self


class Shaw(PositionTable):
    inside_attention: ClassVar[bool] = True
    kind: Literal["shaw"] = "shaw"
    distance: Count = 16


class Bucketed(PositionTable):
    """The relative position bias of T5."""

    inside_attention: ClassVar[bool] = True
    kind: Literal["bucketed"] = "bucketed"
    buckets: Count = 32
    distance: Count = 128

    @property
    def bucketed(self) -> Bucketed:
        return self


class Alibi(PositionTable):
    inside_attention: ClassVar[bool] = True
    kind: Literal["alibi"] = "alibi"


class TransformerXL(PositionTable):
    """Sinusoids of distances, projected in each layer, as in Transformer-XL (Dai et al. 2019)."""

    inside_attention: ClassVar[bool] = True
    kind: Literal["transformer-xl"] = "transformer-xl"
    content: bool = False  # queries have a bias of their own where they meet keys, beside that for distances
    segments: bool = False  # of a reader: whether query and key belong to one segment counts too (XLNet)

    @property
    def uses_segments(self) -> bool:
        return self.segments


Positions = Annotated[
    Sinusoidal | Learned | NoPositions | Axial | Rotary | Shaw | Bucketed | Alibi | TransformerXL | Custom, ByKind()
]
