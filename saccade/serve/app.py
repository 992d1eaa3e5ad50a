"""The API: what a request to each address does."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse

from saccade import __version__
from saccade.config.schema import Decoding
from saccade.errors import SaccadeError
from saccade.predict.predictors.predictor import Predictor
from saccade.serve.attention import attention_json
from saccade.serve.bodies import AttentionBody, AttentionForm, Body, FormBody, PredictBody, told
from saccade.serve.decoding import Settings
from saccade.serve.failures import failure
from saccade.serve.guard import BROKEN, Guard
from saccade.serve.limits import Limits, Refused
from saccade.serve.metrics import Metrics
from saccade.serve.pages import add_pages
from saccade.serve.schema import ATTENTION, FAILURES, MODELS, PREDICTIONS, describe, form_schema
from saccade.serve.served import Served, check_inputs
from saccade.serve.uploads import Decoders, read_form, taking_forms
from saccade.serve.worker import Worker, too_late

EVENTS = "text/event-stream"
TEXTS_ONLY = "texts; send JSON with input"


class Api:
    """What the addresses share: the models, the limits and the numbers."""

    def __init__(self, predictors: Mapping[str, Predictor], limits: Limits) -> None:
        self.limits, self.metrics = limits, Metrics()
        self.models = {name: self._served(name, predictor) for name, predictor in predictors.items()}
        self.decoders = Decoders(limits)

    def _served(self, name: str, predictor: Predictor) -> Served:
        worker = Worker(name, predictor, limits=self.limits, metrics=self.metrics)
        return Served(name, predictor, Settings(predictor.recipe), worker)

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """The models work from the first request to the last answer."""
        for model in self.models.values():
            model.worker.start()
        yield
        for model in self.models.values():
            await asyncio.to_thread(model.worker.stop)
        self.decoders.stop()

    def chosen(self, body: Body) -> tuple[Served, Decoding]:
        name = next(iter(self.models)) if body.model is None else body.model
        if name not in self.models:
            raise Refused(404, f"no model is called {name[:60]!r}; there are {', '.join(self.models)}")
        model = self.models[name]
        if (model.medium != "") != isinstance(body, FormBody):
            wanted = f"{model.medium}s; send them in a form, as curl -F file=@NAME does" if model.medium else TEXTS_ONLY
            raise Refused(422, f"model '{name}' reads {wanted}")
        if isinstance(body, FormBody) and model.asks != bool((body.question or "").strip()):
            told_it = "answers questions; send one as the field question" if model.asks else "takes no question"
            raise Refused(422, f"model '{name}' {told_it}")
        return model, model.settings.decoding(body.settings)

    async def answer(self, future: Future[Any]) -> Any:
        """What a worker makes, in time."""
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), self.limits.seconds)
        except TimeoutError:
            raise Refused(503, too_late(self.limits.seconds), {"retry-after": "5"}) from None

    async def predict(self, body: PredictBody) -> Response:
        """Outputs for one text or several, best first; what they are called is as `saccade predict --json` has it."""
        texts = body.texts
        if not 1 <= len(texts) <= self.limits.texts:
            raise Refused(422, f"input: expected 1 to {self.limits.texts} texts, got {len(texts)}")
        model, decoding = self.chosen(body)
        if body.stream:
            if len(texts) > 1:
                raise Refused(422, f"stream: one text is answered piece by piece, got {len(texts)}; ask for one")
            return await self.streamed(model, texts[0], decoding)
        found = await self.answer(model.worker.candidates(texts, decoding))
        self.metrics.count("saccade_texts_total", {"model": model.name}, len(texts))
        results = [model.predictor.described(text, each) for text, each in zip(texts, found, strict=True)]
        return JSONResponse({"model": model.name, "results": results})

    async def streamed(self, model: Served, text: str, decoding: Decoding) -> Response:
        """One output as events, begun when its first piece is known: until then it may be refused."""
        pieces = self.pieces(model, text, decoding)
        first = await anext(pieces, None)
        return StreamingResponse(self.events(first, pieces), media_type=EVENTS, headers={"cache-control": "no-store"})

    async def pieces(self, model: Served, text: str, decoding: Decoding) -> AsyncIterator[str]:
        """The output as it comes; all at once from a model that cannot do better."""
        if not model.predictor.goes_on:
            [found] = await self.answer(model.worker.candidates([text], decoding))
            yield found[0].text
        else:
            loop, said = asyncio.get_running_loop(), asyncio.Queue[str | Exception | None]()

            def tell(piece: str | Exception | None) -> None:
                loop.call_soon_threadsafe(said.put_nowait, piece)

            stream = model.worker.stream(text, decoding, tell)
            try:
                while (piece := await said.get()) is not None:
                    if isinstance(piece, Exception):
                        raise piece
                    yield piece
            finally:
                stream.left = True
        self.metrics.count("saccade_texts_total", {"model": model.name})

    async def events(self, first: str | None, pieces: AsyncIterator[str]) -> AsyncIterator[str]:
        """Server-sent events: `data` with each piece of text, then `done` with all of it, or `error`."""
        told_so_far = "" if first is None else first
        try:
            if first is not None:
                yield event({"text": first})
                async for piece in pieces:
                    told_so_far += piece
                    yield event({"text": piece})
            yield event({"output": told_so_far}, name="done")
        except (SaccadeError, Refused) as error:
            yield event({"error": str(error)}, name="error")

    async def attention(self, body: AttentionBody) -> Response:
        """Who looked where: the weights of every layer and head, as `saccade view --json` gives them."""
        model, decoding = self.chosen(body)
        return await self.looked(model, body.input, body, decoding)

    async def looked(
        self, model: Served, source: str, body: AttentionBody | AttentionForm, decoding: Decoding
    ) -> Response:
        def make() -> bytes:
            return attention_json(model.predictor, source, body, decoding, name=model.name, most=self.limits.weights)

        return Response(await self.answer(model.worker.call(make)), media_type="application/json")

    async def predict_files(self, request: Request) -> Response:
        """The same as predict() for the files of a form."""
        body, files = await read_form(request, FormBody, self.limits)
        model, decoding = self.chosen(body)
        async with self.decoders.holding(model.predictor, files) as names:
            sources = [model.source(name, body) for name in names]
            found = await self.answer(model.worker.candidates(sources, decoding))
        self.metrics.count("saccade_texts_total", {"model": model.name}, len(files))
        told_of = zip(sources, names, [file.name for file in files], found, strict=True)
        results = [model.result(*each) for each in told_of]
        return JSONResponse({"model": model.name, "results": results})

    async def attention_of_file(self, request: Request) -> Response:
        """The same as attention() for the file of a form."""
        body, files = await read_form(request, AttentionForm, self.limits)
        if len(files) > 1:
            raise Refused(422, f"file: attention is shown for one file at a time, got {len(files)}")
        model, decoding = self.chosen(body)
        async with self.decoders.holding(model.predictor, files) as [name]:
            return await self.looked(model, model.source(name, body), body, decoding)


def event(content: Mapping[str, Any], name: str = "") -> str:
    return (f"event: {name}\n" if name else "") + f"data: {json.dumps(content)}\n\n"


def make_app(predictors: Mapping[str, Predictor], *, token: str = "", limits: Limits | None = None) -> Guard:
    """The whole server as an ASGI application; without a token it is for this machine alone."""
    check_inputs(predictors)
    limits = limits or Limits()
    api = Api(predictors, limits)
    app = FastAPI(
        title="saccade", version=__version__, lifespan=api.lifespan, docs_url=None, redoc_url=None,
        exception_handlers=handlers(),
    )  # fmt: skip

    @app.get("/v1/models", responses=MODELS)
    async def models() -> Response:
        """The models that are served, the first of which is asked where a request names none."""
        return JSONResponse({"models": [model.described() for model in api.models.values()]})

    for path, of_text, of_files, form, answers in (
        ("/v1/predict", api.predict, api.predict_files, FormBody, PREDICTIONS),
        ("/v1/attention", api.attention, api.attention_of_file, AttentionForm, ATTENTION),
    ):
        app.router.add_api_route(
            path, of_text, methods=["POST"], responses={**answers, **FAILURES}, openapi_extra=form_schema(form),
            route_class_override=taking_forms(of_files),
        )  # fmt: skip

    @app.get("/health", responses={503: FAILURES[503]})
    async def health() -> dict[str, str]:
        """Whether the server is there, and its models work."""
        for name, model in api.models.items():
            if not model.worker.thread.is_alive():
                raise Refused(503, f"model {name!r} has stopped working; start the server again")
        return {"status": "ok", "version": __version__}

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Numbers about the server, in the text format of Prometheus."""
        return PlainTextResponse(api.metrics.text(), media_type="text/plain; version=0.0.4")

    add_pages(app)
    describe(app, models=list(api.models), guarded=bool(token))
    return Guard(app, token=token, limits=limits, metrics=api.metrics)


def handlers() -> dict[int | type[Exception], Any]:
    """Every error as one line of JSON."""

    async def refused(request: Request, error: Refused) -> Response:
        return failure(error.status, error.message, error.headers)

    async def mistaken(request: Request, error: SaccadeError) -> Response:
        return failure(422, str(error))

    async def invalid(request: Request, error: RequestValidationError) -> Response:
        body = AttentionBody if request.url.path.endswith("attention") else PredictBody
        return failure(422, told(error.errors(), body))

    async def missing(request: Request, error: Exception) -> Response:
        return failure(404, f"nothing is at {request.url.path[:60]!r}; / is the page, /docs lists the API")

    async def wrong_method(request: Request, error: Exception) -> Response:
        return failure(405, f"{request.url.path[:60]!r} does not take {request.method[:20]}; see /docs")

    async def unreadable(request: Request, error: Exception) -> Response:
        return failure(400, "the body cannot be read; expected a JSON object as UTF-8")

    async def broken(request: Request, error: Exception) -> Response:
        return failure(500, BROKEN)  # the guard, which it goes on to, writes it to the log

    return {
        Exception: broken,
        Refused: refused,
        SaccadeError: mistaken,
        RequestValidationError: invalid,
        400: unreadable,
        404: missing,
        405: wrong_method,
    }


def named(runs: Sequence[str]) -> list[str]:
    """The names of models by the runs that they are, each of which must be another one."""
    names = [",".join(part.rstrip("/").rpartition("/")[2] for part in run.split(",")) for run in runs]
    for name in names:
        if names.count(name) > 1:
            raise SaccadeError(f"two runs are called '{name}', and models are asked for by their names; rename one")
    return names
