"""What the description of the API says about answers."""

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI

from saccade.serve.bodies import FormBody

Described = dict[int | str, dict[str, Any]]

NUMBER = {"type": "number"}
TEXT = {"type": "string"}
FINISH = {
    "enum": ["length", "end", "stop"],
    "description": "`length`: cut at the most tokens that it may have; after a prompt always: how it ended",
}
CANDIDATE = {
    "type": "object",
    "properties": {"output": TEXT, "completion": TEXT, "score": NUMBER, "log_prob": NUMBER, "finish": FINISH},
}
RESULT = {  # a model that labels texts says other things: a label, a value or tags
    "type": "object",
    "properties": {
        "input": TEXT,
        "prompt": TEXT,
        "image": TEXT,
        "question": TEXT,
        "output": TEXT,
        "completion": TEXT,
        "score": NUMBER,
        "log_prob": NUMBER,
        "finish": FINISH,
        "candidates": {"type": "array", "items": CANDIDATE, "minItems": 1},
    },
}
MODEL = {
    "type": "object",
    "properties": {
        "name": TEXT,
        "task": TEXT,
        "reads": {"enum": ["text", "picture", "sound"], "description": "texts as JSON, or files in a form"},
        "asks": {"type": "boolean", "description": "whether a question comes with each file"},
        "goes_on": {"type": "boolean", "description": "whether it writes on from a prompt"},
        "at_once": {"type": "boolean", "description": "whether it writes all tokens at once"},
        "max_length": {"type": "integer", "description": "tokens that a text may have, <end> included"},
        "settings": {"type": "object", "description": "decoding settings where a request says nothing"},
    },
    "required": ["name", "task", "reads", "asks", "goes_on", "at_once", "max_length", "settings"],
}
EVENT = {"type": "object", "properties": {"event": TEXT, "data": TEXT}, "required": ["data"]}
FILES = {
    "type": "array",
    "items": {"type": "string", "format": "binary"},
    "minItems": 1,
    "description": "pictures or sound, for a model that reads them; of attention, one",
}
ERROR = {"type": "object", "properties": {"error": TEXT}, "required": ["error"]}


def listed(name: str, items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": "array", "items": items}}, "required": [name]}


def answers(says: str, schema: dict[str, Any], more: dict[str, Any] | None = None) -> Described:
    return {200: {"description": says, "content": {"application/json": {"schema": schema}, **(more or {})}}}


MODELS = answers("The models.", listed("models", MODEL))
PREDICTIONS = answers(
    "The outputs of each text; with `stream`, events with pieces of one output.",
    listed("results", RESULT),
    {"text/event-stream": {"schema": EVENT}},
)
ATTENTION = answers("Labels and weights.", listed("maps", {"type": "object"}))
FAILURES: Described = {
    status: {"description": says, "content": {"application/json": {"schema": ERROR}}}
    for status, says in {
        400: "The body cannot be read.",
        404: "No model has that name.",
        413: "The body is too large.",
        415: "The body is neither JSON nor a form in UTF-8.",
        422: "Something in the body is wrong; the error says what was expected.",
        429: "Too many requests are waiting; Retry-After says when to come again.",
        503: "No answer in time, or the server is ending.",
    }.items()
}
REFUSED = {"description": "The token is missing or wrong.", "content": {"application/json": {"schema": ERROR}}}


def form_schema(body: type[FormBody]) -> dict[str, Any]:
    """The description of a form with files, beside that of the JSON."""
    schema = body.model_json_schema()
    schema["properties"] = {"file": FILES, **schema["properties"]}
    content = {
        "schema": {**schema, "required": ["file"]},
        "encoding": {"settings": {"contentType": "application/json"}},
    }
    return {"requestBody": {"content": {"multipart/form-data": content}}}


def describe(app: FastAPI, *, models: Sequence[str], guarded: bool) -> None:
    """Puts into the description which models there are, and what needs the token."""
    document = app.openapi()
    schemas = [document["components"]["schemas"][body] for body in ("PredictBody", "AttentionBody")]
    for path in ("/v1/predict", "/v1/attention"):
        schemas.append(document["paths"][path]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"])
    for schema in schemas:
        model = schema["properties"]["model"]
        model.pop("anyOf")
        model["enum"] = [*models, None]
    if not guarded:
        return
    document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    for path, operations in document["paths"].items():
        for operation in operations.values() if path != "/health" else ():
            operation["security"] = [{"token": []}]
            operation["responses"]["401"] = REFUSED
