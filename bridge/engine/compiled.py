"""The hot loops of the AMQP machine in C (`loops.c`): one call a batch, in which the interpreter lock is let go once.

Deliveries are addresses (integers) here. A tag is found in the delivery itself, and counts when `_sent` has that very
delivery under it; so `_tags` stays empty.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from struct import Struct
from typing import Any

from cproton import ffi, lib

from bridge.engine.events import Condition, Link, State
from bridge.engine.loops import TOLD, Batches, Groups, look_for_transfer, receive_large
from bridge.engine.proton import (
    BATCH_BYTES,
    ROWS_MAX,
    SCRATCH_BYTES,
    batch,
    read_remote_state,
    scratch,
    write_local_state,
)
from bridge.engine.transport import Transport

SOURCE = Path(__file__).with_name("loops.c")

FUNCTIONS = (
    "pn_collector_peek", "pn_collector_pop", "pn_event_type", "pn_event_link", "pn_event_delivery",
    "pn_link_is_sender", "pn_link_current", "pn_link_advance", "pn_link_recv", "pn_link_send",
    "pn_delivery", "pn_delivery_tag", "pn_delivery_updated", "pn_delivery_remote_state", "pn_delivery_settled",
    "pn_delivery_partial", "pn_delivery_aborted", "pn_delivery_pending", "pn_delivery_update", "pn_delivery_settle",
    "pn_transport_push", "pn_transport_capacity", "pn_transport_pending", "pn_transport_peek", "pn_transport_pop",
)  # fmt: skip
"""What ``struct proton`` in `loops.c` begins with, in its order."""

JOINED_BYTES_MAX = 1 << 20
"""Messages of one `send` are copied into one piece for C; above this many bytes each goes alone, without a copy."""

_ACCEPTED, _SETTLED, _UPDATED, _RECEIVED = 1, 2, 4, 8
_PARTIAL, _MORE, _LARGE = 1, 2, 3
_STATE_ACCEPTED = State.ACCEPTED
_ROW = Struct("=QQQQ")
_DELIVERY, _LINK_FLOW = lib.PN_DELIVERY, lib.PN_LINK_FLOW
_DELIVERY_POINTER = ffi.typeof("pn_delivery_t *")
_LINK_POINTER = ffi.typeof("pn_link_t *")


def library_path() -> Path:
    """Where the compiled `loops.c` has to be: its name holds the hash of the source, so an old one is never loaded.

    Raises OSError when the source is not there.
    """
    return SOURCE.with_name(f"_loops_{sha256(SOURCE.read_bytes()).hexdigest()[:16]}.so")


class CompiledLoops:
    """`bridge.engine.loops.Loops` over a library made of `loops.c`. Raises OSError when it cannot be loaded."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))  # held for as long as its functions are
        table = [int(ffi.cast("uintptr_t", ffi.addressof(lib, name))) for name in FUNCTIONS]
        told = sum(1 << kind for kind in TOLD)
        self._proton = ffi.new("uintptr_t[]", [*table, _DELIVERY, _LINK_FLOW, told])
        self._read = self._function("void(*)(void *, void *, void *, char *, uint64_t, uint64_t *)", "waypost_read")
        self._write = self._function("int64_t(*)(void *, void *, char *, uint64_t)", "waypost_write")
        self._collect = self._function("int(*)(void *, void *, void *, int)", "waypost_collect")
        self._receive = self._function(
            "void(*)(void *, void *, char *, size_t, uint64_t *, uint64_t *, uint64_t, uint64_t *)", "waypost_receive"
        )
        self._settle = self._function("void(*)(void *, uint64_t *, uint64_t, uint64_t)", "waypost_settle")
        self._forget = self._function("void(*)(void *, uint64_t *, uint64_t)", "waypost_forget")
        self._send = self._function(
            "void(*)(void *, void *, uint64_t, char *, uint64_t *, uint64_t, int)", "waypost_send"
        )

    def _function(self, signature: str, name: str) -> Any:
        try:
            address = ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value
        except AttributeError:
            raise OSError(f"{self._library._name} has no {name}") from None
        return ffi.cast(signature, address)

    def read(self, transport: Transport, data: bytes, links: Mapping[Any, Link], groups: Groups) -> Any:
        """See `Loops`."""
        collector = transport.collector
        self._read(self._proton, transport.pointer, collector, data, len(data), batch.read)
        rows, address, *received = ffi.unpack(batch.told, 7)
        if not address:
            if rows:
                self._sort(batch.rows_view[: rows * _ROW.size], links, groups)
            return self.collect(collector, links, groups)
        link = links.get(ffi.cast(_LINK_POINTER, address))
        if link is not None and not link.closed:
            batches: Batches = []
            groups.taken = (link, batches, *self._take_over(link, batches, received))
        else:
            self._forget_all(ffi.unpack(batch.deliveries, received[0]) if not received[2] else [])
            if link is not None:
                groups.received[link] = None
        return None

    def write(self, transport: Transport, output: list[bytes]) -> bool:
        """See `Loops`."""
        while True:
            size: int = self._write(self._proton, transport.pointer, scratch.chars, SCRATCH_BYTES)
            taken = size if size >= 0 else -1 - size
            if taken:
                output.append(scratch.view[:taken])
            if taken < SCRATCH_BYTES:
                return size >= 0

    def collect(self, collector: Any, links: Mapping[Any, Link], groups: Groups) -> Any:
        """See `Loops`."""
        rows, view = batch.rows, batch.rows_view
        while n := self._collect(self._proton, collector, rows, ROWS_MAX):
            self._sort(view[: n * _ROW.size], links, groups)  # which makes events: what Proton does when we settle
        return lib.pn_collector_peek(collector) or None

    def _sort(self, rows: bytes, links: Mapping[Any, Link], groups: Groups) -> None:
        address, link, items = 0, None, None
        sent: dict[int, int] = {}
        over: list[int] = []
        for link_address, delivery, tag, marks in _ROW.iter_unpack(rows):
            if link_address != address:
                address, items = link_address, None
                link = links.get(ffi.cast(_LINK_POINTER, address))
                if link is not None:
                    sent = link._sent
            if link is None:
                continue
            if not delivery:
                (groups.received if marks == _RECEIVED else groups.flows)[link] = None
                continue
            if sent.get(tag) != delivery:
                self._forget_all(over)
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
                over.append(delivery)
            if items is None:
                items = groups.dispositions.setdefault(link, [])
            items.append((tag, state, settled, detail))
        self._forget_all(over)

    def _forget_all(self, deliveries: list[int]) -> None:
        if deliveries:
            self._forget(self._proton, _array(deliveries), len(deliveries))
            deliveries.clear()

    def receive(self, link: Link, batches: Batches) -> tuple[int, int]:
        """See `Loops`."""
        return self._take_over(link, batches, self._receive_more(link._pn))

    def _receive_more(self, pn: Any) -> list[int]:
        out = batch.received
        self._receive(self._proton, pn, batch.bytes, BATCH_BYTES, batch.deliveries, batch.ends, ROWS_MAX, out)
        return ffi.unpack(out, 5)  # type: ignore[no-any-return]

    def _take_over(self, link: Link, batches: Batches, received: list[int]) -> tuple[int, int]:
        """What C has received, and all that it has not yet."""
        pn = link._pn
        number, taken, largest = link._delivery_next, 0, 0
        while True:
            count, aborted, was_settled, stopped, pending = received
            settled = was_settled != 0
            taken += count + aborted
            if count == 1 and not settled:
                message = batch.bytes_view[: batch.ends[0]]
                link._unsettled[number] = batch.deliveries[0]
                number += 1
                largest = max(largest, len(message))
                _add(batches, False, [message])
            elif count:
                ends = [0, *ffi.unpack(batch.ends, count)]
                data = batch.bytes_view[: ends[-1]]
                messages = [data[start:end] for start, end in pairwise(ends)]
                if not settled:
                    addresses = ffi.unpack(batch.deliveries, count)
                    link._unsettled.update(zip(range(number, number + count), addresses, strict=True))
                    number += count
                largest = max(largest, *map(len, messages))
                _add(batches, settled, messages)
            if stopped == _PARTIAL:
                largest = max(largest, pending)
            elif stopped == _LARGE:
                delivery = lib.pn_link_current(pn)
                message, settled = receive_large(pn, delivery), lib.pn_delivery_settled(delivery)
                if settled:
                    lib.pn_delivery_settle(delivery)
                else:
                    link._unsettled[number] = int(ffi.cast("uintptr_t", delivery))
                    number += 1
                    lib.pn_link_advance(pn)
                taken += 1
                largest = max(largest, len(message))
                _add(batches, settled, [message])
            if stopped < _MORE:
                return taken, largest
            received = self._receive_more(pn)

    def settle(self, link: Link, deliveries: Iterable[int], state: State, condition: Condition | None) -> None:
        """See `Loops`."""
        take = link._unsettled.pop
        found = [delivery for delivery in [take(number, 0) for number in deliveries] if delivery]
        if not found:
            return
        if state in (State.ACCEPTED, State.RELEASED) and len(found) > 1:
            self._settle(self._proton, _array(found), len(found), int(state))
            return
        for delivery in found:
            pn = ffi.cast(_DELIVERY_POINTER, delivery)
            write_local_state(pn, state, condition)
            lib.pn_delivery_settle(pn)

    def send(self, link: Link, first_tag: int, messages: Sequence[bytes], *, settled: bool) -> None:
        """See `Loops`."""
        count = len(messages)
        numbers = array("Q", map(len, messages))
        if count > 1 and sum(numbers) > JOINED_BYTES_MAX:
            for tag, message in enumerate(messages, first_tag):
                self.send(link, tag, (message,), settled=settled)
            return
        joined = messages[0] if count == 1 else b"".join(messages)
        self._send(self._proton, link._pn, first_tag, joined, ffi.from_buffer("uint64_t[]", numbers), count, settled)
        if not settled:
            link._sent.update(zip(range(first_tag, first_tag + count), numbers, strict=True))

    def settle_sent(self, link: Link, tag: int) -> None:
        """See `Loops`."""
        delivery = link._sent.pop(tag, None)
        if delivery is not None and not link.closed:
            lib.pn_delivery_settle(ffi.cast(_DELIVERY_POINTER, delivery))


def _array(numbers: list[int]) -> Any:
    return ffi.from_buffer("uint64_t[]", array("Q", numbers))


def _add(batches: Batches, settled: bool, messages: list[bytes]) -> None:
    """Messages behind those before; one run with them where they are settled alike."""
    if batches and batches[-1][0] is settled:
        batches[-1][1].extend(messages)
    else:
        batches.append((settled, messages))
