"""One trace: its selection of connections and addresses, and the events that wait for its watcher."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from edge.broker.model.topics import is_filter, matches, overlaps
from edge.broker.tracing.events import TraceEvent
from edge.broker.tracing.limits import TRACE_EVENTS_WAITING_MAX


class TraceNames(NamedTuple):
    """Names of a client: its identifier, its user, the name in its certificate, its remote address."""

    client: str
    user: str
    identity: str
    remote: str

    @property
    def host(self) -> str:
        """Remote address without its port."""
        return self.remote.rpartition(":")[0]


class TraceFilter(NamedTuple):
    """Selection of connections and addresses. Empty: all."""

    client: str = ""
    """Client (or container) identifier, user, name in the certificate, or remote address with or without port."""
    address: str = ""
    """Filter of addresses (``plant/#``)."""

    def is_about(self, names: TraceNames) -> bool:
        """Return True for a selected connection."""
        return not self.client or self.client in (
            names.client, names.user, names.identity, names.remote, names.host, names.host.strip("[]"),
        )  # fmt: skip

    def shows(self, addresses: Sequence[str], *, always: bool) -> bool:
        """Return True for an event with a selected address or filter. `always`: it starts or ends something."""
        if not self.address or always:
            return True
        return any(self._about(each) for each in addresses)

    def _about(self, address: str) -> bool:
        return overlaps(address, self.address) if is_filter(address) else matches(self.address, address)


class TraceWatch:
    """Events of one trace that wait for `take`; events beyond the limit are counted."""

    def __init__(
        self, about: TraceFilter, arrived: Callable[[], None], shows_payload: Callable[[str], bool] | None = None
    ) -> None:
        """`arrived` is called with the first waiting event. `shows_payload` returns True if the payload of messages of
        an address may be shown; None: the trace has no payloads. A message without an address never shows it."""
        self.about = about
        self.shows_payload = shows_payload
        self.ended = False
        """True when the gateway stops, and no event follows."""
        self.dropped = 0
        """Events dropped since the last `take`."""
        self._arrived = arrived
        self._waiting: deque[TraceEvent] = deque()

    @property
    def has_room(self) -> bool:
        """True while another event can wait."""
        return len(self._waiting) < TRACE_EVENTS_WAITING_MAX

    def offer(self, event: TraceEvent) -> None:
        """Keep an event for the watcher, or count it."""
        if not self.has_room:
            self.drop()
            return
        if event.payload and not self._may_show(event.address):
            event = msgspec.structs.replace(event, payload="")
        self._waiting.append(event)
        if len(self._waiting) == 1:
            self._arrived()

    def _may_show(self, address: str) -> bool:
        """Return True if the payload of messages of an address may be shown. Without an address no right can be
        checked, and the gateway's own addresses (`$cbs`) take tokens."""
        return bool(
            address and not address.startswith("$") and self.shows_payload is not None and self.shows_payload(address)
        )

    def drop(self) -> None:
        """Count an event that is not kept."""
        self.dropped += 1
        if self.dropped == 1 and not self._waiting:
            self._arrived()

    def end(self) -> None:
        """End the trace."""
        self.ended = True
        self._arrived()

    def take(self) -> list[TraceEvent]:
        """Return the waiting events in order, and then the number of dropped ones."""
        taken = list(self._waiting)
        self._waiting.clear()
        if self.dropped:
            taken.append(TraceEvent(kind="dropped", name="dropped", count=self.dropped))
            self.dropped = 0
        return taken


class WatchedLog:
    """Writes the events of a trace to the log, at the end of each turn of the loop."""

    def __init__(self, write: Callable[[TraceEvent], None], loop: asyncio.AbstractEventLoop) -> None:
        self.watch = TraceWatch(TraceFilter(), self._arrived)
        self._write = write
        self._loop = loop

    def _arrived(self) -> None:
        self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        for event in self.watch.take():
            self._write(event)
