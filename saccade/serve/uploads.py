"""File uploads as multipart forms, as browsers and `curl -F file=@NAME` send them."""

import json
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple, TypeVar

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import ValidationError
from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException

from saccade.serve.bodies import FormBody, format_validation_error
from saccade.serve.limits import Limits, RequestError

FORM_TYPE = "multipart/form-data"
MEDIA_TYPES = ("image/", "audio/")  # content types of a bare file, without a form
BOOLEANS = {"true": True, "false": False}
MAX_FORM_FIELDS = 16  # besides files
CHARSETS = ("", "utf-8", "utf8")  # accepted; some others take minutes to decode a long value
MAX_NAME_LENGTH = 100

FormHandler = Callable[[Request], Awaitable[Response]]
Handler = Callable[[Request], Coroutine[Any, Any, Response]]
FormBodyT = TypeVar("FormBodyT", bound=FormBody)


class Upload(NamedTuple):
    """An uploaded file: the client's name for it and its bytes."""

    name: str
    data: bytes


def build_form_route(handle_form: FormHandler) -> type[APIRoute]:
    """Build a route class that passes forms to `handle_form` and JSON to the endpoint of the route."""

    class FormRoute(APIRoute):
        def get_route_handler(self) -> Handler:
            handle_json = super().get_route_handler()

            async def handle(request: Request) -> Response:
                kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
                if kind.startswith(MEDIA_TYPES):
                    raise RequestError(
                        415, f"expected JSON or a form, got {kind[:60]}; send files as curl -F file=@NAME does"
                    )
                return await (handle_form if kind == FORM_TYPE else handle_json)(request)

            return handle

    return FormRoute


async def read_form(request: Request, body: type[FormBodyT], limits: Limits) -> tuple[FormBodyT, list[Upload]]:
    """Read and validate the fields and files of a form."""
    _check_charset(request.headers["content-type"])
    try:
        async with request.form(max_files=limits.max_files, max_fields=MAX_FORM_FIELDS) as form:
            files = [await _read_upload(value) for value in form.getlist("file")]
            fields = _read_fields(form)
    except HTTPException as error:
        raise RequestError(400, f"the form cannot be read: {error.detail.splitlines()[0][:100]}") from None
    if not files:
        raise RequestError(422, "file: is missing; expected a file, as curl -F file=@NAME sends it")
    try:
        return body.model_validate(fields), files
    except ValidationError as error:
        raise RequestError(422, format_validation_error(error.errors(), body)) from None


def _check_charset(content_type: str) -> None:
    _, options = parse_options_header(content_type)  # as starlette does it
    charset = options.get(b"charset", b"").decode("latin-1")
    if charset.lower() not in CHARSETS:
        raise RequestError(415, f"expected a form in UTF-8, got the charset {charset[:60]!r}; leave it out")


async def _read_upload(value: UploadFile | str) -> Upload:
    if isinstance(value, str):
        raise RequestError(
            422, f"file: expected a file, got the text {value[:60]!r}; curl sends one with -F file=@NAME"
        )
    return Upload(sanitize_name(value.filename or ""), await value.read())


def _read_fields(form: FormData) -> dict[str, Any]:
    """Read the fields of a form other than files; `settings` is parsed as JSON and `packed` as a boolean."""
    fields: dict[str, Any] = {}
    for name, value in form.multi_items():
        if name == "file":
            continue
        if name in fields or not isinstance(value, str):
            problem = "two values" if name in fields else "a file"
            raise RequestError(422, f"{name[:60]}: expected one text, got {problem}; send files in the field file")
        fields[name] = value
    if "settings" in fields:
        try:
            fields["settings"] = json.loads(fields["settings"])
        except (ValueError, RecursionError):
            raise RequestError(422, f"settings: expected a JSON object, got {fields['settings'][:60]!r}") from None
    if "packed" in fields:
        fields["packed"] = BOOLEANS.get(fields["packed"].lower(), fields["packed"])
    return fields


def sanitize_name(name: str) -> str:
    """Keep the last part of a path, with unprintable characters replaced, so that it can stand in messages and JSON."""
    last = name.replace("\\", "/").rpartition("/")[2]
    printable = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in last)
    return printable[-MAX_NAME_LENGTH:].strip() or "file"
