"""Parts that the dissectors of both protocols share: a packet in words, and the bytes of one direction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from edge.broker.tracing.limits import TRACE_ADDRESSES_KEPT_MAX

K = TypeVar("K")

Wanted = Callable[[], bool]
"""There is room for another event: a packet is to be read. Else it is only counted."""


class DissectedPacket(msgspec.Struct, kw_only=True):
    """One packet or frame without its payload; see `edge.broker.tracing.events.TraceEvent`."""

    name: str
    id: int | None = None
    last_id: int | None = None
    channel: int | None = None
    address: str = ""
    addresses: tuple[str, ...] = ()
    """Addresses or filters that it is about, by which a trace selects."""
    flags: tuple[str, ...] = ()
    bytes: int | None = None
    payload_bytes: int | None = None
    code: int | None = None
    reason: str = ""
    text: str = ""
    always: bool = False
    """Show the packet whatever addresses the trace selects: it begins or ends something."""
    refuses_login: bool = False
    """The credentials of the client are refused."""
    too_busy: bool = False
    """The credentials are not checked now, as the gateway is busy."""
    goodbye: bool = False
    """The packet ends the connection."""


class Dissector(Protocol):
    """Reads the bytes of one connection in both directions, and takes part in nothing."""

    protocol: str
    """In words, with the version once it is known."""
    client: str
    user: str
    known: bool
    """The client has identified itself."""

    def read(self, direction: str, data: bytes, wanted: Wanted) -> Iterator[DissectedPacket | None]:
        """Yield the packets that begin in these bytes, None for one that was only counted."""
        ...

    def why_ended(self, event: Any) -> str:
        """Return why the connection ends by this event of its machine; empty: the event is another one, or says not."""
        ...


class IncompleteBytes:
    """Track the bytes of one direction: those of a packet that is not complete yet."""

    __slots__ = ("lost", "rest", "skip")

    def __init__(self, rest: bytes = b"") -> None:
        self.rest = rest
        self.skip = 0
        """Bytes of the last packet that are still to come and are not looked at."""
        self.lost = False
        """The bytes are not packets."""

    def take(self, data: bytes) -> bytes:
        """Return what is to be read now."""
        if self.skip:
            skipped = min(self.skip, len(data))
            self.skip -= skipped
            data = data[skipped:]
        if self.rest:
            data, self.rest = self.rest + data, b""
        return data

    def keep(self, data: bytes, pos: int) -> None:
        """Keep what is left from `pos` on, which may be behind the end."""
        if pos > len(data):
            self.skip = pos - len(data)
        else:
            self.rest = data[pos:]


class RecentAddresses(Generic[K]):
    """The address of what later lines are about; the oldest are forgotten."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[K, str] = {}

    def put(self, key: K, address: str) -> None:
        self._known.pop(key, None)
        if len(self._known) >= TRACE_ADDRESSES_KEPT_MAX:
            del self._known[next(iter(self._known))]
        self._known[key] = address

    def get(self, key: K) -> str:
        """Return the address; empty where it is not known."""
        return self._known.get(key, "")

    def pop(self, key: K) -> str:
        return self._known.pop(key, "")
