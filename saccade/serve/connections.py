"""Limits for connections, which uvicorn lacks: slow headers and readers, many connections, and answers sent early."""

import asyncio
import json
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from saccade.serve.clients import get_client_key
from saccade.serve.limits import Limits

COMPLETE = "saccade.complete"  # key of a scope: its request was accepted and has arrived
TOO_MANY = json.dumps({"error": "too many connections from this address; close some, and try again in 2 s"}).encode()
TOO_MANY_RESPONSE = (
    b"HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json\r\nRetry-After: 2\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(TOO_MANY), TOO_MANY)
)


class ConnectionTable:
    """The open connections by client; where they are too many, the oldest without a complete request is closed."""

    def __init__(self, limits: Limits) -> None:
        self.limits, self.count = limits, 0
        self.by_client: dict[str, dict[LimitedProtocol, None]] = {}  # in the order of arrival

    def add(self, connection: "LimitedProtocol") -> bool:
        """Add a connection; False if it has to be refused, since all others are being answered."""
        own = self.by_client.get(connection.client_key, {})
        if len(own) >= self.limits.max_client_connections:
            return self._replace(own, connection)
        if self.count >= self.limits.max_connections:
            return self._replace(max(self.by_client.values(), key=len), connection)
        self._insert(connection)
        return True

    def remove(self, connection: "LimitedProtocol") -> None:
        own = self.by_client.get(connection.client_key, {})
        if connection in own:
            del own[connection]
            self.count -= 1
            if not own:
                del self.by_client[connection.client_key]

    def _replace(self, crowd: "dict[LimitedProtocol, None]", connection: "LimitedProtocol") -> bool:
        oldest = next((each for each in crowd if not each.is_being_answered), None)
        if oldest is None:
            return False
        self.remove(oldest)
        oldest.transport.abort()
        self._insert(connection)
        return True

    def _insert(self, connection: "LimitedProtocol") -> None:
        self.by_client.setdefault(connection.client_key, {})[connection] = None
        self.count += 1


class LingeringTransport:
    """A transport that, when closed while the client is still sending, reads and discards for a while.

    A connection that is closed with unread data is reset, and the client would lose the answer that explains why.
    """

    def __init__(self, transport: asyncio.Transport, protocol: "LimitedProtocol") -> None:
        self.transport, self.protocol = transport, protocol
        self.lingering = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transport, name)

    def is_closing(self) -> bool:
        return self.lingering or self.transport.is_closing()

    def close(self) -> None:
        is_sending = self.protocol.conn.their_state in (h11.SEND_BODY, h11.ERROR)
        if self.is_closing() or not is_sending:
            self.transport.close()
        else:
            self.linger()

    def linger(self) -> None:
        self.lingering = True
        self.transport.write_eof()
        self.transport.resume_reading()
        self.protocol.start_lingering()


class LimitedProtocol(H11Protocol):
    """uvicorn's protocol with limits; see `build_limited_protocol`."""

    limits: Limits
    table: ConnectionTable
    client_key = ""
    header_timer: asyncio.TimerHandle | None = None
    answer_timer: asyncio.TimerHandle | None = None
    linger_timer: asyncio.TimerHandle | None = None
    discarded = 0  # bytes

    @property
    def is_being_answered(self) -> bool:
        """Whether a request was accepted and has arrived, and its answer is not yet complete."""
        return self.cycle is not None and not self.cycle.response_complete and COMPLETE in self.cycle.scope

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        lingering = LingeringTransport(transport, self)
        super().connection_made(lingering)  # type: ignore[arg-type]
        self.client_key = get_client_key(self.client[0] if self.client else "")
        if self.table.add(self):
            self._watch_headers()
        else:
            transport.write(TOO_MANY_RESPONSE)
            lingering.linger()

    def data_received(self, data: bytes) -> None:
        if self.linger_timer is not None:
            self.discarded += len(data)
            if self.discarded > self.limits.max_discarded_bytes:
                self.transport.abort()
            return
        super().data_received(data)
        self._watch_headers()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self.table.remove(self)
        self.header_timer = cancel_timer(self.header_timer)
        self.answer_timer = cancel_timer(self.answer_timer)
        self.linger_timer = cancel_timer(self.linger_timer)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self.answer_timer = self.loop.call_later(self.limits.client_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self.answer_timer = cancel_timer(self.answer_timer)

    def shutdown(self) -> None:
        """End the connection when the server stops: after its answer, or at once if its body has not arrived."""
        if self.conn.their_state is h11.SEND_BODY and not self.is_being_answered:
            self.transport.abort()
        else:
            super().shutdown()

    def start_lingering(self) -> None:
        """Discard what arrives, until the client closes the connection or has taken too long."""
        self.linger_timer = self.loop.call_later(self.limits.client_timeout, self.transport.abort)

    def _watch_headers(self) -> None:
        """Start or cancel the header timer, which runs from the start of a connection or request to its last header.

        Between two requests, uvicorn closes the connection after `Limits.idle_timeout`; the Guard times bodies.
        """
        has_started = self.cycle is None or bool(self.conn.trailing_data[0])
        if self.conn.their_state is h11.IDLE and has_started:
            if self.header_timer is None:
                self.header_timer = self.loop.call_later(self.limits.header_timeout, self.transport.abort)
        else:
            self.header_timer = cancel_timer(self.header_timer)


def build_limited_protocol(server_limits: Limits) -> type[asyncio.Protocol]:
    """Build the protocol class of one server, whose connections count together."""

    class ServerProtocol(LimitedProtocol):
        limits = server_limits
        table = ConnectionTable(server_limits)

    return ServerProtocol


def cancel_timer(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    """Cancel a timer and return None, its new value."""
    if timer is not None:
        timer.cancel()
    return None
