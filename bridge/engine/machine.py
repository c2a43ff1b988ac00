"""The AMQP 1.0 machine: deliveries on Proton's engine, a read's messages at a time.

Proton keeps the protocol; this module turns its events into ours in groups (all complete messages of a link, all
dispositions of a link) and enforces what Proton leaves to its user: credit and message size. The loops over messages,
the hot path of the broker, are `loops` and `compiled`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cproton import lib

from bridge.engine.events import Condition, Detached, Dispositions, Event, Flow, Link, State, Transfers
from bridge.engine.links import HANDLERS, Links
from bridge.engine.loops import Batches, Groups
from bridge.engine.proton import answer_drain


class Engine(Links):
    """One AMQP 1.0 connection, server or client; obeys `bridge.transport.connection.Connection`. Not thread-safe.

    Commands on a link that is closed, or after the connection is over, do nothing: an owner may be late.
    Proton writes message-format 0 on every transfer and drops what came in: the format of what a link carries is agreed
    on when it is attached (`desired_capabilities`, `offered_capabilities`).
    """

    # --- receiving --------------------------------------------------------------------------------------------

    def grant(self, link: Link, credit: int, *, drain: bool = False) -> None:
        """Let the peer send `credit` more messages; with `drain`, ask for what it has and the rest back (`Flow`)."""
        if link.closed or (credit <= 0 and not drain):
            return
        link.credit += credit
        if drain:
            lib.pn_link_drain(link._pn, credit)
        else:
            lib.pn_link_flow(link._pn, credit)

    def settle(
        self, link: Link, deliveries: Iterable[int], state: State = State.ACCEPTED, condition: Condition | None = None
    ) -> None:
        """Give these deliveries their outcome and forget them; numbers that are settled already are skipped."""
        if not link.closed:
            self._loops.settle(link, deliveries, state, condition)

    # --- sending ----------------------------------------------------------------------------------------------

    def send(self, link: Link, tag: int, message: bytes, *, settled: bool = False) -> None:
        """Send one message; `tag` (0 <= tag < 2**64) names it in `Dispositions` and must be unique until settled.

        The caller keeps to ``link.credit``; what goes above it waits in Proton.
        """
        self.send_all(link, tag, (message,), settled=settled)

    def send_all(self, link: Link, first_tag: int, messages: Sequence[bytes], *, settled: bool = False) -> None:
        """Send messages under consecutive tags (see `send`)."""
        if link.closed or not messages:
            return
        self._loops.send(link, first_tag, messages, settled=settled)
        link.credit -= len(messages)

    def settle_sent(self, link: Link, tag: int) -> None:
        """End a delivery of ours whose outcome came unsettled (or which is given up)."""
        self._loops.settle_sent(link, tag)

    def drained(self, link: Link) -> None:
        """Nothing (more) to send for a draining receiver: give its credit back, and say so where it left none."""
        if not link.closed:
            if not lib.pn_link_drained(link._pn) and link.draining and link.attached:
                answer_drain(link._pn)
            link.credit = lib.pn_link_credit(link._pn)
            link.draining = False

    # --- events of Proton -------------------------------------------------------------------------------------

    def _collect(self, now: float, events: list[Event]) -> None:
        collector, links, collect = self._collector, self._links, self._loops.collect
        groups = Groups()
        while event := collect(collector, links, groups):
            handler = HANDLERS.get(lib.pn_event_type(event))
            if handler is not None:
                self._tell(groups, events)
                if not self._told_closed:
                    handler(self, event, events)
            lib.pn_collector_pop(collector)
        self._tell(groups, events)

    def _tell(self, groups: Groups, events: list[Event]) -> None:
        for link in groups.received:
            self._receive(link, events)
        for link, items in groups.dispositions.items():
            if not link.closed:
                events.append(Dispositions(link, items))
        for link in groups.flows:
            self._on_flow(link, events)
        if groups.wrong and not self._told_closed:
            events += self._cut(Condition("amqp:not-allowed", "transfer on a link the peer is the receiver of"))
        groups.received.clear()
        groups.dispositions.clear()
        groups.flows.clear()

    def _on_flow(self, link: Link, events: list[Event]) -> None:
        if link.closed:
            return
        if link.is_sender:
            credit, draining = lib.pn_link_credit(link._pn), lib.pn_link_get_drain(link._pn)
            if credit != link.credit or draining != link.draining:
                link.credit, link.draining = credit, draining
                events.append(Flow(link, credit, draining))
        elif returned := lib.pn_link_drained(link._pn):
            link.credit -= returned
            events.append(Flow(link, link.credit, True))

    def _receive(self, link: Link, events: list[Event]) -> None:
        """Take every complete message of the link out of Proton."""
        if link.closed:
            while delivery := lib.pn_link_current(link._pn):
                lib.pn_delivery_settle(delivery)
            return
        batches: Batches = []
        taken, largest = self._loops.receive(link, batches)
        link.credit -= taken
        limit = link._message_bytes_max
        if largest <= limit and link.credit >= 0:
            self._tell_received(link, batches, events)
            return
        self._tell_received(link, _before_violation(batches, limit, -link.credit), events)
        if largest > limit:
            self._violation(link, Condition("amqp:link:message-size-exceeded", f"more than {limit} bytes"), events)
        else:
            self._violation(link, Condition("amqp:link:transfer-limit-exceeded", "more than was granted"), events)

    def _tell_received(self, link: Link, batches: Batches, events: list[Event]) -> None:
        for settled, messages in batches:
            first = link._delivery_next
            if not settled:
                link._delivery_next += len(messages)
            events.append(Transfers(link, range(first, link._delivery_next), messages, settled))

    def _violation(self, link: Link, condition: Condition, events: list[Event]) -> None:
        if not link.closed:
            self.detach(link, condition=condition)
            events.append(Detached(link, True, condition))


def _before_violation(batches: Batches, bytes_max: int, beyond_credit: int) -> Batches:
    """The messages before the first that is too large, without the last ones, which there was no credit for: the peer
    hears that these were not taken, and may send them otherwise."""
    room = sum(len(messages) for _, messages in batches) - max(beyond_credit, 0)
    kept: Batches = []
    for settled, messages in batches:
        fitting = next((i for i, each in enumerate(messages) if len(each) > bytes_max), len(messages))
        fitting = min(fitting, room)
        room -= fitting
        if fitting:
            kept.append((settled, messages[:fitting]))
        if fitting < len(messages):
            break
    return kept
