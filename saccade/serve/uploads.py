"""Files that are sent to a model: forms, as browsers and `curl -F file=@NAME` send them."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeVar

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import ValidationError
from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException

from saccade.predict.predictors.predictor import Predictor
from saccade.serve.bodies import FormBody, told
from saccade.serve.limits import Limits, Refused

FORM = "multipart/form-data"
MEDIA = ("image/", "audio/")  # types of bodies that are a file and nothing else
BOOLEANS = {"true": True, "false": False}
FIELDS = 16  # that are no files
CHARSETS = ("", "utf-8", "utf8")  # of texts; in some others reading a long one takes minutes
LONGEST_NAME = 100

Answering = Callable[[Request], Awaitable[Response]]
Handler = Callable[[Request], Coroutine[Any, Any, Response]]
Asked = TypeVar("Asked", bound=FormBody)


class Upload(NamedTuple):
    """A file as it came: what its sender calls it, and its bytes."""

    name: str
    data: bytes


def taking_forms(answer: Answering) -> type[APIRoute]:
    """A route that answers JSON as others do, and forms by a function of their own."""

    class FormRoute(APIRoute):
        def get_route_handler(self) -> Handler:
            others = super().get_route_handler()

            async def handle(request: Request) -> Response:
                kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
                if kind.startswith(MEDIA):
                    raise Refused(
                        415, f"expected JSON or a form, got {kind[:60]}; send files as curl -F file=@NAME does"
                    )
                return await (answer if kind == FORM else others)(request)

            return handle

    return FormRoute


async def read_form(request: Request, body: type[Asked], limits: Limits) -> tuple[Asked, list[Upload]]:
    """The fields of a form, checked, and its files."""
    _check_charset(request.headers["content-type"])
    try:
        async with request.form(max_files=limits.files, max_fields=FIELDS) as form:
            files = [await _upload(value) for value in form.getlist("file")]
            fields = _fields(form)
    except HTTPException as error:
        raise Refused(400, f"the form cannot be read: {error.detail.splitlines()[0][:100]}") from None
    if not files:
        raise Refused(422, "file: is missing; expected a file, as curl -F file=@NAME sends it")
    try:
        return body.model_validate(fields), files
    except ValidationError as error:
        raise Refused(422, told(error.errors(), body)) from None


def _check_charset(content_type: str) -> None:
    _, options = parse_options_header(content_type)  # as starlette does it
    charset = options.get(b"charset", b"").decode("latin-1")
    if charset.lower() not in CHARSETS:
        raise Refused(415, f"expected a form in UTF-8, got the charset {charset[:60]!r}; leave it out")


async def _upload(value: UploadFile | str) -> Upload:
    if isinstance(value, str):
        raise Refused(422, f"file: expected a file, got the text {value[:60]!r}; curl sends one with -F file=@NAME")
    return Upload(plain_name(value.filename or ""), await value.read())


def _fields(form: FormData) -> dict[str, Any]:
    """What a form says apart from its files; texts stand for what JSON would have there."""
    fields: dict[str, Any] = {}
    for name, value in form.multi_items():
        if name == "file":
            continue
        if name in fields or not isinstance(value, str):
            what = "given twice" if name in fields else "a file"
            raise Refused(422, f"{name[:60]}: expected one text, got it {what}; files are called file")
        fields[name] = value
    if "settings" in fields:
        try:
            fields["settings"] = json.loads(fields["settings"])
        except (ValueError, RecursionError):
            raise Refused(422, f"settings: expected a JSON object, got {fields['settings'][:60]!r}") from None
    if "packed" in fields:
        fields["packed"] = BOOLEANS.get(fields["packed"].lower(), fields["packed"])
    return fields


def plain_name(name: str) -> str:
    """The last part of a name, without what would break a line, a path or a table."""
    last = name.replace("\\", "/").rpartition("/")[2]
    shown = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in last)
    return shown[-LONGEST_NAME:].strip() or "file"


class Decoders:
    """One thread that decodes what was sent: one file at a time, so that memory has a bound."""

    def __init__(self, limits: Limits) -> None:
        self.limits, self.waiting = limits, 0
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="decoder")

    @asynccontextmanager
    async def holding(self, predictor: Predictor, files: Sequence[Upload]) -> AsyncIterator[list[str]]:
        """The names by which a predictor knows the files, as long as they are wanted."""
        if self.waiting + len(files) > self.limits.uploads:
            raise Refused(
                429,
                f"{self.waiting} files are waiting to be decoded, at most {self.limits.uploads} may; ask again in 2 s",
                {"retry-after": "2"},
            )
        self.waiting += len(files)
        jobs = [self.pool.submit(self._hold, predictor, file) for file in files]
        try:
            try:
                names = [await asyncio.wrap_future(job) for job in jobs]
            finally:
                self.waiting -= len(files)
            yield names
        finally:
            for job in jobs:
                job.cancel()
                job.add_done_callback(lambda done: self._release(predictor, done))

    def _hold(self, predictor: Predictor, file: Upload) -> str:
        return predictor.hold(file.data, name=file.name, pixels=self.limits.pixels)

    def _release(self, predictor: Predictor, done: Future[str]) -> None:
        if not done.cancelled() and done.exception() is None:
            predictor.release(done.result())

    def stop(self) -> None:
        self.pool.shutdown(cancel_futures=True)
