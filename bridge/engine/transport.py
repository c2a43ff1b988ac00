"""Proton's objects of one connection: pass bytes in and out, run timers, free the objects.

`machine` and `links` interpret the bytes. The C objects are created with a `ProtonTransport` and freed once, by `free`
or when it is garbage-collected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from cproton import ffi, lib

from bridge.amqp_values import DescribedValue, Symbol, Symbols, Ulong, encode
from bridge.engine.events import PeerOpened
from bridge.engine.link import symbols
from bridge.engine.proton import (
    SCRATCH_BYTES,
    address_of,
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
from bridge.engine.states import Condition

_CLOSE, _ERROR = 0x18, 0x1D
"""Descriptors of the close performative and of an error (sections 2.7.9, 2.8.14)."""
INFO_ENTRIES_MAX: Final = 16
"""Entries read of the info of a close: peers send one or two."""


class ProtonTransport:
    """Proton's connection, transport and collector, bound together. Do not use it when `alive` is False."""

    __slots__ = ("address", "addresses", "alive", "collector", "collector_address", "connection", "pointer")

    address: int
    """Address of `pointer`; 0 once it is freed."""
    alive: bool
    connection: Any
    """``pn_connection_t``, which owns sessions and links."""
    addresses: tuple[int, int]
    """`address` and `collector_address`."""
    collector: Any
    """``pn_collector_t``: Proton's events."""
    collector_address: int
    pointer: Any
    """``pn_transport_t``."""

    def __init__(
        self,
        *,
        container_id: str,
        hostname: str | None,
        idle_timeout_s: float,
        max_frame_size: int,
        channel_max: int,
        properties: Mapping[str, Any] | None,
        desired_capabilities: Sequence[str],
        offered_capabilities: Sequence[str],
    ) -> None:
        """See `bridge.engine.Engine`."""
        self.alive = False
        self.connection = lib.pn_connection()
        self.pointer = lib.pn_transport()
        self.collector = lib.pn_collector()
        self.address, self.collector_address = address_of(self.pointer), address_of(self.collector)
        self.addresses = self.address, self.collector_address
        self.alive = True
        redirect_log(self.pointer)
        lib.pn_connection_collect(self.connection, self.collector)
        lib.pn_transport_set_max_frame(self.pointer, max_frame_size)
        lib.pn_transport_set_idle_timeout(self.pointer, int(idle_timeout_s * 1000))
        lib.pn_transport_set_channel_max(self.pointer, channel_max)
        lib.pn_connection_set_container(self.connection, container_id.encode())
        if hostname is not None:
            lib.pn_connection_set_hostname(self.connection, hostname.encode())
        write_map(lib.pn_connection_properties(self.connection), properties)
        write_data(lib.pn_connection_desired_capabilities(self.connection), Symbols(desired_capabilities))
        write_data(lib.pn_connection_offered_capabilities(self.connection), Symbols(offered_capabilities))
        lib.pn_transport_bind(self.pointer, self.connection)

    def __del__(self) -> None:
        self.free()

    # --- bytes and time ---------------------------------------------------------------------------------------

    def push(self, data: bytes) -> None:
        """Pass received bytes to Proton."""
        transport, size, offset = self.pointer, len(data), 0
        start = ffi.from_buffer(data)
        while offset < size:
            taken = lib.pn_transport_push(transport, start + offset, size - offset)
            if taken <= 0:
                return  # the transport has failed, or the peer has closed: the rest is ignored
            offset += taken

    def push_end(self) -> None:
        """Report that the peer has closed its half of the socket."""
        lib.pn_transport_close_tail(self.pointer)

    def pull(self, output: list[bytes]) -> bool:
        """Append the bytes that Proton wants to send; return False when it will never send more."""
        transport, chars, view = self.pointer, scratch.chars, scratch.view
        while (pending := lib.pn_transport_pending(transport)) > 0:
            size = lib.pn_transport_peek(transport, chars, min(pending, SCRATCH_BYTES))
            output.append(view[:size])
            lib.pn_transport_pop(transport, size)
        return bool(pending >= 0)

    @property
    def input_closed(self) -> bool:
        """True when Proton no longer reads: after an invalid frame (for which it has no event) or the peer's close."""
        return bool(lib.pn_transport_capacity(self.pointer) < 0)

    def tick(self, now: float) -> float | None:
        """Run Proton's timers; return the time of the next tick."""
        deadline_ms = lib.pn_transport_tick(self.pointer, int(now * 1000) + 1)  # Proton treats 0 as "no timer"
        return deadline_ms / 1000 if deadline_ms else None

    def tick_without_input(self, now: float) -> float | None:
        """Run Proton's timers while reading is paused: send heartbeats, but do not check the peer's idle timeout. The
        next `tick` checks it, after pending bytes have been read."""
        idle_ms = lib.pn_transport_get_idle_timeout(self.pointer)
        lib.pn_transport_set_idle_timeout(self.pointer, 0)
        deadline = self.tick(now)
        lib.pn_transport_set_idle_timeout(self.pointer, idle_ms)
        next_check = now + idle_ms / 1000 if idle_ms else None
        return min((each for each in (deadline, next_check) if each is not None), default=None)

    # --- the connection's performatives -----------------------------------------------------------------------

    def open(self, properties: Mapping[str, Any] | None = None) -> None:
        """Send our open performative, once. `properties` replace those of the constructor."""
        if properties is not None:
            write_map(lib.pn_connection_properties(self.connection), properties)
        lib.pn_connection_open(self.connection)

    def close(self, condition: Condition | None = None) -> None:
        """Send our close performative, preceded by our open if necessary."""
        write_condition(lib.pn_connection_condition(self.connection), condition)
        lib.pn_connection_open(self.connection)
        lib.pn_connection_close(self.connection)

    def remote_open(self, identity: str | None) -> PeerOpened:
        """Return the peer's open as an event; `identity`: from SASL."""
        connection = self.connection
        return PeerOpened(
            container_id=text(lib.pn_connection_remote_container(connection)) or "",
            hostname=text(lib.pn_connection_remote_hostname(connection)),
            desired_capabilities=symbols(read_data(lib.pn_connection_remote_desired_capabilities(connection))),
            offered_capabilities=symbols(read_data(lib.pn_connection_remote_offered_capabilities(connection))),
            properties=read_map(lib.pn_connection_remote_properties(connection)),
            identity=identity,
        )

    @property
    def remote_condition(self) -> Condition | None:
        """Condition of the peer's close, with the texts of its info."""
        condition = lib.pn_connection_remote_condition(self.connection)
        found = read_condition(condition)
        if found is None:
            return None
        info = read_map(lib.pn_condition_info(condition)).items()
        texts = ((str(name), str(value)) for name, value in info if isinstance(value, str))
        return found._replace(info=tuple(sorted(texts)[:INFO_ENTRIES_MAX]))

    @property
    def failure(self) -> Condition | None:
        """Condition of a failure of Proton's transport."""
        return read_condition(lib.pn_transport_condition(self.pointer))

    def free(self) -> None:
        """Free the C objects; no pointer to their children may be left. Idempotent."""
        if not self.alive:
            return
        self.alive = False
        lib.pn_collector_release(self.collector)  # first: its events refer to the other objects
        lib.pn_transport_unbind(self.pointer)
        lib.pn_connection_release(self.connection)
        lib.pn_decref(self.connection)
        lib.pn_decref(self.pointer)
        lib.pn_collector_free(self.collector)
        self.connection = self.pointer = self.collector = ffi.NULL
        self.address = self.collector_address = 0
        self.addresses = 0, 0


def close_frame(condition: Condition) -> bytes:
    """Encode a close (section 2.7.9) with an error. Proton holds its own close until the peer's open has arrived, which
    never happens after an invalid frame."""
    error = DescribedValue(Ulong(_ERROR), [Symbol(condition.name), condition.description])
    body = encode(DescribedValue(Ulong(_CLOSE), [error]))
    return (len(body) + 8).to_bytes(4, "big") + b"\x02\0\0\0" + body
