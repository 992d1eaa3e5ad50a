"""ASGI middleware in front of the API: token, origin and size checks, security headers, and request metrics."""

import hmac
import ipaddress
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from saccade.serve.limits import Limits, RequestError
from saccade.serve.metrics import Metrics

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

TOKEN_PATHS = ("/v1/", "/metrics")  # need the token; the page, its files and /health do not
SECURITY_HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' data:; media-src data:; object-src 'none'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
INTERNAL_ERROR = "internal server error; see the log of the server"
logger = logging.getLogger("saccade.serve")


class Guard:
    """ASGI middleware that checks requests, limits their size, adds security headers and counts them."""

    def __init__(self, app: App, *, token: str, limits: Limits, metrics: Metrics) -> None:
        self.app, self.token, self.limits, self.metrics = app, token, limits, metrics
        self.in_flight, self.reserved_bytes = 0, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        response = ResponseSender(send)
        start, reserved = time.perf_counter(), 0
        self._count_in_flight(1)
        try:
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            self._check_host_and_origin(headers)
            self._check_token(scope["path"], headers)
            reserved = self._reserve_bytes(headers)
            receive_body = await self._read_body(receive)
            if receive_body is not None:
                start = time.perf_counter()  # the metric excludes the time that a client takes to send
                await self.app(scope, receive_body, response.send)
        except RequestError as error:
            await response.send_error(error)
        except Exception:
            logger.exception("%s %s failed", scope["method"], scope["path"])
            await response.send_error(RequestError(500, INTERNAL_ERROR))
        finally:
            self._count_in_flight(-1)
            self.reserved_bytes -= reserved
            self._record_metrics(scope, response.status, time.perf_counter() - start)

    def _check_host_and_origin(self, headers: Mapping[str, str]) -> None:
        """Without a token, accept only local requests, and no cross-origin ones from web pages in a local browser."""
        if self.token:
            return
        host, origin = headers.get("host", ""), headers.get("origin")
        if not is_local(parse_host_name(host)):
            raise RequestError(
                421, f"expected localhost or 127.0.0.1 as Host, got {host[:60]!r}; start the server with a token"
            )
        if origin is not None and origin.partition("://")[2] != host:
            raise RequestError(403, f"cross-origin requests need a token, got Origin {origin[:60]!r}")

    def _check_token(self, path: str, headers: Mapping[str, str]) -> None:
        if not self.token or not path.startswith(TOKEN_PATHS):
            return
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self.token.encode()):
            problem = "the token is wrong" if given else "a token is needed"
            raise RequestError(
                401, f"{problem}; send the header Authorization: Bearer TOKEN", {"www-authenticate": "Bearer"}
            )

    def _reserve_bytes(self, headers: Mapping[str, str]) -> int:
        """Reserve the content length of the body, or the maximum if it is unknown, from the total of all requests."""
        max_bytes, length = self.limits.max_body_bytes, headers.get("content-length", "")
        if length.isdigit() and int(length) > max_bytes:
            raise RequestError(413, f"a request has at most {max_bytes} bytes, got {length}; send less at a time")
        reserved = int(length) if length.isdigit() else max_bytes if "transfer-encoding" in headers else 0
        if self.reserved_bytes + reserved > self.limits.max_total_bytes:
            message = "the clients together are sending too much; try again in 2 s"
            raise RequestError(429, message, {"retry-after": "2"})
        self.reserved_bytes += reserved
        return reserved

    async def _read_body(self, receive: Receive) -> Receive | None:
        """Read the whole body and return a function that receives it again; None if the client disconnected."""
        max_bytes, body, more = self.limits.max_body_bytes, bytearray(), True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return None
            body += message.get("body", b"")
            if len(body) > max_bytes:
                raise RequestError(413, f"a request has at most {max_bytes} bytes, got more; send less at a time")
            more = message.get("more_body", False)
        messages: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def receive_body() -> Message:
            return messages.pop() if messages else await receive()

        return receive_body

    def _count_in_flight(self, change: int) -> None:
        self.in_flight += change
        self.metrics.requests_in_flight.set(self.in_flight)

    def _record_metrics(self, scope: Scope, status: int, seconds: float) -> None:
        route = str(getattr(scope.get("route"), "path", "other"))  # never a path chosen by a client: labels must be few
        self.metrics.requests.labels(route, status or "none").inc()
        self.metrics.request_seconds.labels(route).observe(seconds)


class ResponseSender:
    """Sends a response with the security headers added."""

    def __init__(self, send: Send) -> None:
        self.downstream, self.status = send, 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            security = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]
            message = {**message, "headers": [*message.get("headers", []), *security]}
        await self.downstream(message)

    async def send_error(self, error: RequestError) -> None:
        """Send an error as JSON, unless a response has started already."""
        if self.status:
            return
        body = json.dumps({"error": error.message}).encode()
        headers = {"content-type": "application/json", "content-length": str(len(body)), **error.headers}
        encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        await self.send({"type": "http.response.start", "status": error.status, "headers": encoded})
        await self.send({"type": "http.response.body", "body": body})


def is_local(host: str) -> bool:
    """Whether a host is a loopback address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def parse_host_name(host: str) -> str:
    """Parse the host of a Host header, without its port; empty if it is invalid."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
