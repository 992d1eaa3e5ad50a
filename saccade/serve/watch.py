"""The page that shows how a run learns, while it does and afterwards, from the files of the run alone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse, JSONResponse

from saccade.serve.failures import failure
from saccade.serve.guard import BROKEN, Guard
from saccade.serve.history import history, version
from saccade.serve.limits import Limits
from saccade.serve.metrics import Metrics
from saccade.serve.pages import HERE, add_files
from saccade.view import moments

LIMITS = Limits(body=1000, seconds=0)  # nothing is sent to it, and nothing takes long


def make_watch_app(run: Callable[[], Path | None]) -> Guard:
    """The server as an ASGI application, for this machine alone; the run may become known later."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, exception_handlers=handlers())

    @app.get("/")
    def page() -> FileResponse:
        return FileResponse(HERE / "watch.html")

    @app.get("/v1/run")
    def told(request: Request) -> Response:
        """The history of the run; where the client has it already, only that nothing is new."""
        path = run()
        mark = {"etag": f'"{version(path)}"', "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == mark["etag"]:
            return Response(status_code=304, headers=mark)
        return JSONResponse(history(path), headers=mark)

    @app.get("/v1/moments/{step:int}")
    def moment(step: int) -> Response:
        """What was attended to at a step."""
        path = run()
        if path is None or step not in moments.steps(path):
            return failure(404, f"no attention was kept at step {step}; /v1/run lists the moments")
        return FileResponse(moments.path_of(path, step), media_type="application/json")

    add_files(app)
    return Guard(app, token="", limits=LIMITS, metrics=Metrics())


def handlers() -> dict[int | type[Exception], Any]:
    async def missing(request: Request, error: Exception) -> Response:
        return failure(404, f"nothing is at {request.url.path[:60]!r}; / is the page")

    async def wrong_method(request: Request, error: Exception) -> Response:
        return failure(405, f"{request.url.path[:60]!r} does not take {request.method[:20]}; it is there to be read")

    async def broken(request: Request, error: Exception) -> Response:
        return failure(500, BROKEN)  # the guard, which it goes on to, writes it to the log

    return {Exception: broken, 404: missing, 405: wrong_method}
