"""Error responses as one line of JSON."""

from collections.abc import Mapping

from fastapi import Response
from fastapi.responses import JSONResponse

from saccade.serve.limits import shorten_message


def build_error_response(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """Build a JSON response with the error message on one line; lone surrogates of the request are escaped."""
    readable = message.replace(":\n  ", ": ").replace("\n  ", "; ").encode("utf-8", "backslashreplace").decode()
    return JSONResponse({"error": shorten_message(readable)}, status_code=status, headers=dict(headers or {}))
