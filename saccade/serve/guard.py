"""What stands before the API: who may ask, how much, and what every answer carries."""

import hmac
import ipaddress
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from saccade.serve.limits import Limits, Refused
from saccade.serve.metrics import Metrics

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

GUARDED = ("/v1/", "/metrics")  # what needs the token; the page, its files and /health do not
CARRIED = {
    "content-security-policy": "default-src 'self'; img-src 'self' data:; media-src data:; object-src 'none'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
BROKEN = "something went wrong in the server; its log says more"
log = logging.getLogger("saccade.serve")


class Guard:
    """An ASGI application around another one."""

    def __init__(self, app: App, *, token: str, limits: Limits, metrics: Metrics) -> None:
        self.app, self.token, self.limits, self.metrics = app, token, limits, metrics
        self.in_flight, self.bytes = 0, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        answer = Answer(send)
        begin, room = time.perf_counter(), 0
        self._flight(1)
        try:
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            self._check_sender(headers)
            self._check_token(scope["path"], headers)
            room = self._room(headers)
            again = await self._read(receive)
            if again is not None:
                begin = time.perf_counter()  # how long a client takes to send is not ours
                await self.app(scope, again, answer.send)
        except Refused as refused:
            await answer.refuse(refused)
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            await answer.refuse(Refused(500, BROKEN))
        finally:
            self._flight(-1)
            self.bytes -= room
            self._note(scope, answer.status, time.perf_counter() - begin)

    def _check_sender(self, headers: Mapping[str, str]) -> None:
        """Without a token the server is for this machine: not for pages from elsewhere that its browser has open."""
        if self.token:
            return
        host, origin = headers.get("host", ""), headers.get("origin")
        if not is_local(host_name(host)):
            raise Refused(421, f"expected localhost or 127.0.0.1 as Host, got {host[:60]!r}; others need a token")
        if origin is not None and origin.partition("://")[2] != host:
            raise Refused(403, f"pages from elsewhere may not ask this server, got Origin {origin[:60]!r}")

    def _check_token(self, path: str, headers: Mapping[str, str]) -> None:
        if not self.token or not path.startswith(GUARDED):
            return
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self.token.encode()):
            problem = "the token is wrong" if given else "a token is needed"
            raise Refused(
                401, f"{problem}; send the header Authorization: Bearer TOKEN", {"www-authenticate": "Bearer"}
            )

    def _room(self, headers: Mapping[str, str]) -> int:
        """Takes as many bytes of what all requests may have as the body says of itself, or may have at most."""
        most, said = self.limits.body, headers.get("content-length", "")
        if said.isdigit() and int(said) > most:
            raise Refused(413, f"a request has at most {most} bytes, got {said}; send less at a time")
        room = int(said) if said.isdigit() else most if "transfer-encoding" in headers else 0
        if self.bytes + room > self.limits.bodies:
            raise Refused(429, "too much is being sent by all clients together; ask again in 2 s", {"retry-after": "2"})
        self.bytes += room
        return room

    async def _read(self, receive: Receive) -> Receive | None:
        """The whole body, to be received once more; None where the client has gone before its end."""
        most, body, more = self.limits.body, bytearray(), True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return None
            body += message.get("body", b"")
            if len(body) > most:
                raise Refused(413, f"a request has at most {most} bytes, got more; send less at a time")
            more = message.get("more_body", False)
        whole: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def again() -> Message:
            return whole.pop() if whole else await receive()

        return again

    def _flight(self, change: int) -> None:
        self.in_flight += change
        self.metrics.gauge("saccade_requests_in_flight", self.in_flight, {})

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        route = str(getattr(scope.get("route"), "path", "other"))  # never a path that a client made up
        self.metrics.count("saccade_requests_total", {"route": route, "status": str(status or "none")})
        self.metrics.observe("saccade_request_seconds", seconds, {"route": route})


class Answer:
    """What is sent back, with the headers that every answer carries."""

    def __init__(self, send: Send) -> None:
        self.out, self.status = send, 0

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            carried = [(name.encode(), value.encode()) for name, value in CARRIED.items()]
            message = {**message, "headers": [*message.get("headers", []), *carried]}
        await self.out(message)

    async def refuse(self, refused: Refused) -> None:
        """An error as JSON, unless an answer has begun already."""
        if self.status:
            return
        body = json.dumps({"error": refused.message}).encode()
        headers = {"content-type": "application/json", "content-length": str(len(body)), **refused.headers}
        listed = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        await self.send({"type": "http.response.start", "status": refused.status, "headers": listed})
        await self.send({"type": "http.response.body", "body": body})


def is_local(host: str) -> bool:
    """Whether an address is one of this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def host_name(host: str) -> str:
    """The name in a Host header, without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
