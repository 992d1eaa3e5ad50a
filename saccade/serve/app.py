"""The API: what a request to each address does."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse

from saccade import __version__
from saccade.config.schema import Decoding
from saccade.errors import SaccadeError
from saccade.predict.fill import fills
from saccade.predict.predictor import Predictor
from saccade.serve.attention import attention_json
from saccade.serve.bodies import AttentionBody, Body, PredictBody, told
from saccade.serve.decoding import Settings
from saccade.serve.failures import failure
from saccade.serve.guard import BROKEN, Guard
from saccade.serve.limits import Limits, Refused
from saccade.serve.metrics import Metrics
from saccade.serve.pages import add_pages
from saccade.serve.schema import ATTENTION, FAILURES, MODELS, PREDICTIONS, describe
from saccade.serve.worker import Worker, too_late

EVENTS = "text/event-stream"


@dataclass(frozen=True)
class Served:
    """One model that is served."""

    name: str
    predictor: Predictor
    settings: Settings
    worker: Worker

    def described(self) -> dict[str, Any]:
        """What a client may want to know of it."""
        recipe = self.predictor.recipe
        return {
            "name": self.name,
            "task": recipe.task,
            "goes_on": self.predictor.goes_on,
            "at_once": fills(self.predictor.model.writer),
            "max_length": recipe.data.max_length,
            "settings": recipe.predict.model_dump(mode="json"),
        }


class Api:
    """What the addresses share: the models, the limits and the numbers."""

    def __init__(self, predictors: Mapping[str, Predictor], limits: Limits) -> None:
        self.limits, self.metrics = limits, Metrics()
        self.models = {name: self._served(name, predictor) for name, predictor in predictors.items()}

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

    def chosen(self, body: Body) -> tuple[Served, Decoding]:
        name = next(iter(self.models)) if body.model is None else body.model
        if name not in self.models:
            raise Refused(404, f"no model is called {name[:60]!r}; there are {', '.join(self.models)}")
        model = self.models[name]
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
        made = await self.answer(
            model.worker.call(lambda: attention_json(model.predictor, model.name, body, decoding, self.limits))
        )
        return Response(made, media_type="application/json")


def event(content: Mapping[str, Any], name: str = "") -> str:
    return (f"event: {name}\n" if name else "") + f"data: {json.dumps(content)}\n\n"


def check_texts(predictors: Mapping[str, Predictor]) -> None:
    """A model that takes the names of files would open those of this machine for whoever asks."""
    for name, predictor in predictors.items():
        if predictor.names_inputs:
            raise SaccadeError(f"{name} reads files, and only models of texts are served; use `saccade predict` for it")


def make_app(predictors: Mapping[str, Predictor], *, token: str = "", limits: Limits | None = None) -> Guard:
    """The whole server as an ASGI application; without a token it is for this machine alone."""
    check_texts(predictors)
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

    app.post("/v1/predict", responses={**PREDICTIONS, **FAILURES})(api.predict)
    app.post("/v1/attention", responses={**ATTENTION, **FAILURES})(api.attention)

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
