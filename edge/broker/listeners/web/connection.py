"""One HTTP connection: uvicorn's, with bounds on how slow a client may be, and how many keep us waiting.

Without them a handful of bytes a minute would hold a socket for ever, which is all an attacker has to pay.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from typing import Any, Final, TypeAlias, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from bridge.transport.served import ServedTransport
from edge.broker.http.limits import HTTP_BODY_S_MAX, HTTP_HEAD_BYTES_MAX, HTTP_HEAD_S_MAX, HTTP_WRITE_S_MAX
from edge.broker.http.peer import KEY, Peer
from edge.broker.listeners.web.framing import Framing
from edge.broker.listeners.web.places import Places
from edge.broker.model.remote import remote_of

_TOO_SLOW: Final = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_UNAVAILABLE: Final = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_BODY_S: Final = HTTP_BODY_S_MAX + HTTP_HEAD_S_MAX
"""Later than whoever reads the body says so: for bodies nobody reads."""


Upgrade: TypeAlias = Callable[[Peer], asyncio.Protocol | None]
"""Makes who gets a connection of this peer that asks for WebSocket (RFC 6455), from its request on; None when there is
no room."""


class Part(enum.Enum):
    """What a client may keep us waiting for."""

    HEAD = "the head of a request"
    BODY = "its body"
    NEXT = "the next request, for as long as uvicorn keeps a connection"


class HttpConnection(H11Protocol):
    """The server's end of one connection."""

    def __init__(self, strangers: Places, users: Places, identity: str | None = None, **uvicorns: Any) -> None:
        """`strangers`: by address; `users`: by name. `identity`: the name in the client's verified certificate."""
        super().__init__(**uvicorns)
        self.peer = Peer(identity, self._take_place)
        self.app_state = {**self.app_state, KEY: self.peer}
        self.conn: Any = Framing(HTTP_HEAD_BYTES_MAX)
        self._strangers = strangers
        self._users = users
        self._origin = ""
        self._ended = False
        self._part: Part | None = None
        """What is being waited for."""
        self._late: asyncio.TimerHandle | None = None
        """Comes when that has taken too long."""
        self._writing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        self.peer.certificate = transport.get_extra_info("peercert")
        if self.client is not None:
            self._origin = remote_of(self.client[0])
        self._wait_for(Part.HEAD)
        self._take_place()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return  # it was shed, or was too slow
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
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
            part: Part | None = Part.BODY
        elif state is h11.IDLE:
            part = Part.HEAD if self.conn.trailing_data[0] or self.cycle is None else Part.NEXT
        else:
            part = None
        if self.transport.is_closing():
            part = None
        if part is not self._part:
            self._wait_for(part)
            self._take_place()

    def _wait_for(self, part: Part | None) -> None:
        """It has to be whole in time; None: nothing is waited for."""
        self._part = part
        if self._late is not None:
            self._late.cancel()
            self._late = None
        if part is Part.HEAD:
            self._late = self.loop.call_later(HTTP_HEAD_S_MAX, self._head_late)
        elif part is Part.BODY:
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


def upgraded_by(upgrade: Upgrade) -> Callable[..., asyncio.Protocol]:
    """What uvicorn calls for a connection that asks for WebSocket; it hands the request over again, as bytes."""

    def made(*, app_state: dict[str, Any], **_uvicorns: Any) -> asyncio.Protocol:
        return upgrade(app_state[KEY]) or _NoRoom()

    return made


class _NoRoom(asyncio.Protocol):
    """Closes a connection there is no room for."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(_UNAVAILABLE)
        transport.close()
