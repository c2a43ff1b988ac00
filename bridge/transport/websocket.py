"""WebSocket (RFC 6455) around another machine: MQTT (MQTT 5 section 6) or AMQP (its WebSocket binding).

The inner machine sees a stream of bytes. Frames are not units of its protocol: one of our messages has the output of
one turn, and a message of the peer may contain part of a packet or several [MQTT-6.0.0-2]. This module knows no socket
and no clock; wsproto handles HTTP and framing.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Final

from wsproto import ConnectionType, WSConnection, events
from wsproto.connection import ConnectionState
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from bridge.transport.connection import ConnectionMachine
from bridge.transport.peer_protocol import foreign_protocol

MQTT: Final = ("mqtt", "mqttv3.1")
"""Subprotocols of MQTT [MQTT-6.0.0-3]; MQTT 3.1 clients in browsers request the second."""
AMQP: Final = ("amqp",)

SEND_BYTES_MAX: Final = 64 * 1024
"""Largest message we send: some libraries refuse a message of 1 MiB, and all of them buffer complete messages."""

FRAMES_AT_ONCE: Final = 64
"""Frames that one call parses: 10 us each, and a frame may have only two bytes."""

HANDSHAKE_BYTES_MAX: Final = 16 * 1024
"""Request line and headers; cookies of a browser are a few KiB."""

Objection = Callable[[str, str | None], str | None]
"""(Host, Origin or None) -> reason to refuse the client; None: it may connect."""


class WebSocketPhase(enum.Enum):
    """Phase of the WebSocket; the inner machine has its own."""

    HANDSHAKE = "waiting for the HTTP request"
    OPEN = "open"
    CLOSED = "closed"


class Framed:
    """Base of both roles: a `bridge.transport.connection.ConnectionMachine` around another one."""

    def __init__(self, inner: ConnectionMachine, end: ConnectionType, message_bytes_max: int | None) -> None:
        """`message_bytes_max`: limit of one message of the peer; None: none, as content is passed on at once."""
        self.inner = inner
        self._message_bytes_max = message_bytes_max
        self._socket = WSConnection(end)
        self._phase = WebSocketPhase.HANDSHAKE
        self._output: list[bytes] = []
        self._spoken = ""
        self._handshake_bytes = 0
        self._message_bytes = 0
        """Received bytes of the current message."""
        self._frames_left = False
        """There may be more frames than one call parses."""
        self._unframed_bytes = 0
        """Approximate bytes of those frames."""
        self._close_code: int | None = None
        """Close code of the WebSocket once the inner machine has handled all earlier bytes."""

    def replace_inner(self, inner: ConnectionMachine) -> None:
        """Replace the inner machine. Allowed only between two reads."""
        self.inner = inner

    # --- ConnectionMachine ------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self._phase is WebSocketPhase.CLOSED

    @property
    def deadline(self) -> float | None:
        return None if self._phase is WebSocketPhase.CLOSED else self.inner.deadline

    @property
    def held_bytes(self) -> int:
        held = self.inner.held_bytes + self._unframed_bytes
        return held + self._handshake_bytes if self._phase is WebSocketPhase.HANDSHAKE else held

    @property
    def more(self) -> bool:
        return self._phase is not WebSocketPhase.CLOSED and (
            self._frames_left or self._close_code is not None or self.inner.more
        )

    @property
    def spoken(self) -> str:
        return self._spoken or self.inner.spoken

    def shed(self) -> Sequence[Any]:
        happened = self.inner.shed()
        if self._phase is WebSocketPhase.HANDSHAKE:
            self._phase = WebSocketPhase.CLOSED
        return happened

    def receive_data(self, data: bytes, now: float) -> Sequence[Any]:
        if self._phase is WebSocketPhase.CLOSED:
            return ()
        if self._close_code is not None:
            return self._end((), self._close_code, now)
        if not data and self._phase is WebSocketPhase.OPEN and (self.inner.more or not self._frames_left):
            return self.inner.receive_data(data, now)  # continue, or a call of `ConnectionDriver.wake`
        if self._phase is WebSocketPhase.HANDSHAKE:
            self._handshake_bytes += len(data)
            if self._handshake_bytes > HANDSHAKE_BYTES_MAX:
                return self._too_large(now)
        try:
            if data:
                self._unframed_bytes += len(data)
                self._socket.receive_data(data)
            return self._take(now)
        except (RemoteProtocolError, UnicodeError) as error:  # wsproto raises the second for host names and headers
            shaking = self._phase is WebSocketPhase.HANDSHAKE
            return self._no_handshake(error, now) if shaking else self._end([], CloseReason.PROTOCOL_ERROR, now)

    def receive_eof(self, now: float) -> Sequence[Any]:
        self._phase = WebSocketPhase.CLOSED
        return self.inner.receive_eof(now)

    def handle_timeout(self, now: float, *, listening: bool = True) -> Sequence[Any]:
        return () if self._phase is WebSocketPhase.CLOSED else self.inner.handle_timeout(now, listening=listening)

    @property
    def has_output(self) -> bool:
        return True  # output of the inner machine, a close frame, or the answer to a ping

    def data_to_send(self) -> bytes:
        if self._phase is WebSocketPhase.OPEN:
            data = self.inner.data_to_send()
            for start in range(0, len(data), SEND_BYTES_MAX):
                self._send(events.BytesMessage(data[start : start + SEND_BYTES_MAX]))
            if self.inner.closed:
                self._close(CloseReason.NORMAL_CLOSURE)
        output, self._output = self._output, []
        return output[0] if len(output) == 1 else b"".join(output)

    # --- inside: frames ---------------------------------------------------------------------------------------

    def _take(self, now: float) -> Sequence[Any]:
        """Parse frames, and give all their data to the inner machine in one call."""
        received: list[bytes] = []
        ping: bytes | None = None
        happened: list[Any] = []
        taken = 0
        self._frames_left = False
        for event in islice(self._socket.events(), FRAMES_AT_ONCE):
            taken += 1
            if isinstance(event, events.BytesMessage):
                self._message_bytes += len(event.data)
                if self._message_bytes_max is not None and self._message_bytes > self._message_bytes_max:
                    happened += self._end(received, CloseReason.MESSAGE_TOO_BIG, now)
                    break
                received.append(bytes(event.data))
                if event.message_finished:
                    self._message_bytes = 0
            elif isinstance(event, events.Ping):
                ping = bytes(event.payload)  # only the last one needs an answer (section 5.5.3)
            elif (code := _close_code(event)) is not None:
                happened += self._end(received, code, now)
                break
            elif self._phase is WebSocketPhase.HANDSHAKE:
                happened += self._shake_hands(event, now)
                if self.closed:
                    break
        self._frames_left = taken == FRAMES_AT_ONCE
        if not self._frames_left:
            self._unframed_bytes = 0
        if self._phase is WebSocketPhase.OPEN and self._close_code is None:
            if ping is not None:
                self._send(events.Pong(ping))
            if received:
                happened += self.inner.receive_data(b"".join(received), now)
        return happened

    def _end(self, received: Sequence[bytes], code: int, now: float) -> list[Any]:
        """Pass on earlier data, answer with a close frame, and end the inner machine."""
        happened: list[Any] = []
        if received or self.inner.more:
            happened += self.inner.receive_data(b"".join(received), now)
        if self.inner.more:
            self._close_code = code
            return happened
        # a code that must not be in a frame (1005: no code) is answered with a normal closure (section 7.4.1)
        sendable = code if code in _SENDABLE or 3000 <= code < 5000 else CloseReason.NORMAL_CLOSURE
        self._close(sendable)
        return [*happened, *self.inner.receive_eof(now)]

    def _close(self, code: int) -> None:
        if self._socket.state in (ConnectionState.OPEN, ConnectionState.REMOTE_CLOSING):
            self._send(events.CloseConnection(code))
        self._phase = WebSocketPhase.CLOSED

    def _send(self, event: events.Event) -> None:
        try:
            self._output.append(self._socket.send(event))
        except LocalProtocolError:  # the peer has closed
            self._phase = WebSocketPhase.CLOSED

    # --- for both roles: handshake (RFC 6455 section 4) -------------------------------------------------------

    def _shake_hands(self, event: events.Event, now: float) -> Sequence[Any]:
        """Handle an event of the handshake, which may change `_phase`."""
        raise NotImplementedError

    def _no_handshake(self, error: Exception, now: float) -> Sequence[Any]:
        """Handle bytes that are not a valid handshake."""
        raise NotImplementedError

    def _too_large(self, now: float) -> Sequence[Any]:
        """Handle a handshake larger than `HANDSHAKE_BYTES_MAX`."""
        raise NotImplementedError


class WebSocketConnection(Framed):
    """Server role."""

    def __init__(
        self,
        inner: ConnectionMachine,
        subprotocols: Sequence[str],
        *,
        message_bytes_max: int,
        objection: Objection = lambda host, origin: None,
    ) -> None:
        """The deadline of `inner` also limits the time of the handshake.

        `subprotocols`: the client has to request one of them; `message_bytes_max`: limit of one message of the peer.
        `objection` checks the request's headers, as a page of another site may connect through its visitor's browser.
        """
        super().__init__(inner, ConnectionType.SERVER, message_bytes_max)
        self.path = ""
        """Path of the client's request; empty before."""
        self._subprotocols = tuple(subprotocols)
        self._objection = objection

    def receive_data(self, data: bytes, now: float) -> Sequence[Any]:
        if data and self._phase is WebSocketPhase.HANDSHAKE and not self._handshake_bytes:
            self._spoken = foreign_protocol(data, "HTTP")
            if self._spoken:
                return self._refuse(400, f"this port speaks WebSocket, not {self._spoken}", now)
        return super().receive_data(data, now)

    def handle_timeout(self, now: float, *, listening: bool = True) -> Sequence[Any]:
        deadline = self.inner.deadline
        happened = super().handle_timeout(now, listening=listening)
        if self._phase is WebSocketPhase.HANDSHAKE and deadline is not None and now >= deadline:
            return [*happened, *self._refuse(408, "no request in time", now)]
        return happened

    # --- inside: handshake (RFC 6455 section 4.2) -------------------------------------------------------------

    def _shake_hands(self, event: events.Event, now: float) -> Sequence[Any]:
        return self._asked(event, now) if isinstance(event, events.Request) else ()

    def _too_large(self, now: float) -> Sequence[Any]:
        return self._refuse(431, "the request is too large", now)

    def _asked(self, request: events.Request, now: float) -> Sequence[Any]:
        headers = {bytes(name).lower(): bytes(value) for name, value in request.extra_headers}
        chosen = next((name for name in request.subprotocols if name in self._subprotocols), None)
        if chosen is None:
            wanted = " or ".join(self._subprotocols)
            return self._refuse(400, f"unknown subprotocol; request {wanted}", now)
        origin = headers.get(b"origin")
        objection = self._objection(request.host, origin.decode("latin-1") if origin is not None else None)
        if objection is not None:
            return self._refuse(403, objection, now)
        self.path = request.target
        self._send(events.AcceptConnection(subprotocol=chosen))
        self._phase = WebSocketPhase.OPEN
        return ()

    def _no_handshake(self, error: Exception, now: float) -> Sequence[Any]:
        """Refuse a request that is not for a WebSocket, or not HTTP."""
        hint = getattr(error, "event_hint", None)
        version = isinstance(hint, events.RejectConnection) and hint.status_code == 426
        if "'Connection" in str(error) or "'Upgrade" in str(error) or version:
            wanted = " or ".join(self._subprotocols)
            return self._refuse(426, f"this port speaks WebSocket, version 13, subprotocol {wanted}", now)
        return self._refuse(400, f"not a WebSocket request: {error}", now)

    def _refuse(self, status: int, why: str, now: float) -> Sequence[Any]:
        """Answer in HTTP and close. Encoded here, as wsproto answers only valid requests."""
        body = f"{why}\n".encode()
        upgrade = "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n" if status == 426 else ""
        head = (
            f"HTTP/1.1 {status} {_PHRASES[status]}\r\n{upgrade}Connection: close\r\n"
            f"Content-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._output.append(head.encode("ascii") + body)
        self._phase = WebSocketPhase.CLOSED
        return self.inner.receive_eof(now)


class WebSocketClient(Framed):
    """Client role."""

    def __init__(self, inner: ConnectionMachine, subprotocol: str, *, host: str, path: str) -> None:
        """Request `path`, which starts with a slash. `host`: name or address, with the port unless it is the scheme's
        default."""
        super().__init__(inner, ConnectionType.CLIENT, None)
        self.refused = ""
        """Reason of a refusal; empty: not refused."""
        self._subprotocol = subprotocol
        self._send(events.Request(host, path, subprotocols=[subprotocol]))

    @property
    def opened(self) -> bool:
        """True when the handshake is done, so that the inner machine's bytes are sent."""
        return self._phase is WebSocketPhase.OPEN

    def fail(self, why: str) -> None:
        """Stop waiting for the peer's answer."""
        self._phase, self.refused = WebSocketPhase.CLOSED, why

    # --- inside: handshake (RFC 6455 section 4.1) -------------------------------------------------------------

    def _shake_hands(self, event: events.Event, now: float) -> Sequence[Any]:
        if isinstance(event, events.AcceptConnection):
            if event.subprotocol != self._subprotocol:
                return self._end_refused(f"it does not speak {self._subprotocol} over WebSocket", now)
            self._phase = WebSocketPhase.OPEN
        elif isinstance(event, events.RejectConnection):
            return self._end_refused(f"it refused the WebSocket: HTTP status {event.status_code}", now)
        return ()

    def _no_handshake(self, error: Exception, now: float) -> Sequence[Any]:
        return self._end_refused(f"it is not a WebSocket server: {error}", now)

    def _too_large(self, now: float) -> Sequence[Any]:
        return self._end_refused(f"its answer is larger than {HANDSHAKE_BYTES_MAX} bytes", now)

    def _end_refused(self, why: str, now: float) -> Sequence[Any]:
        self.fail(why)
        return self.inner.receive_eof(now)


def _close_code(event: events.Event) -> int | None:
    """Return the close code of the WebSocket for this event; None: it stays open."""
    if isinstance(event, events.TextMessage):  # [MQTT-6.0.0-1]
        return CloseReason.UNSUPPORTED_DATA
    return event.code if isinstance(event, events.CloseConnection) else None


_PHRASES: Final = {
    400: "Bad Request",
    403: "Forbidden",
    408: "Request Timeout",
    426: "Upgrade Required",
    431: "Request Header Fields Too Large",
}

_SENDABLE: Final = frozenset((1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011))
"""Close codes that may be in a frame (section 7.4.1)."""
