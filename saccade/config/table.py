"""What every table of a recipe shares, and what tables of one sort answer: readers, writers, stacks, objectives.

A user's own kind (`Custom`) has these answers too, so that code asks a table and never which class it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

if TYPE_CHECKING:
    from saccade.config.media import MediaReader, PatchReader, TimmReader
    from saccade.config.playing import ValuesWriter
    from saccade.config.positions import Axial, Bucketed, Learned, Rotary
    from saccade.config.readers import Again, JoinedReader, TokenReader
    from saccade.config.schema import Recipe
    from saccade.config.stacks import RecurrentWriting, TransformerStack
    from saccade.config.writers import ActionWriter, MaskedWriter, TokenWriter

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0.0, lt=1.0)]


class Table(BaseModel):
    """What every table shares: frozen, no unknown keys, no silent conversion of types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _from_toml(cls, value: Any) -> Any:
        """TOML has lists and no null: lists become tuples, and "none" stands for None where a key may be None."""
        if not isinstance(value, dict):
            return value
        optional = {name for name, field in cls.model_fields.items() if type(None) in get_args(field.annotation)}
        value = {key: None if item == "none" and key in optional else item for key, item in value.items()}
        return {key: tuple(item) if isinstance(item, list) else item for key, item in value.items()}

    @property
    def init_run(self) -> str:
        """The run whose weights to start from, where the table has the key `init`."""
        return str(self.__dict__.get("init", ""))

    def without_init(self) -> Self:
        return self.model_copy(update={"init": ""}) if "init" in type(self).model_fields else self

    def has_kind_of(self, other: Any) -> bool:
        return bool(self.__dict__.get("kind") == other.kind)

    def trained_form(self) -> Table:
        """The table as trained weights know it: derived settings filled in, those of initialization left out."""
        return self


class PartTraits:
    """What every reader, writer and objective answers."""

    is_custom: ClassVar[bool] = False  # whether it is a user's own kind

    def find_conflict(self, recipe: Recipe) -> str:
        """What of the recipe does not go with this table, in one line; empty where all goes together."""
        return ""


class PositionTraits:
    """What every table of positions answers."""

    inside_attention: ClassVar[bool] = False  # whether it acts on queries and keys, or on scores, and not at the input

    @property
    def concatenated(self) -> bool:
        """Whether position vectors are concatenated to token vectors, not added."""
        return False

    @property
    def uses_segments(self) -> bool:
        """Whether scores depend on the segments of query and key."""
        return False

    # The table itself, where it is of the kind asked for
    @property
    def learned(self) -> Learned | None:
        return None

    @property
    def axial(self) -> Axial | None:
        return None

    @property
    def rotary(self) -> Rotary | None:
        return None

    @property
    def bucketed(self) -> Bucketed | None:
        return None

    def find_misfit(self, longest: int) -> str:
        """What is wrong for sequences of up to `longest` tokens, in one line; empty where nothing is."""
        return ""


class ObjectiveTraits(PartTraits):
    """What every table of an objective answers."""

    learns_hard_attention: ClassVar[bool] = False  # whether it learns where to look, of samples
    needs_pairs: ClassVar[bool] = False  # whether it needs references for outputs that a model samples

    def without_coverage(self) -> Self:
        """Without a penalty of attention that only a recurrent decoder can have."""
        return self

    @property
    def learns_ctc(self) -> bool:
        """Whether it trains the head of `writer.ctc`."""
        return False

    @property
    def forward_passes(self) -> int:
        """How often every example goes through the model in one step."""
        return 1

    @property
    def sentence_pairs(self) -> str:
        """Which pairs of sentences it learns to tell apart: "none", "next" (as BERT) or "order" (as ALBERT)."""
        return "none"

    @property
    def redraws(self) -> bool:
        """Whether what is hidden of an example is drawn anew in each epoch."""
        return True

    @property
    def predicted_share(self) -> float:
        """Of an encoder: the share of the tokens that are read that are predicted."""
        return 0.0


class StackTraits:
    """What every table of a stack answers."""

    is_custom: ClassVar[bool] = False  # whether it is a user's own kind
    is_transformer: ClassVar[bool] = False

    @property
    def transformer(self) -> TransformerStack | None:
        """The table itself where it is a Transformer."""
        return None

    @property
    def recurrent_writing(self) -> RecurrentWriting | None:
        """The table itself where it is a recurrent decoder."""
        return None

    @property
    def is_reversible(self) -> bool:
        """Whether activations are recomputed backwards."""
        return False

    @property
    def reduction(self) -> int:
        """How many inputs become one state."""
        return 1

    @property
    def width(self) -> int | None:
        """Of the states that it gives; None where only the user's own code knows it."""
        return None

    @property
    def embedding_eps(self) -> float:
        """The epsilon of LayerNorm outside of the stack, as around its embedding."""
        return 1e-5

    @property
    def copies_states(self) -> bool:
        """Whether a recurrent writer starts from the final states of the reader's layers."""
        return False

    @property
    def recurrent_shape(self) -> tuple[str, int, int] | None:
        """(cell, layers, dim) of a recurrent stack."""
        return None


class EmbeddingOptions(NamedTuple):
    """What an embedding has beside tokens and positions."""

    dim: int | None = None  # width of token vectors, projected to that of the stack; none: as wide as the stack
    segments: int = 0  # vectors of segments
    norm: bool = False  # LayerNorm of the sum
    start: str = "own"  # the vector of START: its own, or that of another token ("pad", "end")


class ReaderTraits(PartTraits):
    """What every table of a reader answers."""

    medium: ClassVar[str] = ""  # kind of the files that are read: "picture" or "sound"; empty where text is read
    asks: ClassVar[bool] = False  # whether a question is read with each file
    is_none: ClassVar[bool] = False  # whether nothing is read
    is_picture: ClassVar[bool] = False  # whether pictures alone are read

    @property
    def text(self) -> TokenReader | None:
        """The table itself where it reads text."""
        return None

    @property
    def joined(self) -> JoinedReader | None:
        """The table itself where it reads a picture and a question."""
        return None

    @property
    def backbone(self) -> TimmReader | None:
        """The table itself where it is a network of somebody else, with published weights."""
        return None

    @property
    def patches(self) -> PatchReader | None:
        """The table itself where it reads a picture as patches."""
        return None

    @property
    def class_token(self) -> bool:
        """Whether a learned vector stands before the cells of a picture."""
        return False

    @property
    def is_causal(self) -> bool:
        """Whether no state knows what comes after it."""
        return False

    @property
    def second_reading(self) -> Again | None:
        """The decoder that reads the text a second time, where there is one."""
        return None

    @property
    def tells_segments(self) -> bool:
        """Whether it distinguishes the second part of a text from the first."""
        return False

    @property
    def text_init(self) -> str:
        """The run whose weights to start from, where it reads text."""
        return ""

    @property
    def embedded_parts(self) -> tuple[Any, ...]:
        """The tables inside, this one included, that embed tokens and have positions."""
        return ()

    @property
    def embedding_options(self) -> EmbeddingOptions:
        return EmbeddingOptions()

    @property
    def embedding_eps(self) -> float:
        """The epsilon of LayerNorm in heads over its states."""
        return 1e-5

    @property
    def token_stack(self) -> StackTraits | None:
        """The table of the stack that reads tokens."""
        return None

    @property
    def media(self) -> MediaReader | None:
        """The table itself where it reads files."""
        return None


class WriterTraits(PartTraits):
    """What every table of a writer answers."""

    is_encoding: ClassVar[bool] = False  # whether it restores what was hidden from a reader, or gives its states
    is_filling: ClassVar[bool] = False  # whether it writes all tokens at once
    is_permuted: ClassVar[bool] = False  # whether it predicts tokens in permuted order
    restores_patches: ClassVar[bool] = False  # whether it restores hidden patches of pictures
    learns_by: ClassVar[tuple[str, ...]] = ()  # kinds of objectives, those to advise first
    label_kind: ClassVar[str] = ""  # "label", "number" or "tags" where it predicts such
    labels_words: ClassVar[bool] = False  # whether each word gets a label of its own
    predicts_classes: ClassVar[bool] = False  # whether it predicts labels or actions, whose number only data tells
    is_label_head: ClassVar[bool] = False  # whether it is one of saccade's own heads that predict labels
    is_head: ClassVar[bool] = False  # whether it reads the states of the reader, without a stack of its own
    gives_states: ClassVar[bool] = False  # whether the states of the reader are all that is wanted

    @property
    def tied(self) -> str | None:
        """Which matrices are tied; None where the output matrix is never tied."""
        return None

    @property
    def predicts_pairs(self) -> bool:
        """Whether it also says if the second part of a text follows the first."""
        return False

    @property
    def pooled(self) -> str:
        """How the states of a text become one; empty where they do not."""
        return ""

    @property
    def shared_tie(self) -> str:
        """The setting `tie` where it shares the embedding of the reader; empty where it does not."""
        return self.tied if self.tied in ("all", "input") else ""

    @property
    def tokens(self) -> TokenWriter | None:
        """The table itself where it writes token by token."""
        return None

    @property
    def masked(self) -> MaskedWriter | None:
        """The table itself where it restores masked tokens."""
        return None

    @property
    def pools_first(self) -> bool:
        """Whether it was trained on the first state, which stands for the text."""
        return self.predicts_pairs

    @property
    def values(self) -> ValuesWriter | None:
        """The table itself where it gives values of actions."""
        return None

    @property
    def attention(self) -> RecurrentWriting | None:
        """The recurrent stack that attends to what was read, where it has one."""
        return None

    @property
    def text_init(self) -> str:
        """The run whose weights to start from, where it writes text."""
        return ""

    @property
    def embedded_parts(self) -> tuple[Any, ...]:
        """The tables inside, this one included, that embed tokens and have positions."""
        return ()

    @property
    def token_stack(self) -> StackTraits | None:
        """The table of the stack that writes tokens one by one."""
        return None

    @property
    def actions(self) -> ActionWriter | None:
        """The table itself where it writes actions that are carried out in a map."""
        return None


class JoinTraits:
    """What every table of a join of a picture and a question answers."""

    reads_picture: ClassVar[bool] = True

    @property
    def is_side_by_side(self) -> bool:
        """Whether cells and words stand side by side, and nothing goes over both."""
        return False
