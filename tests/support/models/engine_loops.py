"""Model of `bridge.engine.loops`: the same loops, call by call from Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cproton import ffi, lib

from bridge._native import PARTIAL_BYTES_MIN, PIECE_BYTES, QUEUED_FEW
from bridge.engine.link import Link
from bridge.engine.loops import (
    HANDLED_EVENTS,
    Batches,
    EngineLoops,
    Groups,
    Read,
    SendBuffer,
    TransferBatch,
    detect_transfer,
)
from bridge.engine.proton import (
    SCRATCH_BYTES,
    address_of,
    read_remote_state,
    scratch,
    transaction_of,
    write_local_state,
)
from bridge.engine.states import DeliveryState, Detail
from bridge.engine.transport import ProtonTransport
from tests.support.models.sections import malformed_at, strip_header

_DELIVERY = lib.PN_DELIVERY
_LINK_FLOW = lib.PN_LINK_FLOW
_ACCEPTED = DeliveryState.ACCEPTED
_SESSION_POINTER = ffi.typeof("pn_session_t *")


class EngineLoopsModel(EngineLoops):
    """Keeps Proton's objects where the loops in C keep addresses."""

    def __init__(self) -> None:
        self._tags_by_link: dict[Link, dict[Any, int]] = {}

    def _tags(self, link: Link) -> dict[Any, int]:
        """Return the tags of a link's deliveries."""
        return self._tags_by_link.setdefault(link, {})

    def read(self, transport: ProtonTransport, data: bytes, links: Mapping[int, Link]) -> Read:
        groups, event, left = Groups(), None, len(data)
        while event is None:
            start = len(data) - left
            transport.push(data[start : start + PIECE_BYTES])
            left = max(left - PIECE_BYTES, 0)
            event = self.collect(transport, links, groups)
            if not left or (len(data) - left >= PARTIAL_BYTES_MIN and any(map(_has_few, groups.received))):
                break
        return transport.input_closed, None, groups, event, left

    def write(self, transport: ProtonTransport, output: list[bytes]) -> bool:
        return transport.pull(output)

    def has_output(self, transport: ProtonTransport) -> bool:
        return bool(lib.pn_transport_pending(transport.pointer) != 0)

    def held_bytes(self, sessions: Iterable[int]) -> int:
        held = 0
        for session in [ffi.cast(_SESSION_POINTER, each) for each in sessions]:
            held += lib.pn_session_incoming_bytes(session) + lib.pn_session_outgoing_bytes(session)
        return held

    def collect(self, transport: ProtonTransport, links: Mapping[int, Link], groups: Groups) -> Any:
        peek, pop, type_of = lib.pn_collector_peek, lib.pn_collector_pop, lib.pn_event_type
        link_of, collector = lib.pn_event_link, transport.collector
        while event := peek(collector):
            kind = type_of(event)
            if kind not in (_DELIVERY, _LINK_FLOW):
                if kind in HANDLED_EVENTS:
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
        tag = self._tags(link).get(delivery)
        if tag is None or link._sent.get(tag) != delivery:  # the link may have ended since
            detect_transfer(link, groups)
            return
        if not lib.pn_delivery_updated(delivery):
            return
        state, detail = read_remote_state(delivery)
        settled = lib.pn_delivery_settled(delivery)
        if settled:
            del self._tags(link)[delivery]
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
        pn, chars, view = link._pn, scratch.chars, scratch.view
        current, partial, receive = lib.pn_link_current, lib.pn_delivery_partial, lib.pn_link_recv
        is_settled, settle, advance = lib.pn_delivery_settled, lib.pn_delivery_settle, lib.pn_link_advance
        unsettled, begun = link._unsettled, link._deliveries.partial
        messages: list[bytes] = []
        kind: tuple[bool, bytes | None] | None = None
        number, taken, largest = link._delivery_next, 0, 0
        while delivery := current(pn):
            if partial(delivery):
                size = lib.pn_delivery_pending(delivery)
                if size >= PARTIAL_BYTES_MIN:
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
            transactional = lib.pn_delivery_remote_state(delivery) == DeliveryState.TRANSACTIONAL
            name = transaction_of(delivery) if transactional else None
            if (settled, name) != kind:
                kind, messages = (settled, name), []
                batches.append(TransferBatch(settled, messages, name))
            messages.append(message)
            if settled:
                settle(delivery)
            else:
                unsettled[number] = delivery
                number += 1
                advance(pn)
        link._deliveries.unsettled += number - link._delivery_next
        return taken, largest

    def strip_header(self, messages: Sequence[bytes], header: bytes) -> list[bytes] | None:
        return strip_header(messages, header)

    def malformed_at(self, message: bytes) -> int:
        return malformed_at(message)

    def credit(self, link: Link) -> tuple[int, bool]:
        return lib.pn_link_credit(link._pn), lib.pn_link_get_drain(link._pn)

    def settle(self, link: Link, deliveries: Iterable[int], state: DeliveryState, detail: Detail) -> None:
        take = link._unsettled.pop
        update, done = lib.pn_delivery_update, lib.pn_delivery_settle
        plain = state in (DeliveryState.ACCEPTED, DeliveryState.RELEASED)
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

    def send(
        self, link: Link, first_tag: int, messages: Sequence[bytes], buffer: SendBuffer | None, *, settled: bool
    ) -> None:
        pn, sent, tags = link._pn, link._sent, self._tags(link)
        view, tag_bytes = scratch.tag_view, scratch.tag_bytes
        make, send, advance, settle = lib.pn_delivery, lib.pn_link_send, lib.pn_link_advance, lib.pn_delivery_settle
        for tag, message in enumerate(messages, first_tag):
            size = (tag.bit_length() + 7) // 8 or 1
            view[0:size] = tag.to_bytes(size, "big")
            tag_bytes.size = size
            delivery = make(pn, tag_bytes[0])
            last = 0
            while buffer is not None and len(message) - last > PARTIAL_BYTES_MIN:
                send(pn, message[last : last + PARTIAL_BYTES_MIN], PARTIAL_BYTES_MIN)
                buffer[0].pull(buffer[1])
                last += PARTIAL_BYTES_MIN
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
        delivery = link._sent.pop(tag, None)
        if delivery is None:
            return
        link._deliveries.unsettled -= 1
        if not link.closed:
            self._tags(link).pop(delivery, None)
            lib.pn_delivery_settle(delivery)


def _has_few(link: Link) -> bool:
    return not link.closed and lib.pn_link_queued(link._pn) < QUEUED_FEW


def receive_large(pn: Any, delivery: Any) -> bytes:
    """Return a message of any size from its own buffer."""
    message = bytearray(lib.pn_delivery_pending(delivery))
    taken = lib.pn_link_recv(pn, ffi.from_buffer(message), len(message)) if message else 0
    return bytes(memoryview(message)[: max(taken, 0)])
