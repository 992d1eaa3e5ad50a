"""Response schemas of the OpenAPI description."""

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI

from saccade.serve.bodies import FormBody

Responses = dict[int | str, dict[str, Any]]

NUMBER = {"type": "number"}
TEXT = {"type": "string"}
FINISH = {
    "enum": ["length", "end", "stop"],
    "description": "why decoding stopped; `length`: truncated at the maximum length. Language models always report it",
}
MISSING_TERMS = {
    "type": "array",
    "items": TEXT,
    "description": "target phrases of the setting `terms` for which the length limit has no space",
}
CANDIDATE = {
    "type": "object",
    "properties": {
        "output": TEXT,
        "completion": TEXT,
        "score": NUMBER,
        "log_prob": NUMBER,
        "finish": FINISH,
        "missing_terms": MISSING_TERMS,
    },
}
RESULT = {  # classifiers, regressors and taggers return a label, a value or tags instead
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
        "missing_terms": MISSING_TERMS,
        "candidates": {"type": "array", "items": CANDIDATE, "minItems": 1},
    },
}
MODEL_PROPERTIES = {
    "name": TEXT,
    "task": TEXT,
    "reads": {
        "type": "string",
        "description": "the input modality: text as JSON; picture, sound or another one as files in a form",
    },
    "asks": {"type": "boolean", "description": "whether each file needs a question"},
    "goes_on": {"type": "boolean", "description": "whether it is a language model that continues a prompt"},
    "at_once": {
        "type": "boolean",
        "description": "whether it decodes non-autoregressively, all tokens in parallel",
    },
    "input_label": {"type": "string", "description": "what the page calls an input"},
    "page_settings": {
        "type": ["array", "null"],
        "items": TEXT,
        "description": "decoding settings on the page; null: those of a search",
    },
    "languages": {"type": "array", "items": TEXT, "description": "language codes of inputs and outputs, where known"},
    "examples": {
        "type": "array",
        "items": {"type": "object", "additionalProperties": TEXT},
        "description": "validation examples of the run: input, question, reference; `file` is in /v1/examples/{model}",
    },
    "max_length": {"type": "integer", "description": "maximum tokens of a sequence, including <end>"},
    "settings": {"type": "object", "description": "default decoding settings"},
}
MODEL = {"type": "object", "properties": MODEL_PROPERTIES, "required": [*MODEL_PROPERTIES]}
EVENT = {"type": "object", "properties": {"event": TEXT, "data": TEXT}, "required": ["data"]}
FILES = {
    "type": "array",
    "items": {"type": "string", "format": "binary"},
    "minItems": 1,
    "description": "image or audio files; for attention, exactly one",
}
ERROR = {"type": "object", "properties": {"error": TEXT}, "required": ["error"]}

EXAMPLE_TYPES = ("image/png", "image/jpeg", "image/webp", "audio/x-wav", "audio/wav", "audio/flac", "audio/mpeg")
OTHER_TYPE = "application/octet-stream"  # of files that a browser must not show by itself
EXAMPLE: Responses = {
    200: {"description": "The image or audio file.", "content": {kind: {} for kind in (*EXAMPLE_TYPES, OTHER_TYPE)}},
    404: {"description": "The model has no such example.", "content": {"application/json": {"schema": ERROR}}},
}


def build_list_schema(name: str, items: dict[str, Any]) -> dict[str, Any]:
    """Build the schema of an object with one list."""
    return {"type": "object", "properties": {name: {"type": "array", "items": items}}, "required": [name]}


def build_responses(description: str, schema: dict[str, Any], more_content: dict[str, Any] | None = None) -> Responses:
    return {
        200: {"description": description, "content": {"application/json": {"schema": schema}, **(more_content or {})}}
    }


MODELS = build_responses("The served models.", build_list_schema("models", MODEL))
PREDICTIONS = build_responses(
    "The outputs for each input; with `stream`, server-sent events with chunks of one output.",
    build_list_schema("results", RESULT),
    {"text/event-stream": {"schema": EVENT}},
)
ATTENTION = build_responses("Tokens and attention weights.", build_list_schema("maps", {"type": "object"}))
FAILURES: Responses = {
    status: {"description": says, "content": {"application/json": {"schema": ERROR}}}
    for status, says in {
        400: "The body cannot be read.",
        404: "No model has that name.",
        413: "The body is too large.",
        415: "The body is neither JSON nor a form in UTF-8.",
        422: "A value in the body is invalid; the error says what was expected.",
        429: "Too many requests are waiting; Retry-After says when to try again.",
        503: "No result in time, or the server is shutting down.",
    }.items()
}
UNAUTHORIZED = {"description": "The token is missing or wrong.", "content": {"application/json": {"schema": ERROR}}}


def build_form_schema(body: type[FormBody]) -> dict[str, Any]:
    """Build the OpenAPI description of the multipart form that a route accepts beside JSON."""
    schema = body.model_json_schema()
    schema["properties"] = {"file": FILES, **schema["properties"]}
    content = {
        "schema": {**schema, "required": ["file"]},
        "encoding": {"settings": {"contentType": "application/json"}},
    }
    return {"requestBody": {"content": {"multipart/form-data": content}}}


def add_models_and_security(app: FastAPI, *, models: Sequence[str], needs_token: bool) -> None:
    """Add the names of the models, and which routes need the token, to the OpenAPI description."""
    document = app.openapi()
    schemas = [document["components"]["schemas"][body] for body in ("PredictBody", "AttentionBody")]
    for path in ("/v1/predict", "/v1/attention"):
        schemas.append(document["paths"][path]["post"]["requestBody"]["content"]["multipart/form-data"]["schema"])
    for schema in schemas:
        model = schema["properties"]["model"]
        model.pop("anyOf")
        model["enum"] = [*models, None]
    if not needs_token:
        return
    document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    for path, operations in document["paths"].items():
        for operation in operations.values() if path != "/health" else ():
            operation["security"] = [{"token": []}]
            operation["responses"]["401"] = UNAUTHORIZED
