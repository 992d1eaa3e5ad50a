"""What reads and what writes, as tables of a recipe."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from saccade.config.backbone import TimmReader
from saccade.config.hidden_patches import PatchWriter
from saccade.config.joined import GlimpsesJoin, Join
from saccade.config.kinds import ByKind, Custom
from saccade.config.media import GridReader, MediaReader, PatchReader
from saccade.config.playing import ValuesWriter
from saccade.config.sound import FrameReader
from saccade.config.stacks import Positions, ReaderStack, Sinusoidal, TransformerStack, WriterStack
from saccade.config.table import Count, EmbeddingOptions, ReaderTraits, Share, Table, WriterTraits


class Again(Table):
    """A text is read once more by what could write it: each place knows those before it, and all of the first reading.

    So BART labels texts (Lewis et al. 2020). Its vectors of tokens are those of the first reading.
    """

    stack: TransformerStack = TransformerStack()
    positions: Positions = Sinusoidal()
    scale: bool = True
    embedding_norm: bool = False
    dropout: Share = 0.1
    start: Literal["own", "pad", "end"] = "own"  # what stands before the text: a vector of its own, or another piece's

    @property
    def embedding_options(self) -> EmbeddingOptions:
        return EmbeddingOptions(norm=self.embedding_norm, start=self.start)


class TokenReader(Table, ReaderTraits):
    kind: Literal["tokens"] = "tokens"
    stack: ReaderStack = TransformerStack()
    positions: Positions = Sinusoidal()
    scale: bool = True  # token vectors times sqrt(dim)
    embedding_norm: bool = False  # LayerNorm of tokens and positions together
    embedding_dim: Count | None = None  # width of the vectors of tokens, which a matrix makes as wide as the stack
    segments: Annotated[int, Field(ge=0)] = 0  # vectors for the 1st, 2nd ... part of a text, each ended by <end>
    dropout: Share = 0.1  # of the embedding
    causal: bool = False  # no state knows what comes after it, as in a language model; for Transformers
    levels: bool = False  # a writer attends to the vector of each token beside its state (Mei et al. 2016)
    again: Again | None = None  # states are those of a second reading from left to right; for labels and vectors
    init: str = ""  # a run whose reader's weights to start from

    @property
    def embedding_options(self) -> EmbeddingOptions:
        return EmbeddingOptions(self.embedding_dim, self.segments, self.embedding_norm)

    @property
    def embedded_parts(self) -> tuple[Any, ...]:
        return (self,) if self.again is None else (self, self.again)

    @property
    def token_stack(self) -> ReaderStack:
        return self.stack

    @property
    def embedding_eps(self) -> float:
        return self.stack.embedding_eps

    @property
    def text_init(self) -> str:
        return self.init

    @property
    def is_causal(self) -> bool:
        return self.causal

    @property
    def second_reading(self) -> Again | None:
        return self.again

    @property
    def tells_segments(self) -> bool:
        return self.segments > 1 or self.positions.uses_segments


class JoinedReader(MediaReader):
    """A picture and a question about it, each with a reader of its own."""

    medium: ClassVar[str] = "picture"
    asks: ClassVar[bool] = True
    kind: Literal["joined"] = "joined"
    look: Annotated[GridReader | PatchReader, ByKind()] = GridReader()  # reads the picture
    ask: TokenReader = TokenReader()  # reads the question
    join: Join = GlimpsesJoin()
    blind: Share = 0.0  # of the questions that it learns from, so many see nothing of their picture

    @property
    def of_files(self) -> MediaReader:
        return self.look

    @property
    def embedded_parts(self) -> tuple[Any, ...]:
        return self.ask.embedded_parts


class NoReader(Table, ReaderTraits):
    """Nothing is read: the writer is a language model."""

    is_none: ClassVar[bool] = True

    kind: Literal["none"] = "none"


class TokenWriter(Table, WriterTraits):
    kind: Literal["tokens"] = "tokens"
    stack: WriterStack = TransformerStack()
    positions: Positions = Sinusoidal()
    scale: bool = True
    embedding_norm: bool = False
    dropout: Share = 0.1
    tie: Literal["none", "input", "output", "all"] = "all"  # input: both embeddings; output: the writer's and it
    start: Literal["own", "pad", "end"] = "own"  # what is read first: a vector of its own, or that of another piece
    output_scale: bool = False  # states divided by sqrt(dim) before the output matrix
    output_bias: bool = False  # of the logits; it is not trained
    ctc: bool = False  # beside it stands a head that says a letter, or nothing, for each state of the reader
    init: str = ""

    @property
    def embedding_options(self) -> EmbeddingOptions:
        return EmbeddingOptions(norm=self.embedding_norm, start=self.start)

    @property
    def embedded_parts(self) -> tuple[Any, ...]:
        return (self,)

    @property
    def token_stack(self) -> WriterStack:
        return self.stack

    @property
    def text_init(self) -> str:
        return self.init

    @property
    def tied(self) -> str:
        return self.tie


class ActionWriter(TokenWriter):
    """Writes actions, each of which is carried out in a world before the next one (Mei et al. 2016)."""

    kind: Literal["actions"] = "actions"  # type: ignore[assignment]  # a table of its own
    tie: Literal["none", "output"] = "output"
    items: tuple[str, ...] = ("barstool", "chair", "easel", "hatrack", "lamp", "sofa")  # that stand in the worlds
    floors: tuple[str, ...] = ("blue", "brick", "concrete", "flower", "grass", "gravel", "wood", "yellow")
    walls: tuple[str, ...] = ("butterfly", "fish", "tower")
    mirror: bool = True  # it also learns in mirrored worlds, where left and right are exchanged
    blind: Share = 0.0  # of what is seen while it learns, so much is hidden

    @property
    def actions(self) -> ActionWriter:
        return self


class FillWriter(Table, WriterTraits):
    """Writes all tokens at once (Gu et al. 2018): how many there will be is predicted first."""

    kind: Literal["fill"] = "fill"
    stack: Annotated[TransformerStack | Custom, ByKind()] = TransformerStack()
    positions: Positions = Sinusoidal()
    scale: bool = True
    dropout: Share = 0.1
    tie: Literal["none", "output", "all"] = "all"
    reach: Count = 16  # an output has at most so many tokens more or fewer than its source
    copy_source: bool = True  # a place where nothing is written yet sees the source states around it
    init: str = ""

    @property
    def embedding_options(self) -> EmbeddingOptions:
        return EmbeddingOptions()

    @property
    def embedded_parts(self) -> tuple[Any, ...]:
        return (self,)

    @property
    def tied(self) -> str:
        return self.tie


Pooling = Literal["first", "mean", "last", "before-end"]


class Head(Table, WriterTraits):
    """What every head over the states of a reader has: dropout, a layer in between where one is wanted, a product."""

    is_head: ClassVar[bool] = True
    is_label_head: ClassVar[bool] = True
    predicts_classes: ClassVar[bool] = True
    hidden: Count | None = None  # width of a layer in between (BERT's pooler: dim); none: there is no such layer
    activation: Literal["tanh", "relu", "gelu", "gelu-tanh", "silu", "sigmoid"] = "tanh"  # of that layer
    dropout: Share = 0.1
    bias: bool = True  # of the output
    init: str = ""


class LabelWriter(Head):
    """One class for a whole text, or for a pair of texts."""

    label_kind: ClassVar[str] = "label"
    kind: Literal["label"] = "label"
    pooling: Pooling = "mean"  # of a text's states: the first, their mean, the last, or the one before <end>

    @property
    def pooled(self) -> str:
        return self.pooling


class NumberWriter(Head):
    """A number for a whole text, or for a pair of texts."""

    label_kind: ClassVar[str] = "number"
    kind: Literal["number"] = "number"
    pooling: Pooling = "mean"

    @property
    def pooled(self) -> str:
        return self.pooling


class TagWriter(Head):
    """A class for each word, told by the state of its first piece."""

    label_kind: ClassVar[str] = "tags"
    labels_words: ClassVar[bool] = True
    kind: Literal["tags"] = "tags"


class MaskedWriter(Table, WriterTraits):
    """Restores tokens that were hidden from the reader (Devlin et al. 2019)."""

    is_head: ClassVar[bool] = True
    kind: Literal["masked"] = "masked"
    activation: Literal["relu", "gelu", "gelu-tanh", "silu"] = "gelu"  # after the matrix before the output matrix
    tie: Literal["none", "all"] = "all"  # all: the output matrix is the reader's embedding
    pairs: bool = False  # says also whether the second part of a text follows the first
    dropout: Share = 0.1  # of what it says that from
    init: str = ""

    @property
    def tied(self) -> str:
        return self.tie

    @property
    def predicts_pairs(self) -> bool:
        return self.pairs


class PermutedWriter(Table, WriterTraits):
    """Says the token at a place, given those that come before it in whatever order (Yang et al. 2019)."""

    is_permuted: ClassVar[bool] = True
    is_head: ClassVar[bool] = True
    kind: Literal["permuted"] = "permuted"
    tie: Literal["none", "all"] = "all"  # all: the output matrix is the reader's embedding
    init: str = ""

    @property
    def tied(self) -> str:
        return self.tie


class StatesWriter(Table, WriterTraits):
    """Writes nothing: the states of the reader are what is wanted."""

    is_head: ClassVar[bool] = True
    gives_states: ClassVar[bool] = True
    kind: Literal["states"] = "states"
    pool: bool = False  # a matrix and tanh for the first state, which stands for the text
    tie: Literal["none"] = "none"
    init: str = ""


Reader = Annotated[
    TokenReader | NoReader | PatchReader | GridReader | TimmReader | FrameReader | JoinedReader | Custom, ByKind()
]
Labelling = LabelWriter | NumberWriter | TagWriter
Encoding = MaskedWriter | PermutedWriter | StatesWriter | PatchWriter
Writer = Annotated[TokenWriter | ActionWriter | FillWriter | Labelling | Encoding | ValuesWriter | Custom, ByKind()]
