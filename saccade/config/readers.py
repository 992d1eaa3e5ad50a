"""What reads, as tables of a recipe: text, a picture and a question about it, or nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from saccade.config.kinds import ByKind, Custom
from saccade.config.media import GlimpsesJoin, GridReader, Join, MediaReader, PatchReader, TimmReader
from saccade.config.positions import Positions, Sinusoidal
from saccade.config.sound import FrameReader
from saccade.config.stacks import ReaderStack, TransformerStack, find_reversible_conflict
from saccade.config.table import Count, EmbeddingOptions, ReaderTraits, Share, Table

if TYPE_CHECKING:
    from saccade.config.schema import Recipe


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

    @property
    def text(self) -> TokenReader:
        return self

    def find_conflict(self, recipe: Recipe) -> str:
        if self.causal and not self.stack.transformer:
            kind = self.stack.kind
            return f'reader.causal = true is for a Transformer, got reader.stack.kind = "{kind}"; leave it out'
        conflict = find_reversible_conflict("reader", self.stack, self.positions)
        return conflict if conflict or self.again is None else self._find_again_conflict(self.again, recipe)

    def _find_again_conflict(self, again: Again, recipe: Recipe) -> str:
        if not (recipe.writer.is_label_head or recipe.writer.gives_states):
            return (
                "reader.again is for labels and for vectors of texts, got writer.kind = "
                f'"{recipe.writer.kind}"; leave it out, or set writer.kind = "label"'
            )
        if not self.stack.transformer:
            return f'reader.again attends to a Transformer, got reader.stack.kind = "{self.stack.kind}"; leave it out'
        if self.stack.is_reversible or again.stack.is_reversible:
            return 'reader.again has no place beside residual = "reversible"; set it to true on both stacks'
        if self.levels:
            return "reader.again gives states alone to what comes after it; set reader.levels = false"
        if again.positions.uses_segments:
            return "reader.again.positions.segments: only the first reading tells segments apart; set it to false"
        return ""


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
    def joined(self) -> JoinedReader:
        return self

    @property
    def of_files(self) -> MediaReader:
        return self.look

    @property
    def embedded_parts(self) -> tuple[Any, ...]:
        return self.ask.embedded_parts

    def find_conflict(self, recipe: Recipe) -> str:
        writer = recipe.writer
        if self.ask.init:
            return "reader.ask.init has no run that it could start from; set reader.init, or leave it out"
        if self.look.init and not self.join.reads_picture:
            return "reader.look.init is for what reads pictures, and the question alone reads none; leave it out"
        if self.join.is_side_by_side and writer.pooled not in ("", "mean"):
            return (
                f"without reader.join.stack no state knows of the others, so that writer.pooling = "
                f'"{writer.pooled}" sees one cell or word alone; set it to "mean", or give a stack'
            )
        if self.ask.causal and not self.ask.stack.transformer:
            kind = self.ask.stack.kind
            return f'reader.ask.causal = true is for a Transformer, got reader.ask.stack.kind = "{kind}"; leave it out'
        if self.ask.again is not None:
            return "a question about a picture is read once; leave reader.ask.again out"
        return super().find_conflict(recipe)


class NoReader(Table, ReaderTraits):
    """Nothing is read: the writer is a language model."""

    is_none: ClassVar[bool] = True

    kind: Literal["none"] = "none"


Reader = Annotated[
    TokenReader | NoReader | PatchReader | GridReader | TimmReader | FrameReader | JoinedReader | Custom, ByKind()
]
