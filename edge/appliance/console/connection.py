"""One HTTP connection: uvicorn's, with bounds on how slow a client may be, and how many there are.

Without them a handful of bytes a minute would hold a socket for ever, which is all an attacker has to pay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from edge.broker.limits import HTTP_BODY_S_MAX, HTTP_CONNECTIONS_MAX, HTTP_HEAD_S_MAX, HTTP_WRITE_S_MAX

_TOO_SLOW: Final = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_FULL: Final = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 5\r\nContent-Length: 0\r\n\r\n"
_BODY_S: Final = HTTP_BODY_S_MAX + HTTP_HEAD_S_MAX
"""Later than whoever reads the body says so: for bodies nobody reads."""


class HttpConnection(H11Protocol):
    """The server's end of one connection."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._reading: tuple[object, asyncio.TimerHandle] | None = None
        """What is being waited for, and until when."""
        self._writing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if len(self.connections) >= HTTP_CONNECTIONS_MAX:
            self._close_with(_FULL)
            return
        super().connection_made(self.transport)
        self._expect(h11.IDLE)

    def data_received(self, data: bytes) -> None:
        if self.flow is None or self.transport.is_closing():
            return  # it was refused
        super().data_received(data)
        state = self.conn.their_state
        partly = state is h11.SEND_BODY or (state is h11.IDLE and bool(self.conn.trailing_data[0]))
        self._expect(state if partly else None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect(None)
        self.resume_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client does not read what it asked for."""
        super().pause_writing()
        if self._writing is None:
            self._writing = self.loop.call_later(HTTP_WRITE_S_MAX, self.transport.abort)

    def resume_writing(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
        if self.flow is not None:
            super().resume_writing()

    def _expect(self, what: object) -> None:
        """The head (`h11.IDLE`) or the body (`h11.SEND_BODY`) of a request has to be whole in time; None: nothing."""
        if self._reading is not None:
            if self._reading[0] is what:
                return
            self._reading[1].cancel()
            self._reading = None
        if what is not None:
            act: Callable[[], None] = self._head_late if what is h11.IDLE else self.transport.abort
            seconds = HTTP_HEAD_S_MAX if what is h11.IDLE else _BODY_S
            self._reading = (what, self.loop.call_later(seconds, act))

    def _head_late(self) -> None:
        self._close_with(_TOO_SLOW)

    def _close_with(self, answer: bytes) -> None:
        self.transport.write(answer)
        self.transport.close()
