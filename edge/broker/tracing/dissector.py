"""Parts that the dissectors of both protocols share: a packet in words, and the bytes of one direction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from bridge.hidden import hides
from edge.broker.tracing.limits import TRACE_ADDRESSES_KEPT_MAX, TRACE_PAYLOAD_BYTES_MAX

K = TypeVar("K")

Wanted = Callable[[], bool]
"""Returns True when there is room for another event. Otherwise a packet is only counted."""


@hides("payload")
class DissectedPacket(msgspec.Struct, kw_only=True):
    """One packet or frame; see `edge.broker.tracing.events.TraceEvent`."""

    name: str
    id: int | None = None
    last_id: int | None = None
    channel: int | None = None
    address: str = ""
    addresses: tuple[str, ...] = ()
    """Addresses or filters of the packet, for the selection of a trace."""
    flags: tuple[str, ...] = ()
    bytes: int | None = None
    payload_bytes: int | None = None
    payload: str = ""
    """Begin of the message, if `Dissector.shows_payload`."""
    code: int | None = None
    reason: str = ""
    text: str = ""
    always: bool = False
    """Show the packet for any selection of addresses: it starts or ends something."""
    refuses_login: bool = False
    """True when it refuses the credentials of the client."""
    too_busy: bool = False
    """True when the gateway is too busy to check the credentials now."""
    goodbye: bool = False
    """True when the packet ends the connection."""


def payload_text(payload: bytes) -> str:
    """Return the begin of a payload as text; bytes that are not UTF-8 are escaped."""
    return payload[:TRACE_PAYLOAD_BYTES_MAX].decode("utf-8", "backslashreplace")


class Dissector(Protocol):
    """Reads the bytes of one connection in both directions, without any influence on it."""

    protocol: str
    """Name of the protocol, with the version once it is known."""
    client: str
    user: str
    known: bool
    """True once the client has identified itself."""
    shows_payload: bool
    """True while a trace requests the begin of payloads, `TRACE_PAYLOAD_BYTES_MAX`."""

    def read(self, direction: str, data: bytes, wanted: Wanted) -> Iterator[DissectedPacket | None]:
        """Yield the packets that begin in these bytes, and None for one that was only counted."""
        ...

    def why_ended(self, event: Any) -> str:
        """Return the reason if this event of the machine ends the connection with one; otherwise empty."""
        ...


class IncompleteBytes:
    """Bytes of one direction that belong to an incomplete packet."""

    __slots__ = ("lost", "rest", "skip")

    def __init__(self, rest: bytes = b"") -> None:
        self.rest = rest
        self.skip = 0
        """Bytes of the last packet that are still to come and are not read."""
        self.lost = False
        """True when the bytes are not packets."""

    def take(self, data: bytes) -> bytes:
        """Return the bytes to read now."""
        if self.skip:
            skipped = min(self.skip, len(data))
            self.skip -= skipped
            data = data[skipped:]
        if self.rest:
            data, self.rest = self.rest + data, b""
        return data

    def keep(self, data: bytes, pos: int) -> None:
        """Keep the bytes from `pos` on, which may be behind the end."""
        if pos > len(data):
            self.skip = pos - len(data)
        else:
            self.rest = data[pos:]


class RecentAddresses(Generic[K]):
    """Addresses that later lines refer to; the oldest are forgotten."""

    __slots__ = ("_known", "forgot")

    def __init__(self) -> None:
        self._known: dict[K, str] = {}
        self.forgot = False
        """True once an address was forgotten."""

    def __contains__(self, key: K) -> bool:
        return key in self._known

    def put(self, key: K, address: str) -> None:
        self._known.pop(key, None)
        if len(self._known) >= TRACE_ADDRESSES_KEPT_MAX:
            del self._known[next(iter(self._known))]
            self.forgot = True
        self._known[key] = address

    def get(self, key: K) -> str:
        """Return the address; empty if unknown."""
        return self._known.get(key, "")

    def pop(self, key: K) -> str:
        return self._known.pop(key, "")
