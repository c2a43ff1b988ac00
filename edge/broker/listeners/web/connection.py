"""One HTTP connection: uvicorn's, with bounds on how slow a client may be, and how many keep us waiting.

Without them a handful of bytes a minute would hold a socket for ever, which is all an attacker has to pay.
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
from bridge.transport.served import ServedTransport
from bridge.transport.spoken import foreign_protocol
from edge.broker.http.limits import HTTP_BODY_S_MAX, HTTP_HEAD_BYTES_MAX, HTTP_HEAD_S_MAX, HTTP_WRITE_S_MAX
from edge.broker.http.peer import KEY, HttpPeer
from edge.broker.listeners.web.framing import Framing
from edge.broker.listeners.web.places import ConnectionSlots
from edge.broker.model.remote import remote_of

_TOO_SLOW: Final = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_BAD_REQUEST: Final = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_UNAVAILABLE: Final = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_TCP_CLOSE: Final = 7
"""State of a connection that was reset, as TCP_INFO has it (linux/tcp_states.h)."""
_BODY_S: Final = HTTP_BODY_S_MAX + HTTP_HEAD_S_MAX + LOGIN_WAIT_S_MAX
"""Later than whoever reads the body says so: for bodies nobody reads."""


Upgrade: TypeAlias = Callable[[HttpPeer], asyncio.Protocol | None]
"""Makes who gets a connection of this peer that asks for WebSocket (RFC 6455), from its request on; None when there is
no room."""


ReportSpoken: TypeAlias = Callable[[str, str], None]
"""Called with the address of a client and the protocol that it speaks in place of HTTP."""


class RequestPart(enum.Enum):
    """What a client may keep us waiting for."""

    HEAD = "the head of a request"
    BODY = "its body"
    NEXT = "the next request, for as long as uvicorn keeps a connection"


class HttpConnection(H11Protocol):
    """The server's end of one connection."""

    def __init__(
        self,
        strangers: ConnectionSlots,
        users: ConnectionSlots,
        report_spoken: ReportSpoken,
        identity: str | None = None,
        **uvicorns: Any,
    ) -> None:
        """`strangers`: by address; `users`: by name. `report_spoken` is called for a client that does not speak HTTP.
        `identity`: the name in the client's verified certificate."""
        super().__init__(**uvicorns)
        self.peer = HttpPeer(identity, self._take_place)
        self.app_state = {**self.app_state, KEY: self.peer}
        self.conn: Any = Framing(HTTP_HEAD_BYTES_MAX)
        self._strangers = strangers
        self._users = users
        self._report_spoken = report_spoken
        self._first_seen = False
        """Bytes have come."""
        self._origin = ""
        self._ended = False
        self._had_all = False
        """The client's TCP had acknowledged all when the client closed its end."""
        self._half_closed = False
        """The client has closed its end, and gets an answer yet."""
        self._part: RequestPart | None = None
        """What is being waited for."""
        self._late: asyncio.TimerHandle | None = None
        """Comes when that has taken too long."""
        self._writing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        unacknowledged = partial(_unacknowledged, cast(asyncio.Transport, transport))
        self.peer.begin(transport.get_extra_info("peercert"), unacknowledged)
        if self.client is not None:
            self._origin = remote_of(self.client[0])
        self._wait_for(RequestPart.HEAD)
        self._take_place()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return  # it was shed, or was too slow
        if not self._first_seen:
            self._first_seen = True
            if spoken := foreign_protocol(data, "HTTP"):
                self._report_spoken(self._origin, spoken)
                self._close_with(_BAD_REQUEST)
                return
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._half_closed:
            self.transport.close()
        self._look()

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio keeps the transport open for True
        """Process the end of the client's stream. Keep our end open while a request is answered, except a request that
        waits for a message: a client that waits and closes has gone."""
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
        self._take_place()
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
        super().resume_writing()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """The connection is somebody else's from here on."""
        super().handle_websocket_upgrade(event)
        self._ended = True
        self._wait_for(None)
        self._take_place()

    def send_400_response(self, msg: str) -> None:
        """The request is none. What was answered already cannot be taken back."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.abort()

    def shed(self) -> None:
        """Others need the place."""
        if self.conn.their_state is h11.IDLE:
            self._close_with(_TOO_SLOW if self.conn.trailing_data[0] else b"")
        else:
            self.transport.abort()

    # --- what is waited for -----------------------------------------------------------------------------------

    def _look(self) -> None:
        """See what is waited for now."""
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
            self._take_place()

    def _wait_for(self, part: RequestPart | None) -> None:
        """It has to be whole in time; None: nothing is waited for."""
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

    def _take_place(self) -> None:
        """Something has happened: to the end of those of this origin, among strangers or users, or out of both."""
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
    """Return the bytes written that the peer's TCP has not acknowledged (tcp(7), SIOCOUTQ).

    Of a connection that was reset, or is closing, nothing is known: it counts as one byte until `connection_lost`.
    """
    descriptor = transport.get_extra_info("descriptor", -1)
    if transport.is_closing() or descriptor < 0:
        return 1
    (in_kernel,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4)))
    with socket_of(descriptor) as connection:
        reset = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _TCP_CLOSE
    return transport.get_write_buffer_size() + int(in_kernel) + reset


def upgraded_by(upgrade: Upgrade) -> Callable[..., asyncio.Protocol]:
    """What uvicorn calls for a connection that asks for WebSocket; it hands the request over again, as bytes."""

    def made(*, app_state: dict[str, Any], **_uvicorns: Any) -> asyncio.Protocol:
        return upgrade(app_state[KEY]) or _RefusedConnection()

    return made


class _RefusedConnection(asyncio.Protocol):
    """Closes a connection there is no room for."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(_UNAVAILABLE)
        transport.close()
