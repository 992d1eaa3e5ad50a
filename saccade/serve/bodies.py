"""What a request says, checked; and what is wrong with it, in one line."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictStr, WithJsonSchema

from saccade.serve.decoding import settings_schema

Model = Annotated[StrictStr | None, Field(description="the name of a model of /v1/models; without it, the first one")]
Changes = Annotated[
    dict[str, Any],
    WithJsonSchema(settings_schema()),
    Field(description='an object with decoding settings of the recipe\'s [predict] table, such as {"beam": 4}'),
]

Output = Annotated[StrictStr | None, Field(description="a text that is written, or null")]
Packed = Annotated[StrictBool, Field(description="true or false: whether weights are deflated, as the page takes them")]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid")

    model: Model = None
    settings: Changes = {}


class PredictBody(Body):
    """Texts to translate, or prompts to go on from."""

    input: Annotated[StrictStr | list[StrictStr], Field(description="a text, or a list of texts")]
    stream: Annotated[
        StrictBool, Field(description="true or false: whether one text is answered piece by piece as events")
    ] = False

    @property
    def texts(self) -> list[str]:
        return [self.input] if isinstance(self.input, str) else self.input


class AttentionBody(Body):
    """A text, and what is written about it; where that is left out, what the model writes."""

    input: Annotated[StrictStr, Field(description="a text")]
    output: Output = None
    packed: Packed = False


class FormBody(Body):
    """What comes with the files of a form."""

    question: Annotated[
        StrictStr | None,
        Field(description="a text: what is asked about the picture, where a model answers"),
    ] = None


class AttentionForm(FormBody):
    """The same where attention is asked for."""

    output: Output = None
    packed: Packed = False


def told(errors: Sequence[Mapping[str, Any]], body: type[Body]) -> str:
    """The first mistake that was found in a body, in one line."""
    error = next((item for item in errors if item["type"] == "extra_forbidden"), errors[0])
    place = [str(part) for part in error["loc"] if part != "body"]
    if error["type"] == "json_invalid":
        return f"the body is not valid JSON: {error['ctx']['error']} at character {place[0]}"
    if isinstance(error.get("input"), bytes):
        return "the body is not said to be JSON; send the header Content-Type: application/json"
    if not place:
        return f"expected a JSON object with {', '.join(body.model_fields)}, got {short(error.get('input'))}"
    name = place[0]
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(name, body.model_fields, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"keys here: {', '.join(body.model_fields)}"
        return f"{name[:60]}: unknown key; {hint}"
    expected = body.model_fields[name].description
    if error["type"] == "missing":
        return f"{name}: is missing; expected {expected}"
    if error["type"] == "string_unicode":
        return f"{name}: text holds half a character (a lone surrogate); give valid Unicode"
    return f"{name}: expected {expected}, got {short(error['input'])}"


def short(value: Any) -> str:
    text = "nothing" if value is None else ascii(value)
    return text if len(text) <= 60 else text[:57] + "..."
