"""The hot loops of the AMQP machine in C (`loops.c`): one call a batch, which gives and takes objects of Python.

Proton's objects are addresses (integers) here. A tag is found in the delivery itself, and counts when `_sent` has that
very delivery under it; so `_tags` stays empty.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from cproton import ffi, lib

from bridge import libraries
from bridge.engine.link import Link
from bridge.engine.loops import TOLD, Batches, Groups, Loops, Read, Taken, Way, look_for_transfer
from bridge.engine.proton import read_remote_state, write_local_state
from bridge.engine.states import Detail, State
from bridge.engine.transport import Transport

SOURCE = libraries.ROOT / "bridge/engine/loops.c"

FUNCTIONS = (
    "pn_collector_peek", "pn_collector_pop", "pn_event_type", "pn_event_link", "pn_event_delivery",
    "pn_session_incoming_bytes", "pn_session_outgoing_bytes",
    "pn_link_is_sender", "pn_link_credit", "pn_link_get_drain",
    "pn_link_current", "pn_link_queued", "pn_link_advance", "pn_link_recv", "pn_link_send",
    "pn_delivery", "pn_delivery_tag", "pn_delivery_updated", "pn_delivery_remote_state", "pn_delivery_settled",
    "pn_delivery_partial", "pn_delivery_aborted", "pn_delivery_pending", "pn_delivery_update", "pn_delivery_settle",
    "pn_transport_push", "pn_transport_capacity", "pn_transport_pending", "pn_transport_peek", "pn_transport_pop",
)  # fmt: skip
"""What ``struct proton`` in `loops.c` begins with, in its order."""

ENTRY: Final = "waypost_loops"
"""The one function of the library that is called by its name: it gives the others."""

ROWS_MAX: Final = 4096
"""Outcomes that one call hands over; more take another call."""

SMALL_BYTES: Final = 4096
"""A read of more is not given to Proton by `CompiledLoops.receive_all`; as in `loops.c`."""

_ACCEPTED, _SETTLED, _UPDATED, _RECEIVED, _DONE = 1, 2, 4, 8, 7
_STATE_ACCEPTED = State.ACCEPTED
_STATE_RELEASED = State.RELEASED
_DELIVERY, _LINK_FLOW = lib.PN_DELIVERY, lib.PN_LINK_FLOW
_DELIVERY_POINTER = ffi.typeof("pn_delivery_t *")

Received = tuple[list[bytes], list[int], int, bool, bool, int, bool, bytes | None]
"""Messages, their deliveries where they are not settled, how many were taken with those the peer has aborted, whether
they are settled, whether more can be taken, bytes of the largest, whole or not; whether the first was aborted, what
there is of a large one that is not complete."""

Message = tuple[int, int, bytes, bool, bool]
"""A link and a delivery of it, the message, whether the header was taken off it, whether Proton has more to tell."""

Brought = None | int | bytes | Message
"""What a socket brought: nothing; bytes that Proton was given and is to be asked about, so many (0: the socket has
ended); bytes that it was not given; or a message."""


def library_path() -> Path:
    """Where the compiled `loops.c` has to be. Raises OSError when the source is not there."""
    return libraries.library_path(SOURCE)


class CompiledLoops(Loops):
    """`bridge.engine.loops.Loops` over a library made of `loops.c`. Raises OSError when it cannot be loaded."""

    def __init__(self, library: Path) -> None:
        entry = libraries.entry_of(library, ENTRY)
        table = [int(ffi.cast("uintptr_t", ffi.addressof(lib, name))) for name in FUNCTIONS]
        told = sum(1 << kind for kind in TOLD)
        numbers = [*table, _DELIVERY, _LINK_FLOW, told, ROWS_MAX]
        functions = entry((ctypes.c_size_t * len(numbers))(*numbers))
        (
            self._read, self._collect, self._receive, self._settle, self._forget, self._send, self._write,
            self._credit, self._held, self._has_output, self._usual_bodies,
            self._receive_all, self._settle_all, self._write_all, self._forget_accepted,
            self._malformed_at,
        ) = functions  # fmt: skip

    def read(self, transport: Transport, data: bytes, links: Mapping[int, Link]) -> Read:
        """See `Loops`."""
        rows, received, waits, deaf, left = self._read(transport.address, transport.collector_address, data)
        if received is not None:
            link = links.get(rows[0][0])
            if link is not None and not link.closed:
                return deaf, self._taken(link, received), None, None, left
            self._forget(received[1])
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

    def receive_all(self, sockets: list[tuple[int, int, int, bytes]]) -> list[Brought]:
        """Receive of each of these sockets once: (descriptor, addresses of its engine's transport and collector, the
        header section its messages have as a rule)."""
        return self._receive_all(sockets)  # type: ignore[no-any-return]

    def settle_all(self, deliveries: list[int]) -> None:
        """Accept these deliveries of peers, and forget them."""
        self._settle_all(deliveries)

    def write_all(self, sockets: list[tuple[int, int]]) -> list[int]:
        """Send what Proton wants to send: (descriptor, address of its engine's transport). Returns the indexes of those
        that `write` has to look after: the socket did not take all, or the transport has ended."""
        return self._write_all(sockets)  # type: ignore[no-any-return]

    def write(self, transport: Transport, output: list[bytes]) -> bool:
        """See `Loops`."""
        return bool(self._write(transport.address, output))

    def has_output(self, transport: Transport) -> bool:
        """See `Loops`."""
        return bool(self._has_output(transport.address))

    def held_bytes(self, sessions: Iterable[int]) -> int:
        """See `Loops`."""
        return int(self._held(sessions))

    def collect(self, transport: Transport, links: Mapping[int, Link], groups: Groups) -> Any:
        """See `Loops`."""
        while True:
            rows, waits = self._collect(transport.collector_address)
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
                self._forget(over)
                over.clear()
                items = None
                self._take_accepted(link, delivery, tag, groups)
                continue
            if not delivery:
                (groups.received if marks == _RECEIVED else groups.flows)[link] = None
                continue
            if sent.get(tag) != delivery:
                self._forget(over)
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
        self._forget(over)

    def _take_accepted(self, link: Link, deliveries: list[int], tags: list[int], groups: Groups) -> None:
        """Deliveries of ours under these tags that the peer has accepted and settled."""
        found = self._forget_accepted(link._sent, deliveries, tags)
        link._deliveries.unsettled -= len(found)
        if len(found) < len(tags):
            look_for_transfer(link, groups)
        groups.accepted(link, found)

    def receive(self, link: Link, batches: Batches) -> tuple[int, int]:
        """See `Loops`."""
        return self._take_over(link, batches, self._receive(link._address))

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
            received = self._receive(link._address)

    def usual_bodies(self, messages: Sequence[bytes], header: bytes) -> list[bytes] | None:
        """See `Loops`."""
        return self._usual_bodies(messages, header)  # type: ignore[no-any-return]

    def malformed_at(self, message: bytes) -> int:
        """See `Loops`."""
        return self._malformed_at(message)  # type: ignore[no-any-return]

    def credit(self, link: Link) -> tuple[int, bool]:
        """See `Loops`."""
        return self._credit(link._address)  # type: ignore[no-any-return]

    def settle(self, link: Link, deliveries: Iterable[int], state: State, detail: Detail) -> None:
        """See `Loops`."""
        if state is _STATE_ACCEPTED or state is _STATE_RELEASED:  # no fields
            link._deliveries.unsettled -= self._settle(link._unsettled, deliveries, state)
            return
        for number in deliveries:
            delivery = link._unsettled.pop(number, 0)
            if delivery:
                link._deliveries.unsettled -= 1
                pn = ffi.cast(_DELIVERY_POINTER, delivery)
                write_local_state(pn, state, detail)
                lib.pn_delivery_settle(pn)

    def send(self, link: Link, first_tag: int, messages: Sequence[bytes], way: Way | None, *, settled: bool) -> None:
        """See `Loops`."""
        transport, output = (way[0].address, way[1]) if way is not None else (0, None)
        self._send(link._address, first_tag, messages, None if settled else link._sent, transport, output)
        if not settled:
            link._deliveries.unsettled += len(messages)

    def settle_sent(self, link: Link, tag: int) -> None:
        """See `Loops`."""
        delivery = link._sent.pop(tag, None)
        if delivery is None:
            return
        link._deliveries.unsettled -= 1
        if not link.closed:
            lib.pn_delivery_settle(ffi.cast(_DELIVERY_POINTER, delivery))


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
