"""One HTTP connection of uvicorn, with timeouts for slow clients and limits on connections.

Without them a client could hold a socket forever with a few bytes a minute.
"""

from __future__ import annotations

import asyncio
import enum
import fcntl
import socket
import struct
import termios
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeAlias, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from bridge.limits import LOGIN_WAIT_S_MAX
from bridge.transport.borrowed import socket_of
from bridge.transport.peer_protocol import foreign_protocol
from bridge.transport.served import ServedTransport
from edge.broker.http.limits import HTTP_BODY_S_MAX, HTTP_HEAD_BYTES_MAX, HTTP_HEAD_S_MAX, HTTP_WRITE_S_MAX
from edge.broker.http.peer import KEY, HttpPeer
from edge.broker.listeners.web.framing import Framing
from edge.broker.listeners.web.slots import ConnectionSlots
from edge.broker.model.remote import remote_of

_TOO_SLOW: Final = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_BAD_REQUEST: Final = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_UNAVAILABLE: Final = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_TCP_CLOSE: Final = 7
"""State of a reset connection in TCP_INFO (linux/tcp_states.h)."""
_BODY_S: Final = HTTP_BODY_S_MAX + HTTP_HEAD_S_MAX + LOGIN_WAIT_S_MAX
"""Timeout for a body that no endpoint reads; longer than the timeout of an endpoint."""


Upgrade: TypeAlias = Callable[[HttpPeer], asyncio.Protocol | None]
"""Creates the protocol for a connection of this peer that upgrades to WebSocket (RFC 6455); None at the limit."""


ReportSpoken: TypeAlias = Callable[[str, str], None]
"""Called with the address of a client and the protocol that it speaks instead of HTTP."""


class RequestPart(enum.Enum):
    """Part of a request that the connection waits for."""

    HEAD = "the head of a request"
    BODY = "its body"
    NEXT = "the next request, for as long as uvicorn keeps a connection"


class HttpConnection(H11Protocol):
    """One connection of the HTTP server."""

    def __init__(
        self,
        strangers: ConnectionSlots,
        users: ConnectionSlots,
        report_spoken: ReportSpoken,
        identity: str | None = None,
        **uvicorn_arguments: Any,
    ) -> None:
        """`strangers`: slots of unauthenticated connections by address; `users`: slots by user. `report_spoken` is
        called for a client that does not speak HTTP. `identity`: name in the client's verified certificate."""
        super().__init__(**uvicorn_arguments)
        self.peer = HttpPeer(identity, self._update_slot)
        self.app_state = {**self.app_state, KEY: self.peer}
        self.conn: Any = Framing(HTTP_HEAD_BYTES_MAX)
        self._strangers = strangers
        self._users = users
        self._report_spoken = report_spoken
        self._first_seen = False
        """True after the first bytes."""
        self._origin = ""
        self._ended = False
        self._had_all = False
        """The client's TCP had acknowledged everything when the client closed its end."""
        self._half_closed = False
        """The client has closed its end and waits for an answer."""
        self._part: RequestPart | None = None
        """Part that the connection waits for."""
        self._late: asyncio.TimerHandle | None = None
        """Timeout of that part."""
        self._writing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        unacknowledged = partial(_unacknowledged, cast(asyncio.Transport, transport))
        self.peer.begin(transport.get_extra_info("peercert"), unacknowledged)
        if self.client is not None:
            self._origin = remote_of(self.client[0])
        self._wait_for(RequestPart.HEAD)
        self._update_slot()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return  # it was shed or too slow
        if not self._first_seen:
            self._first_seen = True
            if spoken := foreign_protocol(data, "HTTP"):
                self._report_spoken(self._origin, spoken)
                self._close_with(_BAD_REQUEST)
                return
        super().data_received(data)
        self._update_part()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._half_closed:
            self.transport.close()
        self._update_part()

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio keeps the transport open for True
        """Process the end of the client's stream.

        Keep our end open while a request is answered, except for a long poll: a client that waits and closes has gone.
        """
        self._had_all = not self.peer.unacknowledged()
        super().eof_received()
        answering = self.cycle is not None and not self.cycle.response_complete
        self._half_closed = answering and not self.peer.parked and self.conn.their_state is not h11.SEND_BODY
        return self._half_closed

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        ours = self.conn.our_state in (h11.MUST_CLOSE, h11.CLOSED)
        self.peer.end(received=exc is None and (ours or self._had_all))
        self._wait_for(None)
        self._update_slot()
        self.resume_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Start the timeout of a client that does not read its answer."""
        super().pause_writing()
        if self._writing is None:
            self._writing = self.loop.call_later(HTTP_WRITE_S_MAX, self.transport.abort)

    def resume_writing(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None
        super().resume_writing()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Hand the connection over to WebSocket."""
        super().handle_websocket_upgrade(event)
        self._ended = True
        self._wait_for(None)
        self._update_slot()

    def send_400_response(self, msg: str) -> None:
        """Answer an invalid request; abort if another answer has started."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.abort()

    def shutdown(self) -> None:
        """Let a request end at the stop of the server. A stream of events has no end of its own: close it now."""
        if self.peer.parked and self.conn.our_state is h11.SEND_BODY:
            self.transport.close()
        else:
            super().shutdown()

    def shed(self) -> None:
        """Close the connection, as another one needs the slot."""
        if self.conn.their_state is h11.IDLE:
            self._close_with(_TOO_SLOW if self.conn.trailing_data[0] else b"")
        else:
            self.transport.abort()

    # --- timeouts -----------------------------------------------------------------------------------------------

    def _update_part(self) -> None:
        """Determine the part that the connection waits for."""
        state = self.conn.their_state
        if state is h11.SEND_BODY:
            part: RequestPart | None = RequestPart.BODY
        elif state is h11.IDLE:
            part = RequestPart.HEAD if self.conn.trailing_data[0] or self.cycle is None else RequestPart.NEXT
        else:
            part = None
        if self.transport.is_closing():
            part = None
        if part is not self._part:
            self._wait_for(part)
            self._update_slot()

    def _wait_for(self, part: RequestPart | None) -> None:
        """Start the timeout of a part; None: no timeout."""
        self._part = part
        if self._late is not None:
            self._late.cancel()
            self._late = None
        if part is RequestPart.HEAD:
            self._late = self.loop.call_later(HTTP_HEAD_S_MAX, self._head_late)
        elif part is RequestPart.BODY:
            self._late = self.loop.call_later(_BODY_S, self.transport.abort)

    def _head_late(self) -> None:
        self._close_with(_TOO_SLOW)

    def _close_with(self, answer: bytes) -> None:
        self.transport.write(answer)
        self.transport.close()

    def _update_slot(self) -> None:
        """Take a slot as an unauthenticated connection or a user's, or leave both. Marks it as active."""
        user = self.peer.user
        out = self._ended or self.peer.parked
        if user or out:
            self._strangers.leave(self)
        if out:
            self._users.leave(self)
        elif user:
            if isinstance(self.transport, ServedTransport):
                self.transport.identified()
            self._users.take(self, user)
        else:
            self._strangers.take(self, self._origin)


def _unacknowledged(transport: asyncio.Transport) -> int:
    """Return the written bytes that the peer's TCP has not acknowledged (tcp(7), SIOCOUTQ).

    For a connection that was reset or is closing it is unknown: return 1 until `connection_lost`.
    """
    descriptor = transport.get_extra_info("descriptor", -1)
    if transport.is_closing() or descriptor < 0:
        return 1
    (in_kernel,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4)))
    with socket_of(descriptor) as connection:
        reset = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _TCP_CLOSE
    return transport.get_write_buffer_size() + int(in_kernel) + reset


def upgraded_by(upgrade: Upgrade) -> Callable[..., asyncio.Protocol]:
    """Return the function that uvicorn calls for a WebSocket upgrade; it passes the request again as bytes."""

    def create(*, app_state: dict[str, Any], **_uvicorn_arguments: Any) -> asyncio.Protocol:
        return upgrade(app_state[KEY]) or _RefusedConnection()

    return create


class _RefusedConnection(asyncio.Protocol):
    """Answers 503 to a connection that exceeds the limit."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(_UNAVAILABLE)
        transport.close()
