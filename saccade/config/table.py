"""What every table of a recipe shares."""

from __future__ import annotations

from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

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
