"""The connection under the links: bytes, SASL, time and the life of Proton's objects.

`Carrier` obeys `Connection`; what the events of the engine mean is its subclass' business. The C objects are
made with it and freed once, when the connection is over (`receive_eof`) or the object is dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cproton import ffi, lib

from bridge.amqp_values import Described, Symbol, Symbols, Ulong, encode
from bridge.engine import choice
from bridge.engine.events import Closed, Condition, Event, Link, Opened, symbols
from bridge.engine.proton import (
    SCRATCH_BYTES,
    read_condition,
    read_data,
    read_map,
    redirect_log,
    scratch,
    text,
    write_condition,
    write_data,
    write_map,
)
from bridge.sasl import ANONYMOUS, SaslClient, SaslServer

CLOSE_WAIT_S = 2.0
"""How long the peer's answer to our close is waited for before the socket goes."""

_CLOSE, _ERROR = 0x18, 0x1D
"""Descriptors of the close performative and of an error (sections 2.7.9, 2.8.14)."""


class Carrier:
    """See `bridge.engine.Engine`, which adds the links."""

    def __init__(
        self,
        *,
        container_id: str,
        server: bool,
        hostname: str | None = None,
        sasl: SaslServer | SaslClient | None = None,
        idle_timeout_s: float = 60.0,
        handshake_timeout_s: float = 10.0,
        max_frame_size: int = 65_536,
        channel_max: int = 255,
        links_max: int = 1024,
        max_message_size: int = 16 * 1024 * 1024,
        properties: Mapping[str, Any] | None = None,
        desired_capabilities: Sequence[str] = (),
        offered_capabilities: Sequence[str] = (),
        now: float | None = None,
    ) -> None:
        """Without `sasl` a server lets everybody in (as `ANONYMOUS`), and a client starts with the AMQP header.

        `idle_timeout_s`: silence after which the peer counts as gone (0: never); half of it is what the peer is told.
        `links_max`, `channel_max` (highest channel number): what the peer may open; `max_message_size`: bytes of one
        incoming message, where `accept` or `attach_receiver` do not say otherwise.
        `handshake_timeout_s`: from `now` (or the first call that has a clock) to the peer's open.
        """
        if isinstance(sasl, SaslClient if server else SaslServer):
            raise TypeError("a server takes SaslServer, a client SaslClient")
        self.container_id = container_id
        self._sasl = SaslServer(anonymous=ANONYMOUS) if server and sasl is None else sasl
        self._loops = choice.choice().loops
        self._identity: str | None = None
        self._output: list[bytes] = []
        self._links: dict[Any, Link] = {}
        self._links_max = links_max
        self._sessions = 0
        self._sessions_max = channel_max + 1
        self._message_bytes_max = max_message_size
        self._session: Any = None  # the one our own links are in; made when it is needed
        self._handshake_timeout_s = handshake_timeout_s
        self._handshake_deadline = None if now is None else now + handshake_timeout_s
        self._tick_deadline: float | None = None
        self._close_deadline: float | None = None
        self._opened = False
        self._closing = False
        self._told_closed = False
        self._done = False
        self._alive = True
        self._connection = lib.pn_connection()
        self._transport = lib.pn_transport()
        self._collector = lib.pn_collector()
        redirect_log(self._transport)
        lib.pn_connection_collect(self._connection, self._collector)
        lib.pn_transport_set_max_frame(self._transport, max_frame_size)
        lib.pn_transport_set_idle_timeout(self._transport, int(idle_timeout_s * 1000))
        lib.pn_transport_set_channel_max(self._transport, channel_max)
        lib.pn_connection_set_container(self._connection, container_id.encode())
        if hostname is not None:
            lib.pn_connection_set_hostname(self._connection, hostname.encode())
        write_map(lib.pn_connection_properties(self._connection), properties)
        write_data(lib.pn_connection_desired_capabilities(self._connection), Symbols(desired_capabilities))
        write_data(lib.pn_connection_offered_capabilities(self._connection), Symbols(offered_capabilities))
        lib.pn_transport_bind(self._transport, self._connection)

    def __del__(self) -> None:
        self._free()

    # --- Connection -------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self._done

    @property
    def deadline(self) -> float | None:
        if self._done:
            return None
        if self._closing:  # at once, to learn the time: `close` has no clock
            return 0.0 if self._close_deadline is None else self._close_deadline
        return self._tick_deadline if self._opened else self._handshake_deadline

    def receive_data(self, data: bytes, now: float) -> Sequence[Event]:
        if self._told_closed:
            return ()
        if self._handshake_deadline is None:
            self._handshake_deadline = now + self._handshake_timeout_s
        if self._sasl is not None:
            self._sasl.receive(data)
            self._output.append(self._sasl.take())
            if self._sasl.failure is not None:
                return self._abandon(Condition("amqp:unauthorized-access", self._sasl.failure))
            if not self._sasl.done:
                return ()
            data, self._identity, self._sasl = self._sasl.rest, self._sasl.identity, None
        self._push(data)
        events = self._poll(now)
        if not self._told_closed and lib.pn_transport_capacity(self._transport) < 0:
            # Proton stops listening to a frame it cannot read, and says nothing
            condition = Condition("amqp:connection:framing-error", "not an AMQP frame")
            self.close(condition)
            if not self._opened:  # Proton keeps its close back until the peer's open has come, and it never will
                self._pull(self._output)
                self._output.append(_close_frame(condition))
            events += self._abandon(condition)
        return events

    def receive_eof(self, now: float) -> Sequence[Event]:
        events: list[Event] = []
        if not self._told_closed:
            lib.pn_transport_close_tail(self._transport)
            events += self._poll(now)
            events += self._abandon(Condition("amqp:connection:forced", "the peer went away without a close"))
        self._done = True
        self._free()
        return events

    def handle_timeout(self, now: float) -> Sequence[Event]:
        if self._done:
            return ()
        if self._closing:
            if self._close_deadline is None:
                self._close_deadline = now + CLOSE_WAIT_S
            if now < self._close_deadline:
                return ()
            return self._abandon(Condition("amqp:connection:forced", "the peer did not answer our close"))
        if self._opened:
            self._tick(now)
            return self._poll(now)
        if self._handshake_deadline is None or now < self._handshake_deadline:
            return ()
        return self._abandon(Condition("amqp:connection:forced", "no open in time"))

    def data_to_send(self) -> bytes:
        output = self._output
        if self._sasl is not None:
            output.append(self._sasl.take())
        elif self._alive:
            self._pull(output)
        if not output:
            return b""
        self._output = []
        return output[0] if len(output) == 1 else b"".join(output)

    # --- commands ---------------------------------------------------------------------------------------------

    def open(self, properties: Mapping[str, Any] | None = None) -> None:
        """Send our open: a client to begin with, a server in answer to `Opened`. `properties`: in place of those the
        engine was made with."""
        if self._alive:
            if properties is not None:
                write_map(lib.pn_connection_properties(self._connection), properties)
            lib.pn_connection_open(self._connection)

    def close(self, condition: Condition | None = None) -> None:
        """Send close; the peer's answer, its absence or the end of the socket makes `Closed`."""
        if not self._alive or self._closing or self._told_closed:
            return
        self._closing = True
        write_condition(lib.pn_connection_condition(self._connection), condition)
        lib.pn_connection_open(self._connection)  # nothing happens when it is open
        lib.pn_connection_close(self._connection)

    # --- inside -----------------------------------------------------------------------------------------------

    def _collect(self, now: float, events: list[Event]) -> None:
        """Turn what Proton has collected into events."""
        raise NotImplementedError

    def _release(self) -> None:
        """The C objects are about to be freed: drop every pointer to them."""

    def _poll(self, now: float) -> list[Event]:
        events: list[Event] = []
        was_open = self._opened
        self._collect(now, events)
        if self._opened and not was_open:
            self._tick(now)
        return events

    def _push(self, data: bytes) -> None:
        transport, size, offset = self._transport, len(data), 0
        start = ffi.from_buffer(data)
        while offset < size:
            taken = lib.pn_transport_push(transport, start + offset, size - offset)
            if taken <= 0:
                return  # the transport has failed, or the peer had closed: the rest is of no interest
            offset += taken

    def _pull(self, output: list[bytes]) -> None:
        transport, chars, view = self._transport, scratch.chars, scratch.view
        while True:
            pending = lib.pn_transport_pending(transport)
            if pending <= 0:
                break
            size = lib.pn_transport_peek(transport, chars, min(pending, SCRATCH_BYTES))
            output.append(view[:size])
            lib.pn_transport_pop(transport, size)
        if pending < 0 and self._told_closed:
            self._done = True

    def _tick(self, now: float) -> None:
        deadline_ms = lib.pn_transport_tick(self._transport, int(now * 1000) + 1)  # 0 would mean: not ticking yet
        self._tick_deadline = deadline_ms / 1000 if deadline_ms else None

    def _abandon(self, condition: Condition) -> list[Event]:
        """The socket is of no more use, whatever the protocol would still say."""
        self._done = True
        return self._over(condition)

    def _cut(self, condition: Condition) -> list[Event]:
        """The peer does what no peer may, and could go on: say why, and listen no more."""
        self.close(condition)
        return self._abandon(condition)

    def _over(self, condition: Condition | None) -> list[Event]:
        """The one `Closed`, or nothing when it was told before."""
        if self._told_closed:
            return []
        self._told_closed = True
        return [Closed(condition)]

    def _on_open(self) -> Opened:
        connection = self._connection
        self._opened = True
        return Opened(
            container_id=text(lib.pn_connection_remote_container(connection)) or "",
            hostname=text(lib.pn_connection_remote_hostname(connection)),
            desired_capabilities=symbols(read_data(lib.pn_connection_remote_desired_capabilities(connection))),
            offered_capabilities=symbols(read_data(lib.pn_connection_remote_offered_capabilities(connection))),
            properties=read_map(lib.pn_connection_remote_properties(connection)),
            identity=self._identity,
        )

    def _on_close(self) -> list[Event]:
        condition = read_condition(lib.pn_connection_remote_condition(self._connection))
        lib.pn_connection_open(self._connection)
        lib.pn_connection_close(self._connection)
        return self._over(condition)

    def _on_transport_error(self) -> list[Event]:
        return self._over(read_condition(lib.pn_transport_condition(self._transport)))

    def _free(self) -> None:
        if not getattr(self, "_alive", False):
            return
        self._alive = False
        self._release()
        lib.pn_collector_release(self._collector)  # first: its events hold what the rest frees
        lib.pn_transport_unbind(self._transport)
        lib.pn_connection_release(self._connection)
        lib.pn_decref(self._connection)
        lib.pn_decref(self._transport)
        lib.pn_collector_free(self._collector)
        self._connection = self._transport = self._collector = ffi.NULL


def _close_frame(condition: Condition) -> bytes:
    """A close (section 2.7.9) of its own, with an error of two fields."""
    error = Described(Ulong(_ERROR), [Symbol(condition.name), condition.description])
    body = encode(Described(Ulong(_CLOSE), [error]))
    return (len(body) + 8).to_bytes(4, "big") + b"\x02\0\0\0" + body
