"""The AMQP 1.0 machine: deliveries on Proton's engine, a read's messages at a time.

Proton keeps the protocol; this module turns its events into ours in groups (all complete messages of a link, all
dispositions of a link) and enforces what Proton leaves to its user: credit and message size. The loops here are the
hot path of the broker: about one microsecond a message.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from cproton import ffi, lib

from bridge.engine.events import Condition, Detached, Detail, Dispositions, Event, Flow, Link, State, Transfers
from bridge.engine.links import HANDLERS, Links
from bridge.engine.proton import SCRATCH_BYTES, read_remote_state, scratch, write_local_state

_DELIVERY = lib.PN_DELIVERY
_LINK_FLOW = lib.PN_LINK_FLOW


class _Groups:
    """What a run of delivery and flow events touched; told as one event a link."""

    __slots__ = ("dispositions", "flows", "received", "wrong")

    def __init__(self) -> None:
        self.received: dict[Link, None] = {}
        self.dispositions: dict[Link, list[tuple[int, State, bool, Detail]]] = {}
        self.flows: dict[Link, None] = {}
        self.wrong = False
        """The peer sent on a link it receives on."""


class Engine(Links):
    """One AMQP 1.0 connection, server or client; obeys `bridge.connection.Connection`. Not thread-safe.

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
        if link.closed:
            return
        take = link._unsettled.pop
        update, done = lib.pn_delivery_update, lib.pn_delivery_settle
        plain = state in (State.ACCEPTED, State.RELEASED)
        number = int(state)
        for delivery in deliveries:
            pn = take(delivery, None)
            if pn is None:
                continue
            if plain:
                update(pn, number)
            else:
                write_local_state(pn, state, condition)
            done(pn)

    # --- sending ----------------------------------------------------------------------------------------------

    def send(self, link: Link, tag: int, message: bytes, *, settled: bool = False) -> None:
        """Send one message; `tag` (0 <= tag < 2**64) names it in `Dispositions` and must be unique until settled.

        The caller keeps to ``link.credit``; what goes above it waits in Proton.
        """
        self.send_all(link, tag, (message,), settled=settled)

    def send_all(self, link: Link, first_tag: int, messages: Sequence[bytes], *, settled: bool = False) -> None:
        """Send messages under consecutive tags (see `send`)."""
        if link.closed:
            return
        pn, sent, tags = link._pn, link._sent, link._tags
        view, tag_bytes = scratch.tag_view, scratch.tag_bytes
        make, send, advance, settle = lib.pn_delivery, lib.pn_link_send, lib.pn_link_advance, lib.pn_delivery_settle
        for tag, message in enumerate(messages, first_tag):
            size = (tag.bit_length() + 7) // 8 or 1
            view[0:size] = tag.to_bytes(size, "big")
            tag_bytes.size = size
            delivery = make(pn, tag_bytes[0])
            send(pn, message, len(message))
            if settled:
                settle(delivery)
            else:
                advance(pn)
                sent[tag] = delivery
                tags[delivery] = tag
        link.credit -= len(messages)

    def settle_sent(self, link: Link, tag: int) -> None:
        """End a delivery of ours whose outcome came unsettled (or which is given up)."""
        delivery = link._sent.pop(tag, None)
        if delivery is not None and not link.closed:
            link._tags.pop(delivery, None)
            lib.pn_delivery_settle(delivery)

    def drained(self, link: Link) -> None:
        """Nothing (more) to send for a draining receiver: give its credit back."""
        if not link.closed:
            lib.pn_link_drained(link._pn)
            link.credit = lib.pn_link_credit(link._pn)
            link.draining = False

    # --- events of Proton -------------------------------------------------------------------------------------

    def _collect(self, now: float, events: list[Event]) -> None:
        collector, links = self._collector, self._links
        peek, pop, type_of = lib.pn_collector_peek, lib.pn_collector_pop, lib.pn_event_type
        link_of = lib.pn_event_link
        groups = _Groups()
        while event := peek(collector):
            kind = type_of(event)
            if kind == _DELIVERY:
                link = links.get(link_of(event))
                if link is None:
                    pass
                elif link.is_sender:
                    self._on_disposition(link, lib.pn_event_delivery(event), groups)
                else:
                    groups.received[link] = None
            elif kind == _LINK_FLOW:
                link = links.get(link_of(event))
                if link is not None:
                    groups.flows[link] = None
            else:
                handler = HANDLERS.get(kind)
                if handler is not None:
                    self._tell(groups, events)
                    if not self._told_closed:
                        handler(self, event, events)
            pop(collector)
        self._tell(groups, events)

    def _tell(self, groups: _Groups, events: list[Event]) -> None:
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

    def _on_disposition(self, link: Link, delivery: Any, groups: _Groups) -> None:
        tag = link._tags.get(delivery)
        if tag is None:  # settled by us meanwhile; or none of ours, which Proton would keep for us to receive
            if not link.closed and lib.pn_link_unsettled(link._pn) > len(link._sent):
                groups.wrong = True
            return
        if not lib.pn_delivery_updated(delivery):
            return
        state, detail = read_remote_state(delivery)
        settled = lib.pn_delivery_settled(delivery)
        if settled:
            del link._tags[delivery]
            link._sent.pop(tag, None)
            lib.pn_delivery_settle(delivery)
        elif not state.terminal:
            return
        groups.dispositions.setdefault(link, []).append((tag, state, settled, detail))

    def _on_flow(self, link: Link, events: list[Event]) -> None:
        if link.closed:
            return
        if link.is_sender:
            credit, draining = lib.pn_link_credit(link._pn), lib.pn_link_draining(link._pn)
            if credit != link.credit or draining != link.draining:
                link.credit, link.draining = credit, draining
                events.append(Flow(link, credit, draining))
        elif returned := lib.pn_link_drained(link._pn):
            link.credit -= returned
            events.append(Flow(link, link.credit, True))

    def _receive(self, link: Link, events: list[Event]) -> None:
        """Take every complete message of the link out of Proton."""
        pn, chars, view = link._pn, scratch.chars, scratch.view
        current, partial, receive = lib.pn_link_current, lib.pn_delivery_partial, lib.pn_link_recv
        is_settled, settle, advance = lib.pn_delivery_settled, lib.pn_delivery_settle, lib.pn_link_advance
        unsettled, limit = link._unsettled, link._message_bytes_max
        batches: list[tuple[bool, list[bytes]]] = []
        messages: list[bytes] = []
        run_settled = None
        number, received, largest = link._delivery_next, 0, 0
        while delivery := current(pn):
            if link.closed:
                settle(delivery)
                continue
            if partial(delivery):
                largest = max(largest, lib.pn_delivery_pending(delivery))
                break
            size = receive(pn, chars, SCRATCH_BYTES)
            received += 1
            if size < 0 and lib.pn_delivery_aborted(delivery):
                settle(delivery)
                continue
            message = view[: max(size, 0)] if size < SCRATCH_BYTES else _large(pn, delivery, view)
            largest = max(largest, len(message))
            settled = is_settled(delivery)
            if settled is not run_settled:
                run_settled, messages = settled, []
                batches.append((settled, messages))
            messages.append(message)
            if settled:
                settle(delivery)
            else:
                unsettled[number] = delivery
                number += 1
                advance(pn)
        self._tell_received(link, batches, events)
        link.credit -= received
        if largest > limit:
            self._violation(link, Condition("amqp:link:message-size-exceeded", f"more than {limit} bytes"), events)
        elif link.credit < 0:
            self._violation(link, Condition("amqp:link:transfer-limit-exceeded", "more than was granted"), events)

    def _tell_received(self, link: Link, batches: list[tuple[bool, list[bytes]]], events: list[Event]) -> None:
        for settled, messages in batches:
            first = link._delivery_next
            if not settled:
                link._delivery_next += len(messages)
            events.append(Transfers(link, range(first, link._delivery_next), messages, settled))

    def _violation(self, link: Link, condition: Condition, events: list[Event]) -> None:
        if not link.closed:
            self.detach(link, condition=condition)
            events.append(Detached(link, True, condition))


def _large(pn: Any, delivery: Any, head: Any) -> bytes:
    """A message larger than the scratch buffer, whose `head` fills it: the rest goes where it stays."""
    size = lib.pn_delivery_pending(delivery)
    message = bytearray(SCRATCH_BYTES + size)
    message[:SCRATCH_BYTES] = head[:]
    taken = lib.pn_link_recv(pn, ffi.from_buffer(message) + SCRATCH_BYTES, size) if size else 0
    return bytes(memoryview(message)[: SCRATCH_BYTES + max(taken, 0)])
