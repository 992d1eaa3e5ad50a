"""Request bodies as pydantic models, and validation errors as one line."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictStr, WithJsonSchema

from saccade.serve.decoding import build_settings_schema

Model = Annotated[StrictStr | None, Field(description="the name of a model of /v1/models; default: the first one")]
SettingsChanges = Annotated[
    dict[str, Any],
    WithJsonSchema(build_settings_schema()),
    Field(description='an object with decoding settings of the recipe\'s [predict] table, such as {"beam": 4}'),
]

TargetText = Annotated[
    StrictStr | None, Field(description="a target text to force-decode, or null for the model's own output")
]
Packed = Annotated[
    StrictBool, Field(description="true or false: whether weights are quantized and compressed, as the page reads them")
]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid")

    model: Model = None
    settings: SettingsChanges = {}


class PredictBody(Body):
    """Inputs to translate, label or continue."""

    input: Annotated[StrictStr | list[StrictStr], Field(description="a text, or a list of texts")]
    stream: Annotated[
        StrictBool, Field(description="true or false: whether the output of one input is streamed as events")
    ] = False

    @property
    def inputs(self) -> list[str]:
        return [self.input] if isinstance(self.input, str) else self.input


class AttentionBody(Body):
    """An input, and the output whose attention weights are wanted; by default, the model's own output."""

    input: Annotated[StrictStr, Field(description="a text")]
    output: TargetText = None
    packed: Packed = False


class FormBody(Body):
    """The fields of a form beside its files."""

    question: Annotated[
        StrictStr | None,
        Field(description="a text: the question about the image, for models that answer questions"),
    ] = None


class AttentionForm(FormBody):
    """The fields of a form with one file whose attention weights are wanted."""

    output: TargetText = None
    packed: Packed = False


def format_validation_error(errors: Sequence[Mapping[str, Any]], body: type[Body]) -> str:
    """Format the first error of a request body as one line: unknown keys first, as they may explain missing ones."""
    error = next((item for item in errors if item["type"] == "extra_forbidden"), errors[0])
    place = [str(part) for part in error["loc"] if part != "body"]
    if error["type"] == "json_invalid":
        return f"the body is not valid JSON: {error['ctx']['error']} at character {place[0]}"
    if isinstance(error.get("input"), bytes):
        return "expected the header Content-Type: application/json; add it"
    if not place:
        return f"expected a JSON object with {', '.join(body.model_fields)}, got {shorten(error.get('input'))}"
    name = place[0]
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(name, body.model_fields, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"keys here: {', '.join(body.model_fields)}"
        return f"{name[:60]}: unknown key; {hint}"
    expected = body.model_fields[name].description
    if error["type"] == "missing":
        return f"{name}: is missing; expected {expected}"
    if error["type"] == "string_unicode":
        return f"{name}: the text contains a lone surrogate; send valid Unicode"
    return f"{name}: expected {expected}, got {shorten(error['input'])}"


def shorten(value: Any) -> str:
    text = "nothing" if value is None else ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."
