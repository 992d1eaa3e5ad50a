"""ASGI middleware in front of the API: token, origin and size checks, security headers, and request metrics."""

import asyncio
import ipaddress
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from saccade.serve.clients import BodyRoom, TokenCheck, Transfer, build_room_error, get_client_key
from saccade.serve.connections import COMPLETE
from saccade.serve.limits import Limits, RequestError, shorten_message
from saccade.serve.metrics import Metrics

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# Need no token, take no body and tell nothing about the models; everything else, unknown paths too, needs the token.
PUBLIC_PATHS, PUBLIC_FOLDER = ("/", "/docs", "/health"), "/static/"
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
        self.app, self.limits, self.metrics = app, limits, metrics
        self.token_check = TokenCheck(token, limits.max_token_delay) if token else None
        self.in_flight, self.room = 0, BodyRoom(limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        response = ResponseSender(send, has_unread_body=has_body(headers))
        transfer = self.room.open(get_client_key((scope.get("client") or ("", 0))[0]))
        start = time.perf_counter()
        self._count_in_flight(1)
        try:
            self._check_host_and_origin(headers)
            if is_public(scope["path"]):
                receive_body: Receive | None = build_receive(b"", receive)
            else:
                if self.token_check is not None:
                    await self.token_check.check(transfer.client, headers.get("authorization", ""))
                self._check_length(headers)
                receive_body = await self._read_body(receive, transfer)
                response.has_unread_body = False
            if receive_body is not None:
                scope[COMPLETE] = True
                start = time.perf_counter()  # the metric excludes the time that a client takes to send
                await self.app(scope, receive_body, response.send)
        except RequestError as error:
            self.room.close(transfer)  # not only when the client has read the answer
            await response.send_error(error)
        except Exception:
            logger.exception("%s %s failed", scope["method"], scope["path"])
            await response.send_error(RequestError(500, INTERNAL_ERROR))
        finally:
            self._count_in_flight(-1)
            self.room.close(transfer)
            self._record_metrics(scope, response.status, time.perf_counter() - start)

    def _check_host_and_origin(self, headers: Mapping[str, str]) -> None:
        """Without a token, accept only local requests, and no cross-origin ones from web pages in a local browser."""
        if self.token_check is not None:
            return
        host, origin = headers.get("host", ""), headers.get("origin")
        if not is_local(parse_host_name(host)):
            raise RequestError(
                421, f"expected localhost or 127.0.0.1 as Host, got {host[:60]!r}; start the server with a token"
            )
        if origin is not None and origin.partition("://")[2] != host:
            raise RequestError(403, f"cross-origin requests need a token, got Origin {origin[:60]!r}")

    def _check_length(self, headers: Mapping[str, str]) -> None:
        max_bytes, length = self.limits.max_body_bytes, headers.get("content-length", "")
        if length.isdigit() and int(length) > max_bytes:
            raise RequestError(413, f"a request has at most {max_bytes} bytes, got {length}; send less at a time")

    async def _read_body(self, receive: Receive, transfer: Transfer) -> Receive | None:
        """Read the whole body and return a function that receives it again; None if the client disconnected."""
        max_bytes, body, more = self.limits.max_body_bytes, bytearray(), True
        try:
            async with asyncio.timeout(self.limits.client_timeout) as deadline:
                transfer.deadline, until = deadline, deadline.when() or 0.0
                while more:
                    message = await receive()
                    if message["type"] != "http.request":
                        return None
                    body += message.get("body", b"")
                    if len(body) > max_bytes:
                        got = "got more; send less at a time"
                        raise RequestError(413, f"a request has at most {max_bytes} bytes, {got}")
                    self.room.add(transfer, len(body) - transfer.received)
                    more = message.get("more_body", False)
                    if more:
                        deadline.reschedule(until + len(body) / self.limits.min_body_rate)
        except TimeoutError:
            if transfer.dropped:
                raise build_room_error() from None
            seconds = self.limits.client_timeout
            raise RequestError(
                408, f"the body has not arrived within {seconds:g} s; send less, or send it faster"
            ) from None
        finally:
            transfer.deadline = None
        transfer.complete = True
        return build_receive(bytes(body), receive)

    def _count_in_flight(self, change: int) -> None:
        self.in_flight += change
        self.metrics.requests_in_flight.set(self.in_flight)

    def _record_metrics(self, scope: Scope, status: int, seconds: float) -> None:
        route = str(getattr(scope.get("route"), "path", "other"))  # never a path chosen by a client: labels must be few
        self.metrics.requests.labels(route, status or "none").inc()
        self.metrics.request_seconds.labels(route).observe(seconds)


class ResponseSender:
    """Sends a response with the security headers added; it ends the connection if the body was not read."""

    def __init__(self, send: Send, *, has_unread_body: bool) -> None:
        self.downstream, self.has_unread_body, self.status = send, has_unread_body, 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            security = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]
            close = [(b"connection", b"close")] if self.has_unread_body else []
            message = {**message, "headers": [*message.get("headers", []), *security, *close]}
        await self.downstream(message)

    async def send_error(self, error: RequestError) -> None:
        """Send an error as JSON, unless a response has started already."""
        if self.status:
            return
        body = json.dumps({"error": shorten_message(error.message)}).encode()
        headers = {"content-type": "application/json", "content-length": str(len(body)), **error.headers}
        encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        await self.send({"type": "http.response.start", "status": error.status, "headers": encoded})
        await self.send({"type": "http.response.body", "body": body})


def build_receive(body: bytes, receive: Receive) -> Receive:
    """Build a function that receives a body that was read already, and then what follows it."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_body() -> Message:
        return messages.pop() if messages else await receive()

    return receive_body


def is_public(path: str) -> bool:
    """Whether a path needs no token."""
    return path in PUBLIC_PATHS or path.startswith(PUBLIC_FOLDER)


def has_body(headers: Mapping[str, str]) -> bool:
    return "transfer-encoding" in headers or headers.get("content-length", "0") != "0"


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
