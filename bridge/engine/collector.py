"""Collector: turns Proton's events into grouped events, such as all complete messages or all dispositions of a link.

It enforces the limits that Proton leaves to its user: credit and message size. The loops over messages are in `loops`.
"""

from __future__ import annotations

from typing import Any, Final

from cproton import ffi, lib

from bridge.engine.events import Accepted, Closed, Detached, Dispositions, Event, LinkFlow, Transfers
from bridge.engine.link import Link
from bridge.engine.links import HANDLERS, Links
from bridge.engine.loops import Batches, EngineLoops, Groups, TransferBatch
from bridge.engine.states import Condition
from bridge.engine.transport import ProtonTransport

ENDPOINTS_AT_ONCE: Final = 8
"""Events of sessions, links and the connection that one call returns: each is up to 0.5 ms of work for the owner."""

_DELIVERY_POINTER: Final = ffi.typeof("pn_delivery_t *")

_WRONG_WAY: Final = Condition("amqp:not-allowed", "transfer on a link the peer is the receiver of")
_OPENED_AGAIN: Final = Condition("amqp:illegal-state", "a second open")
"""Proton accepts a second open (section 2.4.1 allows one), and the owner would initialize a connection in use."""


class Collector:
    """Reads the events of one connection from Proton."""

    __slots__ = ("_links", "_loops", "_transport", "identity", "input_closed", "left", "more", "opened")

    def __init__(self, transport: ProtonTransport, links: Links, loops: EngineLoops) -> None:
        self.identity: str | None = None
        """Identity from SASL, reported with the peer's open."""
        self.opened = False
        """The peer's open has arrived."""
        self.more = False
        """Proton has more events."""
        self.left = 0
        """Bytes of the last call that Proton was not given."""
        self._transport = transport
        self._links = links
        self._loops = loops
        self.input_closed = False
        """Proton has stopped reading: it met an invalid frame (without an event for it), or the end."""

    def collect(self, events: list[Event], data: bytes = b"") -> Condition | None:
        """Give Proton bytes of the peer (none while there is `more`), and append the events, up to `ENDPOINTS_AT_ONCE`.

        Return the condition of a protocol violation of the peer, if any; later events are lost then.
        """
        transport, links, loops = self._transport, self._links.by_address, self._loops
        self.more = False
        left = ENDPOINTS_AT_ONCE
        self.input_closed, taken, groups, event, self.left = loops.read(transport, data, links)
        if taken is not None:
            self._add_received(*taken, events)
        if groups is None:
            return None
        violation = None
        while event:
            if violation is None:
                if not left:
                    self.more = True
                    break
                left -= 1
                violation = self._handle(event, groups, events)
            lib.pn_collector_pop(transport.collector)
            event = loops.collect(transport, links, groups)
        return self._add_groups(groups, events) if violation is None else violation

    def events_of(self, address: int, delivery: int, message: bytes) -> list[Event]:
        """Return the events of one unsettled message that was already taken out of Proton."""
        events: list[Event] = []
        link = self._links.by_address.get(address)
        if link is None or link.closed:
            lib.pn_delivery_settle(ffi.cast(_DELIVERY_POINTER, delivery))
        else:
            link._unsettled[link._delivery_next] = delivery
            link._deliveries.unsettled += 1
            self._add_received(link, [TransferBatch(False, [message])], 1, len(message), events)
        return events

    def _handle(self, event: Any, groups: Groups, events: list[Event]) -> Condition | None:
        """Handle an event other than of deliveries and credit."""
        kind = lib.pn_event_type(event)
        handler = HANDLERS.get(kind)
        violation = self._add_groups(groups, events)
        if violation is not None or self._links.over:
            return violation
        if handler is not None:
            return handler(self._links, event, events)
        if kind == lib.PN_CONNECTION_REMOTE_OPEN:
            if self.opened:
                return _OPENED_AGAIN
            self.opened = True
            events.append(self._transport.remote_open(self.identity))
        elif kind == lib.PN_CONNECTION_REMOTE_CLOSE:
            condition = self._transport.remote_condition
            self._transport.close()
            self._over(condition, events)
        else:
            self._over(self._transport.failure, events)
        return None

    def _over(self, condition: Condition | None, events: list[Event]) -> None:
        self._links.end()
        events.append(Closed(condition))

    def _add_groups(self, groups: Groups, events: list[Event]) -> Condition | None:
        for link in groups.received:
            self._receive(link, events)
        for link, items in groups.dispositions.items():
            if not link.closed:
                events.append(Dispositions(link, items))
        for link, tags in groups.accepted_tags.items():
            if not link.closed:
                events.append(Accepted(link, tags))
        for link in groups.flows:
            self._on_flow(link, events)
        groups.received.clear()
        groups.dispositions.clear()
        groups.accepted_tags.clear()
        groups.flows.clear()
        return _WRONG_WAY if groups.wrong and not self._links.over else None

    def _receive(self, link: Link, events: list[Event]) -> None:
        """Take all complete messages of the link out of Proton."""
        if link.closed:
            while delivery := lib.pn_link_current(link._pn):
                lib.pn_delivery_settle(delivery)
            return
        batches: Batches = []
        self._add_received(link, batches, *self._loops.receive(link, batches), events)

    def _add_received(self, link: Link, batches: Batches, taken: int, largest: int, events: list[Event]) -> None:
        """Add events for the result of `EngineLoops.receive`, within the limits of the link."""
        link.credit -= taken
        limit = link._message_bytes_max
        if largest <= limit and link.credit >= 0:
            _add_transfers(link, batches, events)
            return
        _add_transfers(link, _before_violation(batches, limit, -link.credit), events)
        if largest > limit:
            self._detach(link, Condition("amqp:link:message-size-exceeded", f"more than {limit} bytes"), events)
        else:
            self._detach(link, Condition("amqp:link:transfer-limit-exceeded", "more than was granted"), events)

    def _on_flow(self, link: Link, events: list[Event]) -> None:
        if link.closed:
            return
        if link.is_sender:
            credit, draining = self._loops.credit(link)
            if credit != link.credit or draining != link.draining:
                link.credit, link.draining = credit, draining
                events.append(LinkFlow(link, credit, draining))
        elif returned := lib.pn_link_drained(link._pn):
            link.credit -= returned
            events.append(LinkFlow(link, link.credit, True))

    def _detach(self, link: Link, condition: Condition, events: list[Event]) -> None:
        self._links.detach(link, condition=condition)
        events.append(Detached(link, True, condition))


def _add_transfers(link: Link, batches: Batches, events: list[Event]) -> None:
    for settled, messages, transaction in batches:
        at_once = link.messages_at_once
        if at_once and len(messages) > at_once:
            parts = [messages[start : start + at_once] for start in range(0, len(messages), at_once)]
        else:
            parts = [messages]
        for part in parts:
            first = link._delivery_next
            if not settled:
                link._delivery_next += len(part)
            events.append(Transfers(link, range(first, link._delivery_next), part, settled, transaction))


def _before_violation(batches: Batches, bytes_max: int, beyond_credit: int) -> Batches:
    """Return the messages before the first that is too large, and without the last ones, which had no credit. The peer
    learns that the others were not taken, and may send them in another way."""
    room = sum(len(batch.messages) for batch in batches) - max(beyond_credit, 0)
    kept: Batches = []
    for settled, messages, transaction in batches:
        fitting = next((i for i, each in enumerate(messages) if len(each) > bytes_max), len(messages))
        fitting = min(fitting, room)
        room -= fitting
        if fitting:
            kept.append(TransferBatch(settled, messages[:fitting], transaction))
        if fitting < len(messages):
            break
    return kept
