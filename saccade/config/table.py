"""What every table of a recipe shares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

if TYPE_CHECKING:
    from saccade.config.media import MediaReader
    from saccade.config.parts import ActionWriter

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


class ReaderTraits:
    """What every table of a reader answers, a user's own kind included."""

    medium: ClassVar[str] = ""  # kind of the files that are read: "picture" or "sound"; empty where text is read
    asks: ClassVar[bool] = False  # whether a question is read with each file
    is_none: ClassVar[bool] = False  # whether nothing is read

    @property
    def text_init(self) -> str:
        """The run whose weights to start from, where it reads text."""
        return ""

    @property
    def media(self) -> MediaReader | None:
        """The table itself where it reads files."""
        return None


class WriterTraits:
    """What every table of a writer answers, a user's own kind included."""

    is_custom: ClassVar[bool] = False  # whether it is a user's own
    is_permuted: ClassVar[bool] = False  # whether it predicts tokens in permuted order
    label_kind: ClassVar[str] = ""  # "label", "number" or "tags" where it predicts such

    @property
    def text_init(self) -> str:
        """The run whose weights to start from, where it writes text."""
        return ""

    @property
    def actions(self) -> ActionWriter | None:
        """The table itself where it writes actions that are carried out in a map."""
        return None
