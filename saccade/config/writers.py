"""What writes, as tables of a recipe: decoders of tokens, and heads over the states of a reader."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from saccade.config.kinds import ByKind, Custom
from saccade.config.playing import ValuesWriter
from saccade.config.positions import Positions, Sinusoidal
from saccade.config.stacks import RecurrentWriting, TransformerStack, WriterStack, find_reversible_conflict
from saccade.config.table import Count, EmbeddingOptions, Share, Table, WriterTraits
from saccade.config.training import tell_hard_attention

if TYPE_CHECKING:
    from saccade.config.schema import Recipe


class TokenWriter(Table, WriterTraits):
    learns_by: ClassVar[tuple[str, ...]] = ("next-token", "r-drop", "scheduled", "reinforce", "reward")
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

    @property
    def tokens(self) -> TokenWriter:
        return self

    @property
    def attention(self) -> RecurrentWriting | None:
        return self.stack.recurrent_writing

    def find_conflict(self, recipe: Recipe) -> str:
        return (
            find_writer_conflict(self, recipe)
            or self._find_attention_conflict(recipe)
            or self._find_ctc_conflict(recipe)
        )

    def _find_attention_conflict(self, recipe: Recipe) -> str:
        """Attention that samples must be learned by what learns that; attention around cells needs cells."""
        attention, reader = self.attention, recipe.reader
        hard = attention is not None and attention.hard
        for objective in () if self.stack.is_custom else recipe.objectives:
            if objective.learns_hard_attention != hard and not objective.is_custom:
                return tell_hard_attention(objective, hard=hard)
        cells = (reader.is_picture and not reader.class_token) or reader.is_custom
        if attention is not None and attention.attention == "around" and not cells:
            return (
                'writer.stack.attention = "around" looks at the cells of a picture; set reader.kind = "grid", or '
                "another attention"
            )
        return ""

    def _find_ctc_conflict(self, recipe: Recipe) -> str:
        """A head must stand on a reader, and an objective must train it."""
        trained = any(objective.learns_ctc or objective.is_custom for objective in recipe.objectives)
        if self.ctc and recipe.reader.is_none:
            return (
                "writer.ctc = true says a letter for each state of a reader, but there is none; set writer.ctc = false"
            )
        if self.ctc and not trained:
            return (
                'writer.ctc = true is a head that no objective trains; set objectives.0.kind = "scheduled" with '
                "ctc = 0.3, or writer.ctc = false"
            )
        return ""


def find_writer_conflict(writer: TokenWriter | FillWriter, recipe: Recipe) -> str:
    """What does not go with the positions and the reversible stack of a writer of tokens."""
    kind = 'writer.stack.residual = "reversible"'
    if writer.stack.is_reversible and not recipe.reader.is_none:
        return f'{kind} has no place for attention to what is read; set reader.kind = "none" and task = "write"'
    if conflict := find_reversible_conflict("writer", writer.stack, writer.positions):
        return conflict
    if writer.stack.is_reversible and writer.tie != "none":
        return f'{kind} gives states twice as wide as token vectors; set writer.tie = "none"'
    if writer.positions.uses_segments:
        return "writer.positions.segments is for readers: what is written is one segment; set it to false"
    return ""


class ActionWriter(TokenWriter):
    """Writes actions, each of which is carried out in a world before the next one (Mei et al. 2016)."""

    learns_by: ClassVar[tuple[str, ...]] = ("next-token",)
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

    is_filling: ClassVar[bool] = True
    learns_by: ClassVar[tuple[str, ...]] = ("fill",)
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

    def find_conflict(self, recipe: Recipe) -> str:
        return find_writer_conflict(self, recipe)


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
    learns_by: ClassVar[tuple[str, ...]] = ("label",)
    kind: Literal["label"] = "label"
    pooling: Pooling = "mean"  # of a text's states: the first, their mean, the last, or the one before <end>

    @property
    def pooled(self) -> str:
        return self.pooling

    def find_conflict(self, recipe: Recipe) -> str:
        whole = ("mean", "first") if recipe.reader.class_token else ("mean",)
        if not recipe.reader.is_picture or self.pooling in whole:
            return ""
        return (
            f'writer.pooling = "{self.pooling}" would take one corner of a picture for the whole; set '
            'writer.pooling = "mean", or "first" with reader.kind = "patches" and reader.first = true'
        )


class NumberWriter(Head):
    """A number for a whole text, or for a pair of texts."""

    label_kind: ClassVar[str] = "number"
    learns_by: ClassVar[tuple[str, ...]] = ("regress",)
    kind: Literal["number"] = "number"
    pooling: Pooling = "mean"

    @property
    def pooled(self) -> str:
        return self.pooling


class TagWriter(Head):
    """A class for each word, told by the state of its first piece."""

    label_kind: ClassVar[str] = "tags"
    learns_by: ClassVar[tuple[str, ...]] = ("tag",)
    labels_words: ClassVar[bool] = True
    kind: Literal["tags"] = "tags"


class MaskedWriter(Table, WriterTraits):
    """Restores tokens that were hidden from the reader (Devlin et al. 2019)."""

    is_head: ClassVar[bool] = True
    is_encoding: ClassVar[bool] = True
    learns_by: ClassVar[tuple[str, ...]] = ("masked",)
    kind: Literal["masked"] = "masked"
    activation: Literal["relu", "gelu", "gelu-tanh", "silu"] = "gelu"  # after the matrix before the output matrix
    tie: Literal["none", "all"] = "all"  # all: the output matrix is the reader's embedding
    pairs: bool = False  # says also whether the second part of a text follows the first
    dropout: Share = 0.1  # of what it says that from
    init: str = ""

    @property
    def masked(self) -> MaskedWriter:
        return self

    @property
    def tied(self) -> str:
        return self.tie

    @property
    def predicts_pairs(self) -> bool:
        return self.pairs

    def find_conflict(self, recipe: Recipe) -> str:
        if self.pairs != any(objective.sentence_pairs != "none" for objective in recipe.objectives):
            return (
                f"writer.pairs = {str(self.pairs).lower()} needs "
                + ('objectives.0.pairs = "next" or "order"' if self.pairs else 'objectives.0.pairs = "none"')
                + ", by which it learns whether one part of a text follows another; change one of them"
            )
        if recipe.tokenizer.is_learned and not recipe.tokenizer.mask:
            return "tokens are hidden by a piece of the tokenizer; set tokenizer.mask = true"
        return ""


class PermutedWriter(Table, WriterTraits):
    """Says the token at a place, given those that come before it in whatever order (Yang et al. 2019)."""

    is_permuted: ClassVar[bool] = True
    is_head: ClassVar[bool] = True
    is_encoding: ClassVar[bool] = True
    learns_by: ClassVar[tuple[str, ...]] = ("permuted",)
    kind: Literal["permuted"] = "permuted"
    tie: Literal["none", "all"] = "all"  # all: the output matrix is the reader's embedding
    init: str = ""

    @property
    def tied(self) -> str:
        return self.tie

    def find_conflict(self, recipe: Recipe) -> str:
        """Two streams go through the reader, so that not every reader will do."""
        two, reader = 'writer.kind = "permuted" leads two streams through the reader', recipe.reader.text
        if reader is None or not reader.stack.transformer:
            return (
                f'{two}, which must be a Transformer of tokens; set reader.kind = "tokens", reader.stack.kind likewise'
            )
        stack = reader.stack.transformer
        needed: dict[str, tuple[Any, Any, str]] = {
            "norm": (stack.norm, "post", '"post"'),
            "residual": (stack.residual, True, "true"),
            "window": (stack.window, None, '"none"'),
            "experts": (stack.experts, None, '"none"'),
        }
        for name, (value, wanted, said) in needed.items():
            if value != wanted:
                return f"{two}, which is made for reader.stack.{name} = {said}, got {value!r}; set it so"
        if reader.embedding_dim is not None:
            return f'{two}, of one width from the embedding on; set reader.embedding_dim = "none"'
        if reader.causal:
            return f"{two}, and what each sees follows from an order; set reader.causal = false"
        if not reader.positions.inside_attention:
            return (
                f"{two}, one of which knows its places from attention alone, got reader.positions.kind = "
                f'"{reader.positions.kind}"; set it to "transformer-xl"'
            )
        return ""


class StatesWriter(Table, WriterTraits):
    """Writes nothing: the states of the reader are what is wanted."""

    is_head: ClassVar[bool] = True
    gives_states: ClassVar[bool] = True
    is_encoding: ClassVar[bool] = True
    learns_by: ClassVar[tuple[str, ...]] = ("masked",)
    kind: Literal["states"] = "states"
    pool: bool = False  # a matrix and tanh for the first state, which stands for the text
    tie: Literal["none"] = "none"
    init: str = ""

    @property
    def pools_first(self) -> bool:
        return self.pool


class PatchWriter(Table, WriterTraits):
    """Draws the pixels of patches that were hidden from the reader."""

    is_head: ClassVar[bool] = True
    is_encoding: ClassVar[bool] = True
    restores_patches: ClassVar[bool] = True
    learns_by: ClassVar[tuple[str, ...]] = ("patches",)
    kind: Literal["patches"] = "patches"
    tie: Literal["none"] = "none"
    init: str = ""

    @property
    def tied(self) -> str:
        return self.tie

    def find_conflict(self, recipe: Recipe) -> str:
        reader = recipe.reader.patches
        if reader is None:
            kind = recipe.reader.kind
            return f'writer.kind = "patches" restores patches, got reader.kind = "{kind}"; set it to "patches"'
        if math.prod(reader.grid) < 2:
            return (
                f"a picture of one patch has no others to restore it from; set reader.patch below {reader.patch}, or a "
                "larger reader.size"
            )
        return ""


Labelling = LabelWriter | NumberWriter | TagWriter
Encoding = MaskedWriter | PermutedWriter | StatesWriter | PatchWriter
Writer = Annotated[TokenWriter | ActionWriter | FillWriter | Labelling | Encoding | ValuesWriter | Custom, ByKind()]
