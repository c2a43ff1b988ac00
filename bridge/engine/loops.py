"""Hot loops of the AMQP machine in C (`loops.c`): one call per batch, with Python objects as arguments and results.

They move deliveries between Proton and Python; `machine` turns the events into those of the owner. Proton's objects are
addresses (integers) here. The tag of a delivery is valid if `_sent` maps it to the same delivery.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple

from cproton import ffi, lib

from bridge.engine.link import Link
from bridge.engine.links import HANDLERS
from bridge.engine.proton import read_remote_state, transaction_of, write_local_state
from bridge.engine.states import DeliveryState, Detail
from bridge.engine.transport import ProtonTransport
from bridge.hidden import hides
from bridge.native import functions as native

FUNCTIONS = (
    "pn_collector_peek", "pn_collector_pop", "pn_event_type", "pn_event_link", "pn_event_delivery",
    "pn_session_incoming_bytes", "pn_session_outgoing_bytes",
    "pn_link_is_sender", "pn_link_state", "pn_link_credit", "pn_link_get_drain",
    "pn_link_current", "pn_link_queued", "pn_link_advance", "pn_link_recv", "pn_link_send",
    "pn_delivery", "pn_delivery_tag", "pn_delivery_updated", "pn_delivery_remote_state", "pn_delivery_settled",
    "pn_delivery_partial", "pn_delivery_aborted", "pn_delivery_pending", "pn_delivery_update", "pn_delivery_settle",
    "pn_transport_push", "pn_transport_capacity", "pn_transport_pending", "pn_transport_peek", "pn_transport_pop",
)  # fmt: skip
"""Functions of Proton's C library that the loops call."""

ROWS_MAX: Final = 4096
"""Maximum number of outcomes in one call; further ones take another call."""

SMALL_BYTES: Final = native.SMALL_BYTES
"""Largest read for `EngineLoops.take`."""

_ACCEPTED, _SETTLED, _UPDATED, _RECEIVED, _DONE = 1, 2, 4, 8, 7
_STATE_ACCEPTED = DeliveryState.ACCEPTED
_STATE_RELEASED = DeliveryState.RELEASED
_DELIVERY, _LINK_FLOW = lib.PN_DELIVERY, lib.PN_LINK_FLOW
_DELIVERY_POINTER = ffi.typeof("pn_delivery_t *")

CONNECTION_EVENTS: Final = (lib.PN_CONNECTION_REMOTE_OPEN, lib.PN_CONNECTION_REMOTE_CLOSE, lib.PN_TRANSPORT_ERROR)
HANDLED_EVENTS: Final = frozenset((_DELIVERY, _LINK_FLOW, *HANDLERS, *CONNECTION_EVENTS))
"""Types of Proton's events that are handled; all others are ignored."""


@hides("messages")
class TransferBatch(NamedTuple):
    """Messages in order that are alike for the peer."""

    settled: bool
    """Settled by the peer."""
    messages: list[bytes]
    transaction: bytes | None = None
    """Their txn-id; None: they are part of no transaction."""


Batches = list[TransferBatch]


class Groups:
    """Consecutive delivery and flow events, grouped so that each link gets one event of each kind."""

    __slots__ = ("accepted_tags", "dispositions", "flows", "received", "wrong")

    def __init__(self) -> None:
        self.received: dict[Link, None] = {}
        self.accepted_tags: dict[Link, list[int]] = {}
        """Tags of messages that the peer accepted and settled, for links with `Link.accepted_by_tag`."""
        self.dispositions: dict[Link, list[tuple[int, DeliveryState, bool, Detail]]] = {}
        self.flows: dict[Link, None] = {}
        self.wrong = False
        """True when the peer sent a message on a link where it is the receiver."""

    def accepted(self, link: Link, tags: Sequence[int]) -> None:
        """Add messages that the peer has accepted and settled."""
        if not tags:
            return
        if link.accepted_by_tag:
            self.accepted_tags.setdefault(link, []).extend(tags)
        else:
            self.dispositions.setdefault(link, []).extend([(tag, _STATE_ACCEPTED, True, None) for tag in tags])


SendBuffer = tuple[ProtonTransport, list[bytes]]
"""The transport that encodes sent messages, and the list for frames that are ready."""

Taken = tuple[Link, Batches, int, int]
"""A link and the result of `EngineLoops.receive` for it."""

Read = tuple[bool, Taken | None, Groups | None, Any, int]
"""(Proton has stopped reading; the messages, if only messages of one link arrived; otherwise the groups; the event that
`EngineLoops.collect` returned; number of bytes not yet passed to Proton, because they follow that event). Proton stops
reading at the end, or at an invalid frame, for which it has no event."""

Received = tuple[list[bytes], list[int], int, bool, bool, int, bool, bytes | None, bool]
"""(messages; deliveries of unsettled messages, and of all that are part of transactions; number of deliveries taken,
including aborted ones; settled by the peer; more can be taken; bytes of the largest message, complete or not; the first
message was aborted; bytes of a large incomplete message; the messages are part of transactions)."""

Message = tuple[int, int, bytes, bool, bool]
"""(link, delivery, message, True if its header section was removed, True if Proton has more events)."""


class EngineLoops:
    """Loops over the messages of a connection. They own `_unsettled` and `_sent` of its links."""

    def __init__(self) -> None:
        addresses = {name: int(ffi.cast("uintptr_t", ffi.addressof(lib, name))) for name in FUNCTIONS}
        native.bind_proton(addresses, _DELIVERY, _LINK_FLOW, sum(1 << kind for kind in HANDLED_EVENTS), ROWS_MAX)

    def read(self, transport: ProtonTransport, data: bytes, links: Mapping[int, Link]) -> Read:
        """Pass received bytes to Proton, piece by piece, and `collect` its events. Stops at an event that `collect`
        returns, and after part of a large message. `links`: links by `address_of`."""
        rows, received, waits, closed, left = native.amqp_read(transport.address, transport.collector_address, data)
        if received is not None:
            link = links.get(rows[0][0])
            if link is not None and not link.closed:
                return closed, self._taken(link, received), None, None, left
            native.amqp_forget(received[1])
        elif not (rows or waits):
            return closed, None, None, None, left
        groups = Groups()
        self._sort(rows, links, groups)  # settling creates further events, which `collect` takes
        return closed, None, groups, self.collect(transport, links, groups), left

    def _taken(self, link: Link, received: Received) -> Taken:
        """Fast path of `_take_over` for the usual result: complete messages and nothing else."""
        messages, deliveries, taken, settled, more, largest, _, begins, transactional = received
        if more or not messages or begins is not None or transactional or link._deliveries.partial:
            batches: Batches = []
            return link, batches, *self._take_over(link, batches, received)
        if len(deliveries) == 1:
            link._unsettled[link._delivery_next] = deliveries[0]
            link._deliveries.unsettled += 1
        elif deliveries:
            link._unsettled.update(enumerate(deliveries, link._delivery_next))
            link._deliveries.unsettled += len(deliveries)
        return link, [TransferBatch(settled, messages)], taken, largest

    def take(self, transport: int, collector: int, header: bytes, data: bytes) -> Message | None:
        """Pass one read of at most `SMALL_BYTES` to Proton, and take the single message in it. `header`: the usual
        header section, which is removed. Return None for any other content; then call `collect`."""
        return native.amqp_take_single(transport, collector, header, data)  # type: ignore[no-any-return]

    def settle_all(self, deliveries: list[int]) -> None:
        """Accept and settle these deliveries of peers."""
        native.amqp_settle_all(deliveries)

    def write(self, transport: ProtonTransport, output: list[bytes]) -> bool:
        """See `ProtonTransport.pull`."""
        return bool(native.amqp_write(transport.address, output))

    def has_output(self, transport: ProtonTransport) -> bool:
        """Return True when Proton has bytes to send, or its output has ended."""
        return bool(native.amqp_has_output(transport.address))

    def held_bytes(self, sessions: Iterable[int]) -> int:
        """Return the bytes of messages that are incomplete, not taken or not sent, in these sessions (addresses)."""
        return int(native.amqp_held_bytes(sessions))

    def collect(self, transport: ProtonTransport, links: Mapping[int, Link], groups: Groups) -> Any:
        """Take delivery and flow events off the collector. Return the first other event of `HANDLED_EVENTS`, which
        stays on the collector; None when the collector is empty.

        Also settle our deliveries that the peer has settled.
        """
        while True:
            rows, waits = native.amqp_collect(transport.collector_address)
            if not rows:
                return lib.pn_collector_peek(transport.collector) if waits else None
            self._sort(rows, links, groups)

    def _sort(self, rows: Sequence[tuple[int, Any, Any, int]], links: Mapping[int, Link], groups: Groups) -> None:
        address, link, items = 0, None, None
        sent: dict[int, int] = {}
        over: list[int] = []
        for link_address, delivery, tag, marks in rows:
            if link_address != address:
                address, items = link_address, None
                link = links.get(address)
                if link is not None:
                    sent = link._sent
            if link is None:
                continue
            if marks == _DONE:
                native.amqp_forget(over)
                over.clear()
                items = None
                self._take_accepted(link, delivery, tag, groups)
                continue
            if not delivery:
                (groups.received if marks == _RECEIVED else groups.flows)[link] = None
                continue
            if sent.get(tag) != delivery:
                native.amqp_forget(over)
                over.clear()
                detect_transfer(link, groups)
                continue
            if not marks & _UPDATED:
                continue
            state, detail = _STATE_ACCEPTED, None
            if not marks & _ACCEPTED:
                state, detail = read_remote_state(ffi.cast(_DELIVERY_POINTER, delivery))
                if not (marks & _SETTLED or state.terminal):
                    continue
            settled = marks & _SETTLED != 0
            if settled:
                del sent[tag]
                link._deliveries.unsettled -= 1
                over.append(delivery)
            if items is None:
                items = groups.dispositions.setdefault(link, [])
            items.append((tag, state, settled, detail))
        native.amqp_forget(over)

    def _take_accepted(self, link: Link, deliveries: list[int], tags: list[int], groups: Groups) -> None:
        """Handle deliveries that the peer has accepted and settled."""
        found = native.amqp_forget_accepted(link._sent, deliveries, tags)
        link._deliveries.unsettled -= len(found)
        if len(found) < len(tags):
            detect_transfer(link, groups)
        groups.accepted(link, found)

    def receive(self, link: Link, batches: Batches) -> tuple[int, int]:
        """Take all complete messages of an open link. Return the number of deliveries, and the bytes of the largest."""
        return self._take_over(link, batches, native.amqp_receive(link._address))

    def _take_over(self, link: Link, batches: Batches, received: Received) -> tuple[int, int]:
        """Add a result of `amqp_receive` to the link and the batches; call it again until no message is left."""
        number, taken, largest = link._delivery_next, 0, 0
        while True:
            messages, deliveries, count, settled, more, bytes_max, first_aborted, begins, transactional = received
            taken += count
            largest = max(largest, bytes_max, _join_parts(link, messages, first_aborted, begins))
            if transactional:
                deliveries = _add_transactional(batches, messages, deliveries, settled=settled)
            elif messages:
                batches.append(TransferBatch(settled, messages))
            link._unsettled.update(enumerate(deliveries, number))
            link._deliveries.unsettled += len(deliveries)
            if not more:
                return taken, largest
            number += len(deliveries)
            received = native.amqp_receive(link._address)

    def strip_header(self, messages: Sequence[bytes], header: bytes) -> list[bytes] | None:
        """Remove this header section (or none) from each message. Return None if any message needs closer inspection:
        another header, annotations, absolute-expiry-time or a later property, or a malformed section."""
        return native.amqp_strip_header(messages, header)

    def malformed_at(self, message: bytes) -> int:
        """Return the offset of the first section that is malformed or out of order; -1 for a well-formed message.

        Checks every value (part 1, section 1.6) and the order and types of the sections (part 3, section 3.2). Fields
        of the header and of the properties may have any type, because clients write strings for symbols. A message
        without a body passes, because clients send such messages."""
        return native.amqp_malformed_at(message)

    def credit(self, link: Link) -> tuple[int, bool]:
        """Return the number of messages that may be sent on an open link, and True when the peer drains it."""
        return native.amqp_credit(link._address)

    def settle(self, link: Link, deliveries: Iterable[int], state: DeliveryState, detail: Detail) -> None:
        """See `Engine.settle`; the link is open."""
        if state is _STATE_ACCEPTED or state is _STATE_RELEASED:  # no fields
            link._deliveries.unsettled -= native.amqp_settle(link._unsettled, deliveries, state)
            return
        for number in deliveries:
            delivery = link._unsettled.pop(number, 0)
            if delivery:
                link._deliveries.unsettled -= 1
                pn = ffi.cast(_DELIVERY_POINTER, delivery)
                write_local_state(pn, state, detail)
                lib.pn_delivery_settle(pn)

    def send(
        self, link: Link, first_tag: int, messages: Sequence[bytes], buffer: SendBuffer | None, *, settled: bool
    ) -> None:
        """See `Engine.send_all`; the link is open. Large messages are encoded into `buffer` piece by piece, see
        `PARTIAL_BYTES_MIN` of `loops.c`; None: nothing may be sent yet."""
        transport, output = (buffer[0].address, buffer[1]) if buffer is not None else (0, None)
        native.amqp_send(link._address, first_tag, messages, None if settled else link._sent, transport, output)
        if not settled:
            link._deliveries.unsettled += len(messages)

    def settle_sent(self, link: Link, tag: int) -> None:
        """See `Engine.settle_sent`."""
        delivery = link._sent.pop(tag, None)
        if delivery is None:
            return
        link._deliveries.unsettled -= 1
        if not link.closed:
            lib.pn_delivery_settle(ffi.cast(_DELIVERY_POINTER, delivery))


def detect_transfer(link: Link, groups: Groups) -> None:
    """Set `Groups.wrong` if the peer sent a message on a link where we are the sender.

    Called for a delivery that is not in `_sent`: either we have settled it, or it is the peer's. Deliveries of the peer
    stay in Proton, so they are counted there. Settle every delivery taken out of `_sent` before this call.
    """
    if not link.closed and lib.pn_link_unsettled(link._pn) > len(link._sent):
        groups.wrong = True


def _add_transactional(batches: Batches, messages: list[bytes], deliveries: list[int], *, settled: bool) -> list[int]:
    """Add messages by transaction. Return the deliveries that the peer has not settled."""
    names = [transaction_of(ffi.cast(_DELIVERY_POINTER, each)) for each in deliveries]
    for name, pairs in groupby(zip(names, messages, strict=True), key=itemgetter(0)):
        batches.append(TransferBatch(settled, [message for _, message in pairs], name))
    if not settled:
        return deliveries
    native.amqp_forget(deliveries)
    return []


def _join_parts(link: Link, messages: list[bytes], first_aborted: bool, begins: bytes | None) -> int:
    """Prepend the stored part of a message to the first of `messages`, and store the part of the next one (`begins`).
    Return the bytes of the larger of the two."""
    partial, largest = link._deliveries.partial, 0
    if link in partial and (first_aborted or messages):
        before = partial.pop(link)
        if not first_aborted:
            messages[0] = b"".join((before, messages[0]))
            largest = len(messages[0])
    if begins is not None:
        partial.setdefault(link, bytearray()).extend(begins)
    return max(largest, len(partial.get(link, b"")))


LOOPS: Final = EngineLoops()
"""The loops of every engine of this process."""
