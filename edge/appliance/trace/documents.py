"""Events of a trace as lines of JSON for commands, and as Server-Sent Events for pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import msgspec

from bridge.hidden import hides
from edge.broker.http.caching import NEVER_CACHED
from edge.broker.http.live import HEADERS, event_bytes
from edge.broker.tracing.events import TraceEvent, client_of, details_of, is_failure, sign_of


@hides("payload")
class TraceLine(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One event of a trace in words, as `waypost client trace` prints it."""

    kind: str
    """``started``, ``packet``, ``outcome``, ``connection``, ``request`` or ``dropped``."""
    at: str = ""
    """Time, ISO 8601 in UTC."""
    sign: str
    """``<-`` from the client, ``->`` to it, ``==`` outcome, ``--`` connection, ``<>`` HTTP, ``!!`` not shown."""
    client: str = ""
    """``client@host:port``."""
    text: str
    """Packet, address, flags, sizes and reason."""
    failed: bool = False
    """True if something was refused or lost."""
    payload: str = ""
    """Begin of the message; empty unless the trace includes payloads."""
    count: int = 0
    """Connections that match, of the first event; else messages of an outcome, or events that are not shown."""


class EventFraming(Protocol):
    """Encoding of the events of a trace."""

    @property
    def headers(self) -> Mapping[str, str]:
        """Header fields of the answer."""
        ...

    def encode(self, events: Sequence[TraceEvent]) -> bytes:
        """Return these events, or a keep-alive without events."""
        ...

    def end(self, why: str) -> bytes:
        """Return the last event."""
        ...


class JsonLines:
    """One event a line."""

    headers: Final[Mapping[str, str]] = {
        "Content-Type": "application/x-ndjson",
        **NEVER_CACHED,
        "X-Accel-Buffering": "no",
    }

    def __init__(self) -> None:
        self._encode = msgspec.json.Encoder().encode

    def encode(self, events: Sequence[TraceEvent]) -> bytes:
        return b"".join(self._encode(each) + b"\n" for each in events) or b"\n"

    def end(self, why: str) -> bytes:
        return self.encode([TraceEvent(kind="ended", name="ended", text=why)])


class ServerSentEvents:
    """Events of a stream for browsers."""

    headers: Final[Mapping[str, str]] = HEADERS

    def encode(self, events: Sequence[TraceEvent]) -> bytes:
        return event_bytes("trace", [_line(each) for each in events]) if events else b":\n\n"

    def end(self, why: str) -> bytes:
        return event_bytes("end", {"why": why})


def _line(event: TraceEvent) -> TraceLine:
    return TraceLine(
        kind=event.kind,
        at=event.time,
        sign=sign_of(event),
        client=client_of(event),
        text=details_of(event),
        failed=is_failure(event),
        payload=event.payload,
        count=event.count or 0,
    )
