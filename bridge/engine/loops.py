"""The hot loops of the AMQP machine in C (`loops.c`): one call a batch, which gives and takes objects of Python.

They take the deliveries of a link out of Proton and put ours into it; what the events mean for the owner is `machine`'s
business. Proton's objects are addresses (integers) here. A tag is found in the delivery itself, and counts when `_sent`
has that very delivery under it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from cproton import ffi, lib

from bridge.engine.link import Link
from bridge.engine.links import HANDLERS
from bridge.engine.proton import read_remote_state, write_local_state
from bridge.engine.states import DeliveryState, Detail
from bridge.engine.transport import ProtonTransport
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
"""Outcomes that one call hands over; more take another call."""

SMALL_BYTES: Final = 4096
"""A read of more is not given to Proton by `EngineLoops.take`; as in `loops.c`."""

_ACCEPTED, _SETTLED, _UPDATED, _RECEIVED, _DONE = 1, 2, 4, 8, 7
_STATE_ACCEPTED = DeliveryState.ACCEPTED
_STATE_RELEASED = DeliveryState.RELEASED
_DELIVERY, _LINK_FLOW = lib.PN_DELIVERY, lib.PN_LINK_FLOW
_DELIVERY_POINTER = ffi.typeof("pn_delivery_t *")

OF_THE_CONNECTION: Final = (lib.PN_CONNECTION_REMOTE_OPEN, lib.PN_CONNECTION_REMOTE_CLOSE, lib.PN_TRANSPORT_ERROR)
TOLD: Final = frozenset((_DELIVERY, _LINK_FLOW, *HANDLERS, *OF_THE_CONNECTION))
"""Proton's events that mean something here; nothing is done with the others."""

Batches = list[tuple[bool, list[bytes]]]
"""Messages in order, in runs of the same kind: (settled by the peer, messages)."""


class Groups:
    """What a run of delivery and flow events touched; told as one event a link."""

    __slots__ = ("apart", "dispositions", "flows", "received", "wrong")

    def __init__(self) -> None:
        self.received: dict[Link, None] = {}
        self.apart: dict[Link, list[int]] = {}
        """Tags of what the peer has accepted and settled, of links where that is told apart."""
        self.dispositions: dict[Link, list[tuple[int, DeliveryState, bool, Detail]]] = {}
        self.flows: dict[Link, None] = {}
        self.wrong = False
        """The peer sent on a link it receives on."""

    def accepted(self, link: Link, tags: Sequence[int]) -> None:
        """The peer has accepted and settled these."""
        if not tags:
            return
        if link.accepted_apart:
            self.apart.setdefault(link, []).extend(tags)
        else:
            self.dispositions.setdefault(link, []).extend([(tag, _STATE_ACCEPTED, True, None) for tag in tags])


Way = tuple[ProtonTransport, list[bytes]]
"""Of what we send: what makes frames of it, and where these are put that can leave."""

Taken = tuple[Link, Batches, int, int]
"""A link and what `EngineLoops.receive` gives of it."""

Read = tuple[bool, Taken | None, Groups | None, Any, int]
"""Whether Proton reads no more (it met a frame it cannot read, and says nothing; or the end), then either messages of
one link, which is all that came, or groups and what `EngineLoops.collect` returned; or nothing. Last how many of the
bytes are left: an event waits that comes before them."""

PIECE_BYTES: Final = 8 * 1024
"""Given to Proton between two looks whether an event waits: 80 attaches, 2 ms. In `loops.c` too."""

BEGUN_BYTES: Final = 16 * 1024
"""Of a message that is not complete: so many are taken out of Proton, which keeps the memory of the largest piece that
it had to hold for each delivery under way, for as long as the connection is there. In `loops.c` too."""

QUEUED_FEW: Final = 4
"""Messages: where so many bytes brought fewer of them they are large, and taken before more is read. As above."""

Received = tuple[list[bytes], list[int], int, bool, bool, int, bool, bytes | None]
"""Messages, their deliveries where they are not settled, how many were taken with those the peer has aborted, whether
they are settled, whether more can be taken, bytes of the largest, whole or not; whether the first was aborted, what
there is of a large one that is not complete."""

Message = tuple[int, int, bytes, bool, bool]
"""A link and a delivery of it, the message, whether the header was taken off it, whether Proton has more to tell."""


class EngineLoops:
    """The loops over messages of one connection. What they keep in `_unsettled` and `_sent` of a link is theirs."""

    def __init__(self) -> None:
        addresses = {name: int(ffi.cast("uintptr_t", ffi.addressof(lib, name))) for name in FUNCTIONS}
        native.bind_proton(addresses, _DELIVERY, _LINK_FLOW, sum(1 << kind for kind in TOLD), ROWS_MAX)

    def read(self, transport: ProtonTransport, data: bytes, links: Mapping[int, Link]) -> Read:
        """Give Proton bytes of the peer, a piece at a time, and do as `collect`; what is behind an event that `collect`
        returns is left, as is what comes once there is something of large messages. `links` are by `address_of`."""
        rows, received, waits, deaf, left = native.amqp_read(transport.address, transport.collector_address, data)
        if received is not None:
            link = links.get(rows[0][0])
            if link is not None and not link.closed:
                return deaf, self._taken(link, received), None, None, left
            native.amqp_forget(received[1])
        elif not (rows or waits):
            return deaf, None, None, None, left
        groups = Groups()
        self._sort(rows, links, groups)  # which makes events: what Proton does when we settle
        return deaf, None, groups, self.collect(transport, links, groups), left

    def _taken(self, link: Link, received: Received) -> Taken:
        """As `_take_over`; most often there is no more."""
        messages, deliveries, taken, settled, more, largest, _, begins = received
        if more or not messages or begins is not None or link._deliveries.begun:
            batches: Batches = []
            return link, batches, *self._take_over(link, batches, received)
        if len(deliveries) == 1:
            link._unsettled[link._delivery_next] = deliveries[0]
            link._deliveries.unsettled += 1
        elif deliveries:
            link._unsettled.update(enumerate(deliveries, link._delivery_next))
            link._deliveries.unsettled += len(deliveries)
        return link, [(settled, messages)], taken, largest

    def take(self, transport: int, collector: int, header: bytes, data: bytes) -> Message | None:
        """Give Proton the bytes of one read, `SMALL_BYTES` at most, and take the message that they contain. Most have
        this header section. Return None for anything but one message: Proton has the bytes, and has to be asked."""
        return native.amqp_take(transport, collector, header, data)  # type: ignore[no-any-return]

    def settle_all(self, deliveries: list[int]) -> None:
        """Accept these deliveries of peers, and forget them."""
        native.amqp_settle_all(deliveries)

    def write(self, transport: ProtonTransport, output: list[bytes]) -> bool:
        """See `ProtonTransport.pull`."""
        return bool(native.amqp_write(transport.address, output))

    def has_output(self, transport: ProtonTransport) -> bool:
        """Proton wants to send something, or never will again."""
        return bool(native.amqp_has_output(transport.address))

    def held_bytes(self, sessions: Iterable[int]) -> int:
        """Bytes of messages that are not complete, not taken or not sent, in the sessions at these addresses."""
        return int(native.amqp_held(sessions))

    def collect(self, transport: ProtonTransport, links: Mapping[int, Link], groups: Groups) -> Any:
        """Take delivery and flow events off the collector, up to another one that is `TOLD`, which stays: returned.

        None when there is nothing more. Dispositions of ours that the peer settled are settled here too.
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
                look_for_transfer(link, groups)
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
        """Deliveries of ours under these tags that the peer has accepted and settled."""
        found = native.amqp_forget_accepted(link._sent, deliveries, tags)
        link._deliveries.unsettled -= len(found)
        if len(found) < len(tags):
            look_for_transfer(link, groups)
        groups.accepted(link, found)

    def receive(self, link: Link, batches: Batches) -> tuple[int, int]:
        """Take every complete message of an open link: (deliveries taken, bytes of the largest, whole or not)."""
        return self._take_over(link, batches, native.amqp_receive(link._address))

    def _take_over(self, link: Link, batches: Batches, received: Received) -> tuple[int, int]:
        """What C has received, and all that it has not yet."""
        number, taken, largest = link._delivery_next, 0, 0
        while True:
            messages, deliveries, count, settled, more, bytes_max, first_aborted, begins = received
            taken += count
            largest = max(largest, bytes_max, _joined(link, messages, first_aborted, begins))
            if messages:
                batches.append((settled, messages))
            link._unsettled.update(enumerate(deliveries, number))
            link._deliveries.unsettled += len(deliveries)
            if not more:
                return taken, largest
            number += len(deliveries)
            received = native.amqp_receive(link._address)

    def usual_bodies(self, messages: Sequence[bytes], header: bytes) -> list[bytes] | None:
        """Return the messages without `header`, where each begins with this header section (or none) and goes on with a
        whole section of the bare message that has no annotations and no properties as far as absolute-expiry-time.
        Return None where one does not, says so in an unusual form, or is malformed."""
        return native.amqp_usual_bodies(messages, header)

    def malformed_at(self, message: bytes) -> int:
        """Return where the first section begins that is malformed or out of order; -1 for a well-formed message.

        Checks every value (part 1, section 1.6) and the order and types of the sections (part 3, section 3.2). Fields
        of the header and of the properties may have any type, because clients write strings for symbols. A message
        without a body passes, because clients send such messages."""
        return native.amqp_malformed_at(message)

    def credit(self, link: Link) -> tuple[int, bool]:
        """Messages that may be sent on an open link, and whether the peer drains it."""
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

    def send(self, link: Link, first_tag: int, messages: Sequence[bytes], way: Way | None, *, settled: bool) -> None:
        """See `Engine.send_all`; the link is open. Large messages go their `way` piece by piece, for the reason of
        `BEGUN_BYTES`; None: nothing can leave yet."""
        transport, output = (way[0].address, way[1]) if way is not None else (0, None)
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


def look_for_transfer(link: Link, groups: Groups) -> None:
    """An event of a sending link is about no delivery we have out: settled by us meanwhile, or not made by us.

    The latter Proton would keep for us to receive. Every delivery taken out of `_sent` must be settled by now.
    """
    if not link.closed and lib.pn_link_unsettled(link._pn) > len(link._sent):
        groups.wrong = True


def _joined(link: Link, messages: list[bytes], first_aborted: bool, begins: bytes | None) -> int:
    """Put what had come of a message before the rest of it, which is the first of these; keep what has come of the next
    one (`begins`). Returns the bytes of the larger of the two."""
    begun, largest = link._deliveries.begun, 0
    if link in begun and (first_aborted or messages):
        before = begun.pop(link)
        if not first_aborted:
            messages[0] = b"".join((before, messages[0]))
            largest = len(messages[0])
    if begins is not None:
        begun.setdefault(link, bytearray()).extend(begins)
    return max(largest, len(begun.get(link, b"")))


LOOPS: Final = EngineLoops()
"""The loops of every engine of this process."""
