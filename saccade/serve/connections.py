"""Connections that are cut where a client is too slow: uvicorn waits for headers, bodies and readers for ever."""

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol


def patient(seconds: float) -> type[asyncio.Protocol]:
    """Connections whose clients have so many seconds for a whole request, and to take what was sent."""

    class Patient(H11Protocol):
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
            self.request_timer = stopped(self.request_timer)
            self.answer_timer = stopped(self.answer_timer)
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            super().pause_writing()
            self.answer_timer = self.loop.call_later(seconds, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            self.answer_timer = stopped(self.answer_timer)

        def _watch_request(self) -> None:
            """The clock runs from the first byte of a request, or the beginning of a connection, to its last byte.

            Between two requests, uvicorn's own clock for idle connections does.
            """
            begun = self.conn.their_state is h11.SEND_BODY or bool(self.conn.trailing_data[0])
            if self.conn.their_state in (h11.IDLE, h11.SEND_BODY) and (begun or self.cycle is None):
                if self.request_timer is None:
                    self.request_timer = self.loop.call_later(seconds, self.transport.abort)
            else:
                self.request_timer = stopped(self.request_timer)

    return Patient


def stopped(timer: asyncio.TimerHandle | None) -> asyncio.TimerHandle | None:
    """Cancels a timer: after that, there is none."""
    if timer is not None:
        timer.cancel()
    return None
