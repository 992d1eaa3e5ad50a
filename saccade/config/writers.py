"""The table [writer] of a recipe: decoders of tokens, and heads over the states of a reader."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from saccade.config.kinds import ByKind, Custom
from saccade.config.positions import Positions, Sinusoidal
from saccade.config.stacks import RecurrentWriterStack, TransformerStack, WriterStack, find_reversible_conflict
from saccade.config.table import Count, EmbeddingOptions, Share, StartToken, Table, WriterTraits
from saccade.config.training import format_hard_attention_message

if TYPE_CHECKING:
    from saccade.config.schema import Recipe


class TokenWriter(Table, WriterTraits):
    """Writes text token by token: an autoregressive decoder, or a language model without a reader."""

    objective_kinds: ClassVar[tuple[str, ...]] = ("next-token", "r-drop", "scheduled", "reinforce", "reward")
    kind: Literal["tokens"] = "tokens"
    """Chooses this writer: autoregressive tokens."""
    stack: WriterStack = TransformerStack()
    """The layers of the decoder."""
    positions: Positions = Sinusoidal()
    """How the decoder is informed about token positions."""
    scale_embedding: bool = True
    """Multiply token embeddings by sqrt(dim) before positions are added (Vaswani et al. 2017). BERT and GPT-2 do not.
    """
    embedding_norm: bool = False
    """LayerNorm of the sum of token and position embeddings, as in BART."""
    dropout: Share = 0.1
    """Dropout probability of the embeddings."""
    tie: Literal["none", "input", "output", "all"] = "all"
    """Weight tying (Press and Wolf 2017): "input" shares the embeddings of reader and writer, "output" the writer's
    embedding and output matrix, "all" all three."""
    start_token: StartToken = "own"
    """First input token: "own" is a start token with a learned embedding of its own, "pad" and "end" reuse those tokens
    (T5 and MarianMT start with pad, BART with end), and a number reuses the token of that id."""
    output_scale: bool = False
    """Divide states by sqrt(dim) before the output matrix, as T5 with tied embeddings does."""
    output_bias: bool = False
    """Fixed bias of the logits, which is not trained; for imported models that have one, such as MarianMT."""
    ctc: bool = False
    """Add a CTC head over the states of the reader (Graves et al. 2006), trained by `ctc_weight` of the objective
    "scheduled"."""
    init: str = ""
    """Run whose writer weights training starts from. Empty: they are initialized at random."""

    @property
    def embedding_options(self) -> EmbeddingOptions:
        return EmbeddingOptions(norm=self.embedding_norm, start_token=self.start_token)

    @property
    def embedding_tables(self) -> tuple[Any, ...]:
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
    def attention(self) -> RecurrentWriterStack | None:
        return self.stack.recurrent_writer

    def find_conflict(self, recipe: Recipe) -> str:
        return (
            find_writer_conflict(self, recipe)
            or self.stack.find_dilation_conflict("writer", recipe.data.max_length)
            or self._find_attention_conflict(recipe)
            or self._find_ctc_conflict(recipe)
        )

    def _find_attention_conflict(self, recipe: Recipe) -> str:
        """Hard attention needs the objective that trains it; attention around cells needs a picture."""
        attention, reader = self.attention, recipe.reader
        hard = attention is not None and attention.hard_attention
        for objective in () if self.stack.is_custom else recipe.objectives:
            if objective.learns_hard_attention != hard and not objective.is_custom:
                return format_hard_attention_message(objective, hard=hard)
        cells = (reader.is_picture and not reader.has_class_token) or reader.is_custom
        if attention is not None and attention.attention == "around" and not cells:
            return (
                'writer.stack.attention = "around" attends to the cells of a picture; set reader.kind = "grid", or '
                "another attention"
            )
        return ""

    def _find_ctc_conflict(self, recipe: Recipe) -> str:
        """A CTC head needs a reader, and an objective that trains it."""
        trained = any(objective.learns_ctc or objective.is_custom for objective in recipe.objectives)
        if self.ctc and recipe.reader.is_none:
            return "writer.ctc = true is a head over the states of a reader, but there is none; set writer.ctc = false"
        if self.ctc and not trained:
            return (
                'writer.ctc = true is a head that no objective trains; set objectives.0.kind = "scheduled" with '
                "ctc_weight = 0.3, or writer.ctc = false"
            )
        return ""


def find_writer_conflict(writer: TokenWriter | FillWriter | FertilityWriter, recipe: Recipe) -> str:
    """Why positions or a reversible stack of a writer of tokens are incompatible with the recipe."""
    kind = 'writer.stack.residual = "reversible"'
    if writer.stack.is_reversible and not recipe.reader.is_none:
        return f'{kind} has no cross-attention; set reader.kind = "none" and task = "language-model"'
    if conflict := find_reversible_conflict("writer", writer.stack, writer.positions):
        return conflict
    if writer.stack.is_reversible and writer.tie != "none":
        return f'{kind} has states twice as wide as token embeddings; set writer.tie = "none"'
    if writer.positions.uses_segments:
        return "writer.positions.relative_segments is for readers: an output is one segment; set it to false"
    return ""


class FillWriter(Table, WriterTraits):
    """Writes all tokens in parallel: predicts the length, then fills masked positions (Ghazvininejad et al. 2019)."""

    is_non_autoregressive: ClassVar[bool] = True
    objective_kinds: ClassVar[tuple[str, ...]] = ("fill",)
    kind: Literal["fill"] = "fill"
    """Chooses this writer: non-autoregressive tokens."""
    stack: Annotated[TransformerStack | Custom, ByKind()] = TransformerStack()
    """The layers of the decoder."""
    positions: Positions = Sinusoidal()
    """How the decoder is informed about token positions."""
    scale_embedding: bool = True
    """Multiply token embeddings by sqrt(dim) before positions are added (Vaswani et al. 2017). BERT and GPT-2 do not.
    """
    dropout: Share = 0.1
    """Dropout probability of the embeddings."""
    tie: Literal["none", "output", "all"] = "all"
    """Weight tying (Press and Wolf 2017): "output" shares the embedding and the output matrix of the writer, "all"
    those of the reader too."""
    max_length_difference: Count = 16
    """Maximal difference of output and source length, in tokens; the range of the length predictor."""
    copy_source: bool = True
    """Soft copy (Wei et al. 2019): masked positions get, as input, a weighted mean of the source states near the same
    relative position. False: only the mask embedding and its position."""
    init: str = ""
    """Run whose writer weights training starts from. Empty: they are initialized at random."""

    @property
    def embedding_options(self) -> EmbeddingOptions:
        return EmbeddingOptions()

    @property
    def embedding_tables(self) -> tuple[Any, ...]:
        return (self,)

    @property
    def tied(self) -> str:
        return self.tie

    def find_conflict(self, recipe: Recipe) -> str:
        return find_writer_conflict(self, recipe)


class FertilityWriter(Table, WriterTraits):
    """Writes all tokens in parallel from copies of the source tokens, as many of each as its fertility says.

    The non-autoregressive Transformer of Gu et al. 2018. Its inputs are vectors of the reader's embedding.
    """

    is_non_autoregressive: ClassVar[bool] = True
    predicts_fertilities: ClassVar[bool] = True
    objective_kinds: ClassVar[tuple[str, ...]] = ("fertility",)
    kind: Literal["fertility"] = "fertility"
    """Chooses this writer: non-autoregressive tokens from copies of the source."""
    stack: TransformerStack = TransformerStack()
    """The layers of the decoder; as wide as those of the reader, whose embedding it uses."""
    positions: Positions = Sinusoidal()
    """How the decoder is informed about token positions at its input."""
    scale_embedding: bool = True
    """Multiply token embeddings by sqrt(dim) before positions are added (Vaswani et al. 2017). BERT and GPT-2 do not.
    """
    dropout: Share = 0.1
    """Dropout probability of the embeddings."""
    tie: Literal["none", "all"] = "all"
    """Weight tying (Press and Wolf 2017): "all" uses the reader's embedding as the output matrix too, which needs one
    vocabulary; "none" has an output matrix of its own."""
    max_fertility: Count = 50
    """Largest fertility that can be predicted: copies of one source token (L in Gu et al. 2018). A smaller one has
    fewer parameters; words that need more copies get too few then."""
    positional_attention: bool = True
    """Attention by position alone in every layer, between self-attention and cross-attention: queries and keys are
    position encodings, values the states (Gu et al. 2018, section 3.2). It helps with word order; false leaves it out.
    """
    attend_self: bool = False
    """Let self-attention attend to the position itself too. False hides it, as in Gu et al. 2018, which they found to
    be better."""
    init: str = ""
    """Run whose writer weights training starts from. Empty: they are initialized at random."""

    @property
    def embedding_options(self) -> EmbeddingOptions:
        return EmbeddingOptions()

    @property
    def embedding_tables(self) -> tuple[Any, ...]:
        return (self,)

    @property
    def tied(self) -> str:
        return self.tie

    def find_conflict(self, recipe: Recipe) -> str:
        reader = recipe.reader.text
        if conflict := find_writer_conflict(self, recipe):
            return conflict
        if self.stack.window is not None:
            return 'writer.kind = "fertility" attends to the whole output; leave writer.stack.window out'
        if self.positions.is_concatenated:
            return (
                'writer.kind = "fertility" adds positions to the vectors of the reader; set positions.combine = "add"'
            )
        if reader is None or reader.is_custom or reader.embedding_dim is not None or reader.positions.is_concatenated:
            return (
                'writer.kind = "fertility" copies token vectors of the reader; set reader.kind = "tokens", without '
                'embedding_dim and with positions.combine = "add"'
            )
        return ""


Pooling = Literal["first", "mean", "last", "before-end"]


class Head(Table, WriterTraits):
    """Base class of heads over the states of a reader: dropout, an optional hidden layer, a linear output."""

    is_head: ClassVar[bool] = True
    is_label_head: ClassVar[bool] = True
    predicts_classes: ClassVar[bool] = True
    hidden_dim: Count | None = None
    """Width of a hidden layer before the output; the width of the reader makes it BERT's pooler. None: no such layer.
    """
    activation: Literal["tanh", "relu", "gelu", "gelu-tanh", "silu", "sigmoid"] = "tanh"
    """Activation function of the hidden layer."""
    dropout: Share = 0.1
    """Dropout probability of the input of the output layer."""
    bias: bool = True
    """Bias term of the output layer."""
    init: str = ""
    """Run whose writer weights training starts from. Empty: they are initialized at random."""


class LabelWriter(Head):
    """Predicts one class for a text, a pair of texts, an image or a recording."""

    label_kind: ClassVar[str] = "label"
    objective_kinds: ClassVar[tuple[str, ...]] = ("label",)
    kind: Literal["label"] = "label"
    """Chooses this writer: a classification head."""
    pooling: Pooling = "mean"
    """How states become one vector: the "first" state (the class token), their "mean", the "last" one, or the one
    "before-end", before the end token."""

    @property
    def pooling_kind(self) -> str:
        return self.pooling

    def find_conflict(self, recipe: Recipe) -> str:
        whole = ("mean", "first") if recipe.reader.has_class_token else ("mean",)
        if not recipe.reader.is_picture or self.pooling in whole:
            return ""
        return (
            f'writer.pooling = "{self.pooling}" would represent a picture by one corner of it; set '
            'writer.pooling = "mean", or "first" with reader.kind = "patches" and reader.class_token = true'
        )


class NumberWriter(Head):
    """Predicts a number for a text or a pair of texts."""

    label_kind: ClassVar[str] = "number"
    objective_kinds: ClassVar[tuple[str, ...]] = ("regress",)
    kind: Literal["number"] = "number"
    """Chooses this writer: a regression head."""
    pooling: Pooling = "mean"
    """How states become one vector: the "first" state (the class token), their "mean", the "last" one, or the one
    "before-end", before the end token."""

    @property
    def pooling_kind(self) -> str:
        return self.pooling


class TagWriter(Head):
    """Predicts a class for each word, from the state of its first token."""

    label_kind: ClassVar[str] = "tags"
    objective_kinds: ClassVar[tuple[str, ...]] = ("tag",)
    labels_each_word: ClassVar[bool] = True
    kind: Literal["tags"] = "tags"
    """Chooses this writer: a tagging head."""


class MaskedWriter(Table, WriterTraits):
    """Predicts masked tokens: the masked language modelling head of BERT (Devlin et al. 2019)."""

    is_head: ClassVar[bool] = True
    is_encoding: ClassVar[bool] = True
    objective_kinds: ClassVar[tuple[str, ...]] = ("masked",)
    kind: Literal["masked"] = "masked"
    """Chooses this writer: a masked language modelling head."""
    activation: Literal["relu", "gelu", "gelu-tanh", "silu"] = "gelu"
    """Activation function between the two linear layers of the head."""
    tie: Literal["none", "all"] = "all"
    """Weight tying (Press and Wolf 2017): "all" uses the reader's embedding as the output matrix."""
    pairs: bool = False
    """Add a head that classifies sentence pairs from the first state; the objective's `pairs` trains it."""
    dropout: Share = 0.1
    """Dropout probability before the head of sentence pairs."""
    init: str = ""
    """Run whose writer weights training starts from. Empty: they are initialized at random."""

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
                + ", which trains the head of sentence pairs; change one of them"
            )
        if recipe.tokenizer.is_learned and not recipe.tokenizer.mask_token:
            return "masked language modelling needs a mask token; set tokenizer.mask_token = true"
        return ""


class PermutedWriter(Table, WriterTraits):
    """Predicts tokens in permuted order with two-stream attention (XLNet, Yang et al. 2019)."""

    is_permuted: ClassVar[bool] = True
    is_head: ClassVar[bool] = True
    is_encoding: ClassVar[bool] = True
    objective_kinds: ClassVar[tuple[str, ...]] = ("permuted",)
    kind: Literal["permuted"] = "permuted"
    """Chooses this writer: a permutation language modelling head."""
    tie: Literal["none", "all"] = "all"
    """Weight tying (Press and Wolf 2017): "all" uses the reader's embedding as the output matrix."""
    init: str = ""
    """Run whose writer weights training starts from. Empty: they are initialized at random."""

    @property
    def tied(self) -> str:
        return self.tie

    def find_conflict(self, recipe: Recipe) -> str:
        """Two-stream attention needs a Transformer reader with positions inside attention."""
        two, reader = 'writer.kind = "permuted" has two-stream attention', recipe.reader.text
        if reader is None or not reader.stack.transformer:
            return (
                f'{two}, which needs a Transformer reader of tokens; set reader.kind = "tokens" and '
                'reader.stack.kind = "transformer"'
            )
        stack = reader.stack.transformer
        needed: dict[str, tuple[Any, Any, str]] = {
            "norm": (stack.norm, "post", '"post"'),
            "residual": (stack.residual, True, "true"),
            "window": (stack.window, None, '"none"'),
            "experts": (stack.experts, None, '"none"'),
        }
        for name, (value, supported, expected) in needed.items():
            if value != supported:
                return f"{two}, which needs reader.stack.{name} = {expected}, got {value!r}; set it so"
        if reader.embedding_dim is not None:
            return f'{two}, which needs embeddings as wide as the stack; set reader.embedding_dim = "none"'
        if reader.causal:
            return f"{two}, which is masked by a random order; set reader.causal = false"
        if not reader.positions.inside_attention:
            return (
                f"{two}, which needs positions inside attention, got reader.positions.kind = "
                f'"{reader.positions.kind}"; set it to "transformer-xl"'
            )
        return ""


class StatesWriter(Table, WriterTraits):
    """No output: the states of the reader are the result, such as sentence embeddings."""

    is_head: ClassVar[bool] = True
    gives_states: ClassVar[bool] = True
    is_encoding: ClassVar[bool] = True
    objective_kinds: ClassVar[tuple[str, ...]] = ("masked",)
    kind: Literal["states"] = "states"
    """Chooses this writer: the reader's states."""
    pooler: bool = False
    """BERT's pooler: a linear layer and tanh over the first state."""
    tie: Literal["none"] = "none"
    """Which weight matrices are shared; none here, since there is no output matrix."""
    init: str = ""
    """Run whose writer weights training starts from. Empty: they are initialized at random."""

    @property
    def pools_first_state(self) -> bool:
        return self.pooler


class PatchWriter(Table, WriterTraits):
    """Predicts the pixels of masked patches from the states of the reader."""

    is_head: ClassVar[bool] = True
    is_encoding: ClassVar[bool] = True
    reconstructs_patches: ClassVar[bool] = True
    objective_kinds: ClassVar[tuple[str, ...]] = ("patches",)
    kind: Literal["patches"] = "patches"
    """Chooses this writer: a pixel reconstruction head."""
    tie: Literal["none"] = "none"
    """Which weight matrices are shared; none here, since pixels are no tokens."""
    init: str = ""
    """Run whose writer weights training starts from. Empty: they are initialized at random."""

    @property
    def tied(self) -> str:
        return self.tie

    def find_conflict(self, recipe: Recipe) -> str:
        reader = recipe.reader.patches
        if reader is None:
            kind = recipe.reader.kind
            return f'writer.kind = "patches" predicts patches, got reader.kind = "{kind}"; set it to "patches"'
        if math.prod(reader.grid) < 2:
            return (
                "a picture of one patch has no others to predict it from; set reader.patch_size below "
                f"{reader.patch_size}, or a larger reader.size"
            )
        return ""


Labelling = LabelWriter | NumberWriter | TagWriter
Encoding = MaskedWriter | PermutedWriter | StatesWriter | PatchWriter
Writer = Annotated[TokenWriter | FillWriter | FertilityWriter | Labelling | Encoding | Custom, ByKind()]
