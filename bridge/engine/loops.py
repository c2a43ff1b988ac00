"""The hot loops of the AMQP machine: the interface of both forms, and the form the interpreter runs.

A form takes the deliveries of a link out of Proton and puts ours into it, a batch a call; what the events mean for the
owner is `machine`'s business. `compiled` is the other form, `choice` says which one runs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from cproton import ffi, lib

from bridge.engine.link import Link
from bridge.engine.links import HANDLERS
from bridge.engine.proton import SCRATCH_BYTES, address_of, read_remote_state, scratch, write_local_state
from bridge.engine.states import Detail, State
from bridge.engine.transport import Transport
from bridge.sections import malformed_at, usual_bodies

_DELIVERY = lib.PN_DELIVERY
_LINK_FLOW = lib.PN_LINK_FLOW
_ACCEPTED = State.ACCEPTED
_SESSION_POINTER = ffi.typeof("pn_session_t *")

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
        self.dispositions: dict[Link, list[tuple[int, State, bool, Detail]]] = {}
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
            self.dispositions.setdefault(link, []).extend([(tag, _ACCEPTED, True, None) for tag in tags])


Way = tuple[Transport, list[bytes]]
"""Of what we send: what makes frames of it, and where these are put that can leave."""

Taken = tuple[Link, Batches, int, int]
"""A link and what `Loops.receive` gives of it."""

Read = tuple[bool, Taken | None, Groups | None, Any, int]
"""Whether Proton reads no more (it met a frame it cannot read, and says nothing; or the end), then either messages of
one link, which is all that came, or groups and what `Loops.collect` returned; or nothing. Last how many of the bytes
are left: an event waits that comes before them."""

PIECE_BYTES: Final = 8 * 1024
"""Given to Proton between two looks whether an event waits: 80 attaches, 2 ms. In `loops.c` too."""

BEGUN_BYTES: Final = 16 * 1024
"""Of a message that is not complete: so many are taken out of Proton, which keeps the memory of the largest piece that
it had to hold for each delivery under way, for as long as the connection is there. In `loops.c` too."""

QUEUED_FEW: Final = 4
"""Messages: where so many bytes brought fewer of them they are large, and taken before more is read. As above."""


class Loops(ABC):
    """What a form does. What it keeps in `_unsettled`, `_sent` and `_tags` of a link is its own."""

    @abstractmethod
    def read(self, transport: Transport, data: bytes, links: Mapping[int, Link]) -> Read:
        """Give Proton bytes of the peer, a piece at a time, and do as `collect`; what is behind an event that `collect`
        returns is left, as is what comes once there is something of large messages. `links` are by `address_of`."""

    @abstractmethod
    def write(self, transport: Transport, output: list[bytes]) -> bool:
        """See `Transport.pull`."""

    @abstractmethod
    def has_output(self, transport: Transport) -> bool:
        """Proton wants to send something, or never will again."""

    @abstractmethod
    def held_bytes(self, sessions: Iterable[int]) -> int:
        """Bytes of messages that are not complete, not taken or not sent, in the sessions at these addresses."""

    @abstractmethod
    def collect(self, transport: Transport, links: Mapping[int, Link], groups: Groups) -> Any:
        """Take delivery and flow events off the collector, up to another one that is `TOLD`, which stays: returned.

        None when there is nothing more. Dispositions of ours that the peer settled are settled here too.
        """

    @abstractmethod
    def receive(self, link: Link, batches: Batches) -> tuple[int, int]:
        """Take every complete message of an open link: (deliveries taken, bytes of the largest, whole or not)."""

    @abstractmethod
    def settle(self, link: Link, deliveries: Iterable[int], state: State, detail: Detail) -> None:
        """See `Engine.settle`; the link is open."""

    @abstractmethod
    def usual_bodies(self, messages: Sequence[bytes], header: bytes) -> list[bytes] | None:
        """See `bridge.sections.usual_bodies`."""

    @abstractmethod
    def malformed_at(self, message: bytes) -> int:
        """See `bridge.sections.malformed_at`."""

    @abstractmethod
    def credit(self, link: Link) -> tuple[int, bool]:
        """Messages that may be sent on an open link, and whether the peer drains it."""

    @abstractmethod
    def send(self, link: Link, first_tag: int, messages: Sequence[bytes], way: Way | None, *, settled: bool) -> None:
        """See `Engine.send_all`; the link is open. Large messages go their `way` piece by piece, for the reason of
        `BEGUN_BYTES`; None: nothing can leave yet."""

    @abstractmethod
    def settle_sent(self, link: Link, tag: int) -> None:
        """See `Engine.settle_sent`."""


class InterpretedLoops(Loops):
    """Call by call from Python; runs wherever Proton does."""

    def read(self, transport: Transport, data: bytes, links: Mapping[int, Link]) -> Read:
        """See `Loops`."""
        groups, event, left = Groups(), None, len(data)
        while event is None:
            start = len(data) - left
            transport.push(data[start : start + PIECE_BYTES])
            left = max(left - PIECE_BYTES, 0)
            event = self.collect(transport, links, groups)
            if not left or (len(data) - left >= BEGUN_BYTES and any(map(_has_few, groups.received))):
                break
        return transport.deaf, None, groups, event, left

    def write(self, transport: Transport, output: list[bytes]) -> bool:
        """See `Loops`."""
        return transport.pull(output)

    def has_output(self, transport: Transport) -> bool:
        """See `Loops`."""
        return bool(lib.pn_transport_pending(transport.pointer) != 0)

    def held_bytes(self, sessions: Iterable[int]) -> int:
        """See `Loops`."""
        held = 0
        for session in [ffi.cast(_SESSION_POINTER, each) for each in sessions]:
            held += lib.pn_session_incoming_bytes(session) + lib.pn_session_outgoing_bytes(session)
        return held

    def collect(self, transport: Transport, links: Mapping[int, Link], groups: Groups) -> Any:
        """See `Loops`."""
        peek, pop, type_of = lib.pn_collector_peek, lib.pn_collector_pop, lib.pn_event_type
        link_of, collector = lib.pn_event_link, transport.collector
        while event := peek(collector):
            kind = type_of(event)
            if kind not in (_DELIVERY, _LINK_FLOW):
                if kind in TOLD:
                    return event
                pop(collector)
                continue
            link = links.get(address_of(link_of(event)))
            if link is None:
                pass
            elif kind == _LINK_FLOW:
                groups.flows[link] = None
            elif link.is_sender:
                self._on_disposition(link, lib.pn_event_delivery(event), groups)
            else:
                groups.received[link] = None
            pop(collector)
        return None

    def _on_disposition(self, link: Link, delivery: Any, groups: Groups) -> None:
        tag = link._tags.get(delivery)
        if tag is None:
            look_for_transfer(link, groups)
            return
        if not lib.pn_delivery_updated(delivery):
            return
        state, detail = read_remote_state(delivery)
        settled = lib.pn_delivery_settled(delivery)
        if settled:
            del link._tags[delivery]
            del link._sent[tag]
            link._deliveries.unsettled -= 1
            lib.pn_delivery_settle(delivery)
            if state is _ACCEPTED:
                groups.accepted(link, (tag,))
                return
        elif not state.terminal:
            return
        groups.dispositions.setdefault(link, []).append((tag, state, settled, detail))

    def receive(self, link: Link, batches: Batches) -> tuple[int, int]:
        """See `Loops`."""
        pn, chars, view = link._pn, scratch.chars, scratch.view
        current, partial, receive = lib.pn_link_current, lib.pn_delivery_partial, lib.pn_link_recv
        is_settled, settle, advance = lib.pn_delivery_settled, lib.pn_delivery_settle, lib.pn_link_advance
        unsettled, begun = link._unsettled, link._deliveries.begun
        messages: list[bytes] = []
        run_settled = None
        number, taken, largest = link._delivery_next, 0, 0
        while delivery := current(pn):
            if partial(delivery):
                size = lib.pn_delivery_pending(delivery)
                if size >= BEGUN_BYTES:
                    begun.setdefault(link, bytearray()).extend(receive_large(pn, delivery))
                    size = 0
                largest = max(largest, size + len(begun.get(link, b"")))
                break
            size = receive(pn, chars, SCRATCH_BYTES)
            taken += 1
            before = begun.pop(link, b"")
            if size < 0 and lib.pn_delivery_aborted(delivery):
                settle(delivery)
                continue
            message = view[: max(size, 0)] if size < SCRATCH_BYTES else view[:] + receive_large(pn, delivery)
            message = b"".join((before, message)) if before else message
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
        link._deliveries.unsettled += number - link._delivery_next
        return taken, largest

    def usual_bodies(self, messages: Sequence[bytes], header: bytes) -> list[bytes] | None:
        """See `Loops`."""
        return usual_bodies(messages, header)

    def malformed_at(self, message: bytes) -> int:
        """See `Loops`."""
        return malformed_at(message)

    def credit(self, link: Link) -> tuple[int, bool]:
        """See `Loops`."""
        return lib.pn_link_credit(link._pn), lib.pn_link_get_drain(link._pn)

    def settle(self, link: Link, deliveries: Iterable[int], state: State, detail: Detail) -> None:
        """See `Loops`."""
        take = link._unsettled.pop
        update, done = lib.pn_delivery_update, lib.pn_delivery_settle
        plain = state in (State.ACCEPTED, State.RELEASED)
        number = int(state)
        for delivery in deliveries:
            pn = take(delivery, None)
            if pn is None:
                continue
            link._deliveries.unsettled -= 1
            if plain:
                update(pn, number)
            else:
                write_local_state(pn, state, detail)
            done(pn)

    def send(self, link: Link, first_tag: int, messages: Sequence[bytes], way: Way | None, *, settled: bool) -> None:
        """See `Loops`."""
        pn, sent, tags = link._pn, link._sent, link._tags
        view, tag_bytes = scratch.tag_view, scratch.tag_bytes
        make, send, advance, settle = lib.pn_delivery, lib.pn_link_send, lib.pn_link_advance, lib.pn_delivery_settle
        for tag, message in enumerate(messages, first_tag):
            size = (tag.bit_length() + 7) // 8 or 1
            view[0:size] = tag.to_bytes(size, "big")
            tag_bytes.size = size
            delivery = make(pn, tag_bytes[0])
            last = 0
            while way is not None and len(message) - last > BEGUN_BYTES:
                send(pn, message[last : last + BEGUN_BYTES], BEGUN_BYTES)
                way[0].pull(way[1])
                last += BEGUN_BYTES
            send(pn, message[last:], len(message) - last)
            if settled:
                settle(delivery)
            else:
                advance(pn)
                sent[tag] = delivery
                tags[delivery] = tag
        if not settled:
            link._deliveries.unsettled += len(messages)

    def settle_sent(self, link: Link, tag: int) -> None:
        """See `Loops`."""
        delivery = link._sent.pop(tag, None)
        if delivery is None:
            return
        link._deliveries.unsettled -= 1
        if not link.closed:
            link._tags.pop(delivery, None)
            lib.pn_delivery_settle(delivery)


def look_for_transfer(link: Link, groups: Groups) -> None:
    """An event of a sending link is about no delivery we have out: settled by us meanwhile, or not made by us.

    The latter Proton would keep for us to receive. Every delivery taken out of `_sent` must be settled by now.
    """
    if not link.closed and lib.pn_link_unsettled(link._pn) > len(link._sent):
        groups.wrong = True


def _has_few(link: Link) -> bool:
    return not link.closed and lib.pn_link_queued(link._pn) < QUEUED_FEW


def receive_large(pn: Any, delivery: Any) -> bytes:
    """What there is of a message, whatever its size: into a buffer of its own."""
    message = bytearray(lib.pn_delivery_pending(delivery))
    taken = lib.pn_link_recv(pn, ffi.from_buffer(message), len(message)) if message else 0
    return bytes(memoryview(message)[: max(taken, 0)])
