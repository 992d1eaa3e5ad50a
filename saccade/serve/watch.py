"""The server of the watch page, which shows a run during and after training from its files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import FileResponse, JSONResponse

from saccade.serve.failures import build_error_response
from saccade.serve.guard import INTERNAL_ERROR, Guard
from saccade.serve.history import compute_version, read_history
from saccade.serve.limits import Limits
from saccade.serve.metrics import Metrics
from saccade.serve.pages import PAGE_FOLDER, mount_static_files
from saccade.view import moments

LIMITS = Limits(max_body_bytes=1000, timeout=0)  # requests have no body, and none waits for a model


def create_watch_app(get_run: Callable[[], Path | None]) -> Guard:
    """Create the ASGI application, for requests from this machine; `get_run` returns None until the run exists."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, exception_handlers=build_exception_handlers())

    @app.get("/")
    def page() -> FileResponse:
        return FileResponse(PAGE_FOLDER / "watch.html")

    @app.get("/v1/run")
    def get_history(request: Request) -> Response:
        """Return the history of the run, or status 304 if it has not changed since the client's request."""
        path = get_run()
        headers = {"etag": f'"{compute_version(path)}"', "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == headers["etag"]:
            return Response(status_code=304, headers=headers)
        return JSONResponse(read_history(path), headers=headers)

    @app.get("/v1/moments/{step:int}")
    def get_moment(step: int) -> Response:
        """Return the attention snapshot of a step."""
        path = get_run()
        if path is None or step not in moments.list_steps(path):
            return build_error_response(
                404, f"no attention was saved at step {step}; /v1/run lists the steps in moments"
            )
        return FileResponse(moments.get_path(path, step), media_type="application/json")

    mount_static_files(app)
    return Guard(app, token="", limits=LIMITS, metrics=Metrics())


def build_exception_handlers() -> dict[int | type[Exception], Any]:
    async def handle_not_found(request: Request, error: Exception) -> Response:
        return build_error_response(404, f"no route {request.url.path[:60]!r}; / is the page")

    async def handle_wrong_method(request: Request, error: Exception) -> Response:
        return build_error_response(405, f"{request.url.path[:60]!r} does not accept {request.method[:20]}; use GET")

    async def handle_internal_error(request: Request, error: Exception) -> Response:
        return build_error_response(500, INTERNAL_ERROR)  # raised again to the Guard, which logs it

    return {Exception: handle_internal_error, 404: handle_not_found, 405: handle_wrong_method}
