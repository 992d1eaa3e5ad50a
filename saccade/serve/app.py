"""The FastAPI application: the handler of each route."""

import asyncio
import json
import mimetypes
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
from saccade.predict.decode import prepare_at_once
from saccade.predict.predictors.predictor import Predictor
from saccade.runs import read_example_file
from saccade.serve.attention import compute_attention_json
from saccade.serve.bodies import AttentionBody, AttentionForm, Body, FormBody, PredictBody, format_validation_error
from saccade.serve.clients import get_client_key
from saccade.serve.decoders import FileDecoder
from saccade.serve.decoding import DecodingSettings
from saccade.serve.failures import build_error_response
from saccade.serve.guard import INTERNAL_ERROR, Guard
from saccade.serve.limits import Limits, RequestError
from saccade.serve.metrics import Metrics
from saccade.serve.pages import add_pages
from saccade.serve.schema import (
    ATTENTION,
    EXAMPLE,
    EXAMPLE_TYPES,
    FAILURES,
    MODELS,
    OTHER_TYPE,
    PREDICTIONS,
    add_models_and_security,
    build_form_schema,
)
from saccade.serve.served import ServedModel, check_servable, find_examples
from saccade.serve.uploads import build_form_route, read_form
from saccade.serve.worker import Worker, format_timeout_message

EVENT_STREAM_TYPE = "text/event-stream"
TEXT_INPUT_HINT = "text; send JSON with the key input"


class Api:
    """State shared by all routes: models, limits and metrics."""

    def __init__(self, predictors: Mapping[str, Predictor], limits: Limits, *, examples: bool) -> None:
        self.limits, self.metrics = limits, Metrics()
        self.models = {name: self._build_served_model(name, each, examples) for name, each in predictors.items()}
        self.decoders = FileDecoder(limits)

    def _build_served_model(self, name: str, predictor: Predictor, examples: bool) -> ServedModel:
        prepare_at_once(predictor.model)
        worker = Worker(name, predictor, limits=self.limits, metrics=self.metrics)
        found = find_examples(predictor) if examples else []
        return ServedModel(name, predictor, DecodingSettings(predictor.recipe), worker, found)

    @asynccontextmanager
    async def lifespan(self, app: FastAPI) -> AsyncIterator[None]:
        """Run the worker threads of the models while the server runs."""
        for model in self.models.values():
            model.worker.start()
        self.decoders.start([model.predictor for model in self.models.values()])
        yield
        for model in self.models.values():
            await asyncio.to_thread(model.worker.stop)
        await asyncio.to_thread(self.decoders.stop)

    def read_example(self, name: str) -> Response:
        """Read the file of a model's validation example."""
        model = self.models.get(name)
        files = [item["file"] for item in model.examples if "file" in item] if model else []
        data = read_example_file(model.predictor.path, files[0]) if model and files else b""
        if not data:
            raise RequestError(404, f"no model called {name[:60]!r} has an example file; see /v1/models")
        kind = mimetypes.guess_type(files[0])[0] or ""
        return Response(data, media_type=kind if kind in EXAMPLE_TYPES else OTHER_TYPE)

    def select_model(self, body: Body) -> tuple[ServedModel, Decoding]:
        name = next(iter(self.models)) if body.model is None else body.model
        if name not in self.models:
            raise RequestError(404, f"no model is called {name[:60]!r}; there are {', '.join(self.models)}")
        model = self.models[name]
        if (model.medium != "") != isinstance(body, FormBody):
            upload_hint = f"{model.medium} files; send them in a form, as curl -F file=@NAME does"
            raise RequestError(422, f"model '{name}' reads {upload_hint if model.medium else TEXT_INPUT_HINT}")
        if isinstance(body, FormBody) and model.takes_question != bool((body.question or "").strip()):
            hint = "answers questions; send one as the field question" if model.takes_question else "takes no question"
            raise RequestError(422, f"model '{name}' {hint}")
        return model, model.settings.build_decoding(body.settings)

    @asynccontextmanager
    async def limit_time(self) -> AsyncIterator[None]:
        """Fail with status 503 after the time limit."""
        try:
            async with asyncio.timeout(self.limits.timeout):
                yield
        except TimeoutError:
            raise RequestError(503, format_timeout_message(self.limits.timeout), {"retry-after": "5"}) from None

    async def wait_for(self, future: Future[Any]) -> Any:
        """Wait for the result of a worker, until the time limit."""
        async with self.limit_time():
            return await asyncio.wrap_future(future)

    async def predict(self, body: PredictBody) -> Response:
        """Decode one input or several; outputs are best first and have the keys of `saccade predict --json`."""
        inputs = body.inputs
        if not 1 <= len(inputs) <= self.limits.max_inputs:
            raise RequestError(422, f"input: expected 1 to {self.limits.max_inputs} inputs, got {len(inputs)}")
        model, decoding = self.select_model(body)
        if body.stream:
            if len(inputs) > 1:
                raise RequestError(422, f"stream: expected one input, got {len(inputs)}; send one per request")
            return await self.stream(model, inputs[0], decoding)
        outputs = await self.wait_for(model.worker.submit(inputs, decoding))
        self.metrics.texts.labels(model.name).inc(len(inputs))
        results = [model.predictor.describe(text, hypotheses) for text, hypotheses in zip(inputs, outputs, strict=True)]
        return JSONResponse({"model": model.name, "results": results})

    async def stream(self, model: ServedModel, text: str, decoding: Decoding) -> Response:
        """Stream one output as server-sent events.

        The response starts when the first chunk is known, so that an invalid request still gets an error status.
        """
        chunks = self.generate_chunks(model, text, decoding)
        events = self.generate_events(await anext(chunks, None), chunks)
        return StreamingResponse(events, media_type=EVENT_STREAM_TYPE, headers={"cache-control": "no-store"})

    async def generate_chunks(self, model: ServedModel, text: str, decoding: Decoding) -> AsyncIterator[str]:
        """Generate the output in chunks; one chunk with all of it for models that are not language models."""
        if not model.predictor.continues_prompts:
            [hypotheses] = await self.wait_for(model.worker.submit([text], decoding))
            yield hypotheses[0].text
        else:
            loop, queue = asyncio.get_running_loop(), asyncio.Queue[str | Exception | None]()

            def enqueue(chunk: str | Exception | None) -> None:
                loop.call_soon_threadsafe(queue.put_nowait, chunk)

            stream = model.worker.start_stream(text, decoding, enqueue)
            try:
                while (chunk := await queue.get()) is not None:
                    if isinstance(chunk, Exception):
                        raise chunk
                    yield chunk
            finally:
                stream.cancelled = True
        self.metrics.texts.labels(model.name).inc()

    async def generate_events(self, first: str | None, chunks: AsyncIterator[str]) -> AsyncIterator[str]:
        """Generate server-sent events: `data` with each chunk, then `done` with the whole output, or `error`."""
        output = "" if first is None else first
        try:
            if first is not None:
                yield format_event({"text": first})
                async for chunk in chunks:
                    output += chunk
                    yield format_event({"text": chunk})
            yield format_event({"output": output}, name="done")
        except (SaccadeError, RequestError) as error:
            yield format_event({"error": str(error)}, name="error")

    async def attention(self, body: AttentionBody) -> Response:
        """Compute the attention weights of every layer and head, in the format of `saccade view --json`."""
        model, decoding = self.select_model(body)
        return await self.compute_attention(model, body.input, body, decoding)

    async def compute_attention(
        self, model: ServedModel, source: str, body: AttentionBody | AttentionForm, decoding: Decoding
    ) -> Response:
        def compute() -> bytes:
            return compute_attention_json(
                model.predictor, source, body, decoding, name=model.name, max_weights=self.limits.max_weights
            )

        return Response(await self.wait_for(model.worker.submit_function(compute)), media_type="application/json")

    async def predict_files(self, request: Request) -> Response:
        """Decode the uploaded files of a form; otherwise like predict()."""
        body, files = await read_form(request, FormBody, self.limits)
        model, decoding = self.select_model(body)
        async with self.limit_time(), self.decoders.decode(model.predictor, files, get_client(request)) as names:
            sources = [model.build_source(name, body) for name in names]
            outputs = await self.wait_for(model.worker.submit(sources, decoding))
        self.metrics.texts.labels(model.name).inc(len(files))
        rows = zip(sources, names, [file.name for file in files], outputs, strict=True)
        results = [model.build_result(*row) for row in rows]
        return JSONResponse({"model": model.name, "results": results})

    async def attention_for_file(self, request: Request) -> Response:
        """Compute the attention weights for the uploaded file of a form; otherwise like attention()."""
        body, files = await read_form(request, AttentionForm, self.limits)
        if len(files) > 1:
            raise RequestError(422, f"file: attention needs one file, got {len(files)}; send one per request")
        model, decoding = self.select_model(body)
        async with self.limit_time(), self.decoders.decode(model.predictor, files, get_client(request)) as [name]:
            return await self.compute_attention(model, model.build_source(name, body), body, decoding)


def get_client(request: Request) -> str:
    """Get the key of the client that sent a request, for limits."""
    return get_client_key(request.client.host if request.client else "")


def format_event(content: Mapping[str, Any], name: str = "") -> str:
    return (f"event: {name}\n" if name else "") + f"data: {json.dumps(content)}\n\n"


def create_app(
    predictors: Mapping[str, Predictor], *, token: str = "", limits: Limits | None = None, examples: bool = True
) -> Guard:
    """Create the ASGI application; without a token it answers only requests from this machine.

    examples: whether the page shows validation examples of the runs.
    """
    check_servable(predictors)
    limits = limits or Limits()
    api = Api(predictors, limits, examples=examples)
    app = FastAPI(
        title="saccade", version=__version__, lifespan=api.lifespan, docs_url=None, redoc_url=None,
        exception_handlers=build_exception_handlers(),
    )  # fmt: skip

    @app.get("/v1/models", responses=MODELS)
    async def models() -> Response:
        """List the served models; the first one is used where a request names none."""
        return JSONResponse({"models": [model.describe() for model in api.models.values()]})

    @app.get("/v1/examples/{model}", response_class=Response, responses=EXAMPLE)
    def example(model: str) -> Response:
        """Read the file of a model's validation example."""
        return api.read_example(model)

    for path, of_text, of_files, form, answers in (
        ("/v1/predict", api.predict, api.predict_files, FormBody, PREDICTIONS),
        ("/v1/attention", api.attention, api.attention_for_file, AttentionForm, ATTENTION),
    ):
        app.router.add_api_route(
            path, of_text, methods=["POST"], responses={**answers, **FAILURES}, openapi_extra=build_form_schema(form),
            route_class_override=build_form_route(of_files),
        )  # fmt: skip

    @app.get("/health", responses={503: FAILURES[503]})
    async def health() -> dict[str, str]:
        """Check that the server and the worker threads of its models are running."""
        for name, model in api.models.items():
            if not model.worker.thread.is_alive():
                stopped = "a model" if token else f"model {name!r}"  # anybody may ask, see PUBLIC_PATHS
                raise RequestError(503, f"{stopped} has stopped working; restart the server")
        return {"status": "ok"} if token else {"status": "ok", "version": __version__}

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Server metrics in the Prometheus text format."""
        return PlainTextResponse(api.metrics.render(), media_type="text/plain; version=0.0.4")

    app.state.decoders = api.decoders
    add_pages(app)
    add_models_and_security(app, models=list(api.models), needs_token=bool(token))
    return Guard(app, token=token, limits=limits, metrics=api.metrics)


def build_exception_handlers() -> dict[int | type[Exception], Any]:
    """Build the handlers that turn every exception into one line of JSON."""

    async def handle_request_error(request: Request, error: RequestError) -> Response:
        return build_error_response(error.status, error.message, error.headers)

    async def handle_user_error(request: Request, error: SaccadeError) -> Response:
        return build_error_response(422, str(error))

    async def handle_invalid_body(request: Request, error: RequestValidationError) -> Response:
        body = AttentionBody if request.url.path.endswith("attention") else PredictBody
        return build_error_response(422, format_validation_error(error.errors(), body))

    async def handle_not_found(request: Request, error: Exception) -> Response:
        return build_error_response(404, f"no route {request.url.path[:60]!r}; / is the page, /docs lists the API")

    async def handle_wrong_method(request: Request, error: Exception) -> Response:
        return build_error_response(405, f"{request.url.path[:60]!r} does not accept {request.method[:20]}; see /docs")

    async def handle_bad_request(request: Request, error: Exception) -> Response:
        return build_error_response(400, "the body cannot be read; expected a JSON object as UTF-8")

    async def handle_internal_error(request: Request, error: Exception) -> Response:
        return build_error_response(500, INTERNAL_ERROR)  # raised again to the Guard, which logs it

    return {
        Exception: handle_internal_error,
        RequestError: handle_request_error,
        SaccadeError: handle_user_error,
        RequestValidationError: handle_invalid_body,
        400: handle_bad_request,
        404: handle_not_found,
        405: handle_wrong_method,
    }


def get_model_names(runs: Sequence[str]) -> list[str]:
    """Name each model after its run folders, `a,b` for an ensemble; the names must be unique."""
    names = [",".join(part.rstrip("/").rpartition("/")[2] for part in run.split(",")) for run in runs]
    for name in names:
        if names.count(name) > 1:
            raise SaccadeError(f"two runs are called '{name}', but requests choose models by name; rename one")
    return names
