"""Timeouts for slow clients, which uvicorn lacks: it waits without limit for headers, bodies and readers."""

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


def build_protocol_with_timeouts(seconds: float) -> type[asyncio.Protocol]:
    """Build a protocol that closes a connection whose client takes longer than `seconds` to send or to receive."""

    class TimeoutProtocol(H11Protocol):
        request_timer: asyncio.TimerHandle | None = None
        answer_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._watch_request()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch_request()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._watch_request()

        def connection_lost(self, exc: Exception | None) -> None:
            self.request_timer = cancel_timer(self.request_timer)
            self.answer_timer = cancel_timer(self.answer_timer)
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            super().pause_writing()
            self.answer_timer = self.loop.call_later(seconds, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            self.answer_timer = cancel_timer(self.answer_timer)

        def _watch_request(self) -> None:
            """Start or cancel the request timer, which runs from the start of a connection or request to its last byte.

            Between two requests, uvicorn's own keep-alive timeout applies.
            """
            has_started = self.conn.their_state is h11.SEND_BODY or bool(self.conn.trailing_data[0])
            if self.conn.their_state in (h11.IDLE, h11.SEND_BODY) and (has_started or self.cycle is None):
                if self.request_timer is None:
                    self.request_timer = self.loop.call_later(seconds, self.transport.abort)
            else:
                self.request_timer = cancel_timer(self.request_timer)

    return TimeoutProtocol


def cancel_timer(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    """Cancel a timer and return None, its new value."""
    if timer is not None:
        timer.cancel()
    return None
