"""The base class of all tables of a recipe, and traits that readers, writers, stacks and objectives declare.

A user's own kind (`Custom`) has the same traits, so that other code asks a table for a trait and never for its class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Self, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from saccade.config.renames import rename_keys

if TYPE_CHECKING:
    from saccade.config.media import MediaReader, PatchReader, TimmReader
    from saccade.config.positions import Axial, Bucketed, Learned, Rotary
    from saccade.config.readers import JoinedReader, SecondPass, TokenReader
    from saccade.config.schema import Recipe
    from saccade.config.stacks import RecurrentWriterStack, TransformerStack
    from saccade.config.writers import MaskedWriter, TokenWriter


def check_count(value: int) -> int:
    """Raise for a number that no size of a model, a batch or a schedule has."""
    if value > MAX_COUNT:
        raise ValueError(f"expected at most {MAX_COUNT}, got {value}")
    return value


MAX_COUNT = 10**9
Count = Annotated[int, Field(ge=1), AfterValidator(check_count)]
Repeats = Annotated[int, Field(ge=1, le=10_000)]  # modules or passes, one after the other
BeamSize = Annotated[int, Field(ge=1, le=10_000)]


def split_names(value: Any) -> Any:
    """Split "a,b" into names, which needs no quotes in a shell; and [a,b], of which a shell has taken the quotes."""
    if isinstance(value, int) and not isinstance(value, bool):  # the number of a column
        return (str(value),)
    if not isinstance(value, str):
        return value
    inner = value[1:-1] if value.startswith("[") and value.endswith("]") else value
    return tuple(name.strip() for name in inner.split(",") if name.strip())


ShortList = BeforeValidator(split_names)
Share = Annotated[float, Field(ge=0.0, lt=1.0)]
StartToken = Literal["own", "pad", "end"] | Annotated[int, Field(ge=4)]  # ids below are special tokens


class Table(BaseModel):
    """A table of a recipe: frozen, without unknown keys, without silent conversion of types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
    renamed_keys: ClassVar[Mapping[str, str]] = {}  # of a table of a plugin: old keys and new ones, see renames.py

    @model_validator(mode="before")
    @classmethod
    def _from_toml(cls, value: Any) -> Any:
        """Accept old keys; convert lists to tuples and, where a key may be None, "none" to None: TOML has no null."""
        if not isinstance(value, dict):
            return value
        value = rename_keys(cls, value)
        optional = {name for name, field in cls.model_fields.items() if type(None) in get_args(field.annotation)}
        value = {key: None if item == "none" and key in optional else item for key, item in value.items()}
        return {key: tuple(item) if isinstance(item, list) else item for key, item in value.items()}

    @property
    def is_capturable(self) -> bool:
        """Whether a CUDA graph can hold it; a user's own kind must declare it."""
        return True

    @property
    def init_run(self) -> str:
        """The run whose weights training starts from, where the table has the key `init`."""
        return str(self.__dict__.get("init", ""))

    def without_init(self) -> Self:
        return self.model_copy(update={"init": ""}) if "init" in type(self).model_fields else self

    def has_kind_of(self, other: Any) -> bool:
        return bool(self.__dict__.get("kind") == other.kind)

    def to_trained_form(self) -> Table:
        """The table as far as trained weights depend on it: derived settings filled in, initialization left out."""
        return self


class PartTraits:
    """Traits of readers, writers and objectives."""

    is_custom: ClassVar[bool] = False  # whether it is a kind that the user brings

    def find_conflict(self, recipe: Recipe) -> str:
        """One line about a setting of the recipe that is incompatible with this table; empty where there is none."""
        return ""


class PositionTraits:
    """Traits of positions."""

    is_custom: ClassVar[bool] = False  # whether it is a kind that the user brings
    inside_attention: ClassVar[bool] = False  # acts on queries and keys or on scores, not at the input

    @property
    def is_concatenated(self) -> bool:
        """Whether position vectors are concatenated to token embeddings, not added."""
        return False

    @property
    def uses_segments(self) -> bool:
        """Whether scores depend on the segments of query and key."""
        return False

    # The table itself where it is of this kind, else None
    @property
    def learned_table(self) -> Learned | None:
        return None

    @property
    def axial_table(self) -> Axial | None:
        return None

    @property
    def rotary_table(self) -> Rotary | None:
        return None

    @property
    def bucketed_table(self) -> Bucketed | None:
        return None

    def find_length_conflict(self, max_length: int) -> str:
        """One line about why sequences of `max_length` tokens are too long; empty where they are not."""
        return ""


class ScoreTraits:
    """Traits of attention scores."""

    is_custom: ClassVar[bool] = False  # whether it is a kind that the user brings

    @property
    def attends_before_step(self) -> bool:
        """Whether a recurrent decoder attends before each step, with its last state as the query, and not after it."""
        return False


class ObjectiveTraits(PartTraits):
    """Traits of objectives."""

    learns_hard_attention: ClassVar[bool] = False  # whether it trains hard attention
    needs_pairs: ClassVar[bool] = False  # whether it compares sampled outputs with references

    def build_objective(self, context: Any) -> Any:
        """For a table of a plugin: the objective, from a `saccade.train.objectives.terms.Context`."""
        raise NotImplementedError

    def without_coverage(self) -> Self:
        """The table without the coverage penalty, which only a recurrent decoder supports."""
        return self

    @property
    def learns_ctc(self) -> bool:
        """Whether it trains the CTC head of `writer.ctc`."""
        return False

    @property
    def forward_passes(self) -> int:
        """Forward passes of every example per step."""
        return 1

    @property
    def sentence_pairs(self) -> str:
        """Which loss on sentence pairs it has: "none", "next" (BERT) or "order" (ALBERT)."""
        return "none"

    @property
    def remasks_each_epoch(self) -> bool:
        """Whether other tokens of an example are masked in each epoch."""
        return True

    @property
    def prediction_rate(self) -> float:
        """Share of the input tokens of an encoder that are predicted."""
        return 0.0


class StackTraits:
    """Traits of stacks."""

    is_custom: ClassVar[bool] = False  # whether it is a kind that the user brings
    is_transformer: ClassVar[bool] = False

    def find_dilation_conflict(self, side: str, max_length: int) -> str:
        """One line about dilations that are longer than all sequences; empty where there are none."""
        return ""

    @property
    def transformer(self) -> TransformerStack | None:
        """The table itself where it is a Transformer."""
        return None

    @property
    def recurrent_writer(self) -> RecurrentWriterStack | None:
        """The table itself where it is a recurrent decoder."""
        return None

    @property
    def is_reversible(self) -> bool:
        """Whether activations are recomputed in the backward pass instead of kept."""
        return False

    @property
    def reduction(self) -> int:
        """Number of inputs per output state."""
        return 1

    @property
    def width(self) -> int | None:
        """Width of the output states; None where only the code of the user's own kind knows it."""
        return None

    @property
    def embedding_eps(self) -> float:
        """The epsilon of LayerNorm outside of the stack, as in its embedding."""
        return 1e-5

    @property
    def copies_states(self) -> bool:
        """Whether a recurrent writer starts with the final states of the reader's layers."""
        return False

    @property
    def recurrent_shape(self) -> tuple[str, int, int, int] | None:
        """(cell, layers, dim, cell_dim) of a recurrent stack."""
        return None


class EmbeddingOptions(NamedTuple):
    """Options of an embedding beside tokens and positions."""

    dim: int | None = None  # width of token embeddings, projected to that of the stack; None: the same width
    segments: int = 0  # number of segment embeddings
    norm: bool = False  # LayerNorm of the sum of all embeddings
    start_token: StartToken = "own"  # embedding of the start token: its own, or that of "pad", "end" or another id


class ReaderTraits(PartTraits):
    """Traits of readers."""

    medium: ClassVar[str] = ""  # kind of the input files, "picture" or "sound"; empty for text
    has_question: ClassVar[bool] = False  # whether a question comes with each file
    is_none: ClassVar[bool] = False  # whether there is no reader
    is_picture: ClassVar[bool] = False  # whether the input is a picture without a question

    @property
    def medium_plural(self) -> str:
        """What several input files are called."""
        return f"{self.medium}s"

    @property
    def text(self) -> TokenReader | None:
        """The table itself where it is a reader of text."""
        return None

    @property
    def joined_table(self) -> JoinedReader | None:
        """The table itself where it is a reader of a picture and a question."""
        return None

    @property
    def backbone(self) -> TimmReader | None:
        """The table itself where it is a backbone of the package timm."""
        return None

    @property
    def patches(self) -> PatchReader | None:
        """The table itself where it is a reader of patches."""
        return None

    @property
    def has_class_token(self) -> bool:
        """Whether a class token precedes the cells of a picture."""
        return False

    @property
    def is_causal(self) -> bool:
        """Whether no state depends on later tokens."""
        return False

    @property
    def second_pass_table(self) -> SecondPass | None:
        """The decoder that processes the text in a second pass, where there is one."""
        return None

    @property
    def uses_segments(self) -> bool:
        """Whether it distinguishes the segments of an input."""
        return False

    @property
    def text_init(self) -> str:
        """The run whose weights training starts from, where it is a reader of text."""
        return ""

    @property
    def embedding_tables(self) -> tuple[Any, ...]:
        """All tables with token embeddings and positions, this one and those inside."""
        return ()

    @property
    def embedding_options(self) -> EmbeddingOptions:
        return EmbeddingOptions()

    @property
    def embedding_eps(self) -> float:
        """The epsilon of LayerNorm in heads over the reader's states."""
        return 1e-5

    @property
    def token_stack(self) -> StackTraits | None:
        """The stack over token embeddings."""
        return None

    @property
    def media(self) -> MediaReader | None:
        """The table itself where it is a reader of images or audio."""
        return None


class WriterTraits(PartTraits):
    """Traits of writers."""

    is_encoding: ClassVar[bool] = False  # predicts masked inputs of a reader, or returns its states
    is_non_autoregressive: ClassVar[bool] = False  # writes all tokens in parallel
    predicts_fertilities: ClassVar[bool] = False  # copies each source token as often as it predicts, to begin with
    is_permuted: ClassVar[bool] = False  # predicts tokens in permuted order
    reconstructs_patches: ClassVar[bool] = False  # predicts masked patches of pictures
    objective_kinds: ClassVar[tuple[str, ...]] = ()  # kinds of objectives that train it, the usual ones first
    label_kind: ClassVar[str] = ""  # "label", "number" or "tags" where it predicts one of them
    labels_each_word: ClassVar[bool] = False  # predicts a label for each word
    predicts_classes: ClassVar[bool] = False  # predicts labels, or other classes whose number depends on the data
    is_label_head: ClassVar[bool] = False  # is one of saccade's own heads that predict labels
    is_head: ClassVar[bool] = False  # is a head over the reader's states, without a stack
    gives_states: ClassVar[bool] = False  # returns the reader's states
    only_tasks: ClassVar[tuple[str, ...]] = ()  # names of the tasks that it is for; empty: all that can use it

    def build_model(self, context: Any) -> Any:
        """For a table of a plugin: the model, from a `saccade.model.build.model.WriterContext`."""
        raise NotImplementedError

    @property
    def tied(self) -> str | None:
        """Which matrices are tied; None where the output matrix is never tied."""
        return None

    @property
    def predicts_pairs(self) -> bool:
        """Whether it has a head that classifies sentence pairs."""
        return False

    @property
    def pooling_kind(self) -> str:
        """How states are pooled to one vector; empty where they are not."""
        return ""

    @property
    def shared_tie(self) -> str:
        """The value of `tie` where it shares the embedding of the reader; empty where it does not."""
        return self.tied if self.tied in ("all", "input") else ""

    @property
    def tokens(self) -> TokenWriter | None:
        """The table itself where it is an autoregressive writer of tokens."""
        return None

    @property
    def masked(self) -> MaskedWriter | None:
        """The table itself where it predicts masked tokens."""
        return None

    @property
    def pools_first_state(self) -> bool:
        """Whether it was trained on the first state as the representation of the text."""
        return self.predicts_pairs

    @property
    def attention(self) -> RecurrentWriterStack | None:
        """The recurrent stack with attention to the memory, where it has one."""
        return None

    @property
    def text_init(self) -> str:
        """The run whose weights training starts from, where it is a writer of tokens."""
        return ""

    @property
    def embedding_tables(self) -> tuple[Any, ...]:
        """All tables with token embeddings and positions, this one and those inside."""
        return ()

    @property
    def token_stack(self) -> StackTraits | None:
        """The stack of an autoregressive writer of tokens."""
        return None


class JoinTraits:
    """Traits of the fusion of a picture and a question."""

    reads_picture: ClassVar[bool] = True

    @property
    def is_side_by_side(self) -> bool:
        """Whether cells and words are concatenated without layers over both."""
        return False

    def find_join_conflict(self, recipe: Recipe) -> str:
        """Why the fusion does not go with the rest of the recipe; empty if it does."""
        return ""
