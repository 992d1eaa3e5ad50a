"""The table [reader] of a recipe for text, for an image with a question, or for none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from saccade.config.kinds import ByKind, Custom
from saccade.config.media import GlimpsesJoin, GridReader, Join, MediaReader, OwnMediaReader, PatchReader, TimmReader
from saccade.config.positions import Positions, Sinusoidal
from saccade.config.sound import FrameReader
from saccade.config.stacks import ReaderStack, TransformerStack, find_reversible_conflict
from saccade.config.table import Count, EmbeddingOptions, ReaderTraits, Share, StartToken, Table

if TYPE_CHECKING:
    from saccade.config.schema import Recipe


class SecondPass(Table):
    """A decoder that reads the same text again, from left to right, and attends to the states of the first pass.

    BART classifies texts in this way (Lewis et al. 2020). Token embeddings are shared with the first pass.
    """

    stack: TransformerStack = TransformerStack()
    """The Transformer layers of the decoder."""
    positions: Positions = Sinusoidal()
    """Positions of the decoder."""
    scale_embedding: bool = True
    """Multiply token embeddings by sqrt(dim) before positions are added."""
    embedding_norm: bool = False
    """LayerNorm of the sum of token and position embeddings."""
    dropout: Share = 0.1
    """Dropout probability of the embeddings."""
    start_token: StartToken = "own"
    """First input token of the decoder: "own" is a start token with a learned embedding of its own, "pad" and "end"
    reuse those tokens (BART starts with end), and a number reuses the token of that id."""

    @property
    def embedding_options(self) -> EmbeddingOptions:
        return EmbeddingOptions(norm=self.embedding_norm, start_token=self.start_token)


class TokenReader(Table, ReaderTraits):
    """Reads text: token embeddings and a stack of layers."""

    kind: Literal["tokens"] = "tokens"
    """Chooses this reader: tokens of a text."""
    stack: ReaderStack = TransformerStack()
    """The layers over the token embeddings."""
    positions: Positions = Sinusoidal()
    """How the reader is informed about token positions."""
    scale_embedding: bool = True
    """Multiply token embeddings by sqrt(dim) before positions are added (Vaswani et al. 2017). BERT and GPT-2 do not.
    """
    embedding_norm: bool = False
    """LayerNorm of the sum of token and position embeddings, as in BERT."""
    embedding_dim: Count | None = None
    """Width of token embeddings, which a linear projection brings to the width of the stack (ALBERT). Smaller saves
    parameters. None: the width of the stack."""
    segments: Annotated[int, Field(ge=0)] = 0
    """Number of learned segment embeddings for the first, second, ... part of the input, each ended by <end> (BERT has
    2). 0: none."""
    dropout: Share = 0.1
    """Dropout probability of the embeddings."""
    causal: bool = False
    """Causal self-attention: no state sees later tokens, as in a language model. Only for Transformers."""
    concat_embedding: bool = False
    """The writer attends to the concatenation of each token's embedding and its state (multi-level alignment, Mei et
    al. 2016)."""
    second_pass: SecondPass | None = None
    """A decoder over the same text whose states are used in place of the encoder's. Only for classification and
    embeddings. None: no second pass."""
    init: str = ""
    """Run whose reader weights training starts from. Empty: they are initialized at random."""

    @property
    def embedding_options(self) -> EmbeddingOptions:
        return EmbeddingOptions(self.embedding_dim, self.segments, self.embedding_norm)

    @property
    def embedding_tables(self) -> tuple[Any, ...]:
        return (self,) if self.second_pass is None else (self, self.second_pass)

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
    def second_pass_table(self) -> SecondPass | None:
        return self.second_pass

    @property
    def uses_segments(self) -> bool:
        return self.segments > 1 or self.positions.uses_segments

    @property
    def text(self) -> TokenReader:
        return self

    def find_conflict(self, recipe: Recipe) -> str:
        if self.causal and not self.stack.transformer:
            kind = self.stack.kind
            return f'reader.causal = true is for a Transformer, got reader.stack.kind = "{kind}"; leave it out'
        conflict = find_reversible_conflict("reader", self.stack, self.positions)
        conflict = conflict or self.stack.find_dilation_conflict("reader", recipe.data.max_length)
        if conflict or self.second_pass is None:
            return conflict
        return self._find_second_pass_conflict(self.second_pass, recipe)

    def _find_second_pass_conflict(self, second: SecondPass, recipe: Recipe) -> str:
        if not (recipe.writer.is_label_head or recipe.writer.gives_states):
            return (
                "reader.second_pass is for classification and embeddings, got writer.kind = "
                f'"{recipe.writer.kind}"; leave it out, or set writer.kind = "label"'
            )
        if not self.stack.transformer:
            kind = self.stack.kind
            return f'reader.second_pass attends to a Transformer, got reader.stack.kind = "{kind}"; leave it out'
        if self.stack.is_reversible or second.stack.is_reversible:
            return 'reader.second_pass is incompatible with residual = "reversible"; set it to true on both stacks'
        if self.concat_embedding:
            return "reader.second_pass has no embeddings to concatenate; set reader.concat_embedding = false"
        if second.positions.uses_segments:
            return (
                "reader.second_pass.positions.relative_segments: only the first pass distinguishes segments; "
                "set it to false"
            )
        return ""


class JoinedReader(MediaReader):
    """Reads an image and a question about it, each with a reader of its own."""

    medium: ClassVar[str] = "picture"
    has_question: ClassVar[bool] = True
    kind: Literal["joined"] = "joined"
    """Chooses this reader: an image and a question."""
    image: Annotated[GridReader | PatchReader, ByKind()] = GridReader()
    """The reader of the image, a grid or patches."""
    question: TokenReader = TokenReader()
    """The reader of the question, its tokens."""
    join: Join = GlimpsesJoin()
    """How image and question are fused."""
    image_dropout: Share = 0.0
    """Probability that the image of a training example is hidden, so that the question must do alone. 0 disables it;
    0.1 regularizes."""

    @property
    def joined_table(self) -> JoinedReader:
        return self

    @property
    def file_reader(self) -> MediaReader:
        return self.image

    @property
    def embedding_tables(self) -> tuple[Any, ...]:
        return self.question.embedding_tables

    def find_conflict(self, recipe: Recipe) -> str:
        writer = recipe.writer
        if self.question.init:
            return "reader.question.init is not supported; set reader.init, or leave it out"
        if self.image.init and not self.join.reads_picture:
            return 'reader.image.init needs a reader of pictures, and join.kind = "question" has none; leave it out'
        if self.join.is_side_by_side and writer.pooling_kind not in ("", "mean"):
            return (
                f"without reader.join.stack states do not depend on each other, so that writer.pooling = "
                f'"{writer.pooling_kind}" depends on one cell or word only; set it to "mean", or give a stack'
            )
        if self.question.causal and not self.question.stack.transformer:
            kind = self.question.stack.kind
            return (
                f'reader.question.causal = true is for a Transformer, got reader.question.stack.kind = "{kind}"; '
                "leave it out"
            )
        if self.question.second_pass is not None:
            return "a question about a picture has one pass; leave reader.question.second_pass out"
        if conflict := self.join.find_join_conflict(recipe):
            return conflict
        return super().find_conflict(recipe)


class NoReader(Table, ReaderTraits):
    """No reader: the writer is a language model."""

    is_none: ClassVar[bool] = True

    kind: Literal["none"] = "none"
    """Chooses no reader, for language models."""


Reader = Annotated[
    TokenReader
    | NoReader
    | PatchReader
    | GridReader
    | TimmReader
    | FrameReader
    | JoinedReader
    | OwnMediaReader
    | Custom,
    ByKind(),
]
