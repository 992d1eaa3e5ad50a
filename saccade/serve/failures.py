"""Errors as one line of JSON."""

from collections.abc import Mapping

from fastapi import Response
from fastapi.responses import JSONResponse


def failure(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """What is wrong, in one line that any client can read: half characters of a request are written as their codes."""
    readable = message.replace(":\n  ", ": ").replace("\n  ", "; ").encode("utf-8", "backslashreplace").decode()
    return JSONResponse({"error": readable}, status_code=status, headers=dict(headers or {}))
