"""The tables `positions` of a recipe: how a model is informed about the positions of tokens."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from saccade.config.kinds import ByKind, Custom
from saccade.config.table import Count, PositionTraits, Table

Positive = Annotated[float, Field(gt=0.0)]


class PositionTable(Table, PositionTraits):
    """Base class of all kinds of positions."""


class Sinusoidal(PositionTable):
    """Sinusoids of the absolute position (Vaswani et al. 2017); any length can be encoded."""

    kind: Literal["sinusoidal"] = "sinusoidal"
    """Chooses this kind of positions: fixed sinusoids at the input."""
    layout: Literal["interleaved", "concatenated"] = "interleaved"
    """Order of the features: sines and cosines in turn (the paper), or all sines before all cosines (tensor2tensor,
    fairseq, Hugging Face). Matters only for imported weights."""
    frequencies: Literal["paper", "tensor2tensor"] = "paper"
    """Exponent of the frequencies: 2i / dim as in the paper, or i / (dim / 2 - 1) as in tensor2tensor and fairseq.
    Matters only for imported weights."""
    combine: Literal["add", "concat"] = "add"
    """Add position vectors to token vectors, or concatenate them, with half of the width each."""

    @property
    def is_concatenated(self) -> bool:
        return self.combine == "concat"


class Learned(PositionTable):
    """One learned vector for each absolute position (Gehring et al. 2017; BERT, GPT-2)."""

    kind: Literal["learned"] = "learned"
    """Chooses this kind of positions: a learned table at the input."""
    length: Count = 1024
    """Number of positions in the table, in tokens: the longest sequence that the model can process."""
    combine: Literal["add", "concat"] = "add"
    """Add position vectors to token vectors, or concatenate them, with half of the width each."""

    @property
    def is_concatenated(self) -> bool:
        return self.combine == "concat"

    def find_length_conflict(self, max_length: int) -> str:
        if self.length >= max_length:
            return ""
        return (
            f"positions.length must be at least data.max_length = {max_length}, got {self.length}; "
            "set one of them to the other"
        )

    @property
    def learned_table(self) -> Learned:
        return self


class NoPositions(PositionTable):
    """No positions: right for recurrent stacks, which read in order, and for sets."""

    kind: Literal["none"] = "none"
    """Chooses no positions at all."""


class Axial(PositionTable):
    """Two small learned tables instead of a long one (Kitaev et al. 2020).

    Position p has the vector of row p // columns beside that of column p % columns.
    """

    kind: Literal["axial"] = "axial"
    """Chooses this kind of positions: axial embeddings at the input."""
    shape: tuple[Count, Count] = (64, 64)
    """Rows and columns; their product is the longest sequence, in tokens."""
    row_dim: Count | None = None
    """Features of the row vector; the column vector has the rest of the width. None: a quarter of the width."""

    def find_length_conflict(self, max_length: int) -> str:
        rows, columns = self.shape
        if rows * columns >= max_length:
            return ""
        return (
            f"positions.shape must have at least data.max_length = {max_length} positions, got {rows} x {columns} = "
            f"{rows * columns}; raise one of them, or lower data.max_length"
        )

    @property
    def axial_table(self) -> Axial:
        return self


class RotaryScaling(Table):
    """Scales rotary frequencies for sequences that are longer than those of pretraining (Llama 3.1)."""

    factor: Positive = 8.0
    """Low frequencies are divided by this: the ratio of the new context length to that of pretraining."""
    low_freq_factor: Positive = 1.0
    """Frequencies with fewer than this many rotations in `original_length` tokens are divided by `factor`."""
    high_freq_factor: Positive = 4.0
    """Frequencies with more than this many rotations in `original_length` tokens stay as they are; between the two
    limits both are interpolated."""
    original_length: Count = 8192
    """Context length of pretraining, in tokens."""


class Rotary(PositionTable):
    """Rotates pairs of features of queries and keys by angles that grow with the position (RoPE, Su et al. 2021)."""

    inside_attention: ClassVar[bool] = True
    kind: Literal["rotary"] = "rotary"
    """Chooses this kind of positions: rotary embeddings in every self-attention."""
    base: float = 10000.0
    """Base theta of the frequencies; larger values rotate more slowly, which suits longer contexts."""
    scaling: RotaryScaling | None = None
    """Frequency scaling for contexts that are longer than those of pretraining. None: no scaling."""

    @property
    def rotary_table(self) -> Rotary:
        return self


class Shaw(PositionTable):
    """Learned vectors of relative positions, added to keys (Shaw et al. 2018, equation 4)."""

    inside_attention: ClassVar[bool] = True
    kind: Literal["shaw"] = "shaw"
    """Chooses this kind of positions: relative position vectors in every self-attention."""
    max_distance: Count = 16
    """Distance in tokens from which on all distances share one vector, in each direction."""


class Bucketed(PositionTable):
    """Relative position bias of T5 (Raffel et al. 2020): a learned number per head and bucket of distances."""

    inside_attention: ClassVar[bool] = True
    kind: Literal["bucketed"] = "bucketed"
    """Chooses this kind of positions: a relative position bias on attention scores."""
    buckets: Count = 32
    """Number of buckets of distances; half of them are exact, the others grow logarithmically."""
    max_distance: Count = 128
    """Distance in tokens from which on all distances share the last bucket."""

    @property
    def bucketed_table(self) -> Bucketed:
        return self


class Alibi(PositionTable):
    """A fixed penalty on attention scores that grows linearly with the distance (ALiBi, Press et al. 2022)."""

    inside_attention: ClassVar[bool] = True
    kind: Literal["alibi"] = "alibi"
    """Chooses this kind of positions: ALiBi, which extrapolates to longer sequences."""


class TransformerXL(PositionTable):
    """Sinusoids of relative distances, projected in each layer, as in Transformer-XL (Dai et al. 2019)."""

    inside_attention: ClassVar[bool] = True
    kind: Literal["transformer-xl"] = "transformer-xl"
    """Chooses this kind of positions: relative sinusoids in every self-attention."""
    content_bias: bool = False
    """Add the learned bias u of the paper to queries in the content term of the score. False: only the position term
    has a bias, v."""
    relative_segments: bool = False
    """Readers only: attention scores also depend on whether query and key are of the same segment (XLNet, Yang et al.
    2019)."""

    @property
    def uses_segments(self) -> bool:
        return self.relative_segments


Positions = Annotated[
    Sinusoidal | Learned | NoPositions | Axial | Rotary | Shaw | Bucketed | Alibi | TransformerXL | Custom, ByKind()
]
