"""Inner loops of the engine: aborted transfers, bounds of a batch, and deliveries of other links."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from typing import Any

import pytest
from cproton import ffi, lib

from bridge._native import PARTIAL_BYTES_MIN
from bridge.amqp_values import Uint
from bridge.engine import Attached, Closed, Condition, DeliveryState, Detached, Dispositions, Engine, Link, Transfers
from bridge.engine.loops import ROWS_MAX
from bridge.engine.proton import SCRATCH_BYTES
from tests.support.frames import (
    ATTACH,
    BEGIN,
    DETACH,
    END,
    HEADER,
    OPEN,
    RECEIVER,
    ROOM,
    SOURCE,
    TARGET,
    TRANSFER,
    frame,
    terminus,
)
from tests.support.machines import take_all
from tests.unit.amqp.wire import NOW, Pipe, attach_links, message, of_kind


def pointer(delivery: Any) -> Any:
    """Return a delivery of the engine, in either form, as a pointer for calls of Proton."""
    return ffi.cast("pn_delivery_t *", delivery)


def begin(link: Link, tag: bytes, size: int) -> Any:
    """Send `size` bytes of a message without its end; return its delivery."""
    name = ffi.new("char[]", tag)
    delivery = lib.pn_delivery(link._pn, ffi.new("pn_bytes_t *", {"size": len(tag), "start": name})[0])
    lib.pn_link_send(link._pn, bytes(size), size)
    return delivery


def messages(events: list[Any]) -> list[tuple[bool, int, int, list[bytes]]]:
    """Return (settled, first number, count, messages) of every group."""
    return [(e.settled, e.deliveries.start, len(e.deliveries), e.messages) for e in of_kind(events, Transfers)]


def test_outcome_and_attach_may_come_in_one_read() -> None:
    """Proton emits an event of its own between the two, as it settles a delivery that the peer settled."""
    pipe = Pipe()
    theirs, mine = pipe.receiver()[::-1]
    pipe.server.send(theirs, 7, message(b"x"))
    pipe.turn()
    (transfers,) = of_kind(pipe.at_client, Transfers)
    for name in ("second", "third"):
        pipe.client.settle(mine, transfers.deliveries, DeliveryState.RELEASED)
        pipe.client.attach_sender(name, "queue/x")
    told = pipe.server.receive_data(pipe.client.data_to_send(), NOW)
    assert sorted(type(event).__name__ for event in told) == ["Attached", "Attached", "Dispositions"]
    pipe.turn()
    assert not of_kind(pipe.at_client, Closed)


class TestBounds:
    """A batch has bounds; a further call returns the rest."""

    @pytest.mark.parametrize("settled", [False, True])
    def test_messages_of_a_batch_are_bounded(self, settled: bool) -> None:
        count = ROWS_MAX + 5
        pipe = Pipe()
        mine, theirs = pipe.sender(credit=count)
        sent = [b"%d" % i for i in range(count)]
        pipe.client.send_all(mine, 250, sent, settled=settled)
        pipe.turn()
        assert messages(pipe.at_server) == [(settled, 0, 0 if settled else count, sent)]
        assert theirs.credit == 0
        pipe.server.settle(theirs, range(count))
        pipe.turn()
        told = [item for event in of_kind(pipe.at_client, Dispositions) for item in event.items]
        assert told == ([] if settled else [(250 + i, DeliveryState.ACCEPTED, True, None) for i in range(count)])
        assert len(of_kind(pipe.at_client, Dispositions)) == (not settled)
        assert not mine._sent
        assert not theirs._unsettled
        assert lib.pn_link_unsettled(mine._pn) == lib.pn_link_unsettled(theirs._pn) == 0

    @pytest.mark.parametrize("sizes", [
        [SCRATCH_BYTES],
        [SCRATCH_BYTES + 1],
        [SCRATCH_BYTES - 1, 1, 0, 1],
        [1, SCRATCH_BYTES + 1, 1, 0, 4 * SCRATCH_BYTES + 7, SCRATCH_BYTES, 3],
        [100_000] * 7,
    ])  # fmt: skip
    @pytest.mark.parametrize("settled", [False, True])
    def test_bytes_of_a_batch_are_bounded(self, sizes: list[int], settled: bool) -> None:
        pipe = Pipe()
        mine, theirs = pipe.sender()
        sent = [bytes([65 + i]) * size for i, size in enumerate(sizes)]
        pipe.client.send_all(mine, 0, sent, settled=settled)
        data = pipe.client.data_to_send()
        while more := pipe.client.data_to_send():
            data += more
        events = take_all(pipe.server, data, NOW)
        assert [m for _, _, _, each in messages(events) for m in each] == sent
        for event in events:
            pipe.server.settle(theirs, event.deliveries)
        pipe.turn()
        assert sum(len(event.items) for event in of_kind(pipe.at_client, Dispositions)) == (0 if settled else len(sent))

    def test_delivery_tags_wrap(self) -> None:
        pipe = Pipe()
        mine, _ = pipe.sender()
        sent = [b"a", b"b", b"c"]
        pipe.client.send_all(mine, 2**64 - 3, sent)
        pipe.turn()
        assert [m for _, _, _, each in messages(pipe.at_server) for m in each] == sent
        assert mine.credit == 7
        assert sorted(mine._sent) == [2**64 - 3, 2**64 - 2, 2**64 - 1]

    def test_alternately_settled_messages_keep_order_and_numbers(self) -> None:
        pipe = Pipe()
        mine, _ = pipe.sender(credit=100)
        for i in range(40):
            pipe.client.send(mine, i, b"%d" % i, settled=i % 3 == 0)
        pipe.turn()
        groups = messages(pipe.at_server)
        assert [m for _, _, _, each in groups for m in each] == [b"%d" % i for i in range(40)]
        assert [settled for settled, *_ in groups] == [i % 2 == 0 for i in range(len(groups))]
        numbers = [n for _, first, count, _ in groups for n in range(first, first + count)]
        assert numbers == list(range(26))


class TestAborted:
    """A sender may abort a transfer halfway (section 2.7.5)."""

    def abort(self, pipe: Pipe, link: Link, tag: bytes = b"\xff", size: int = 10_000) -> None:
        delivery = begin(link, tag, size)
        pipe.turn()
        lib.pn_delivery_abort(delivery)

    def test_aborted_delivery_is_not_a_message_and_uses_credit(self) -> None:
        pipe = Pipe(server={"max_frame_size": 4096})
        mine, theirs = pipe.sender()
        self.abort(pipe, mine)
        pipe.client.send_all(mine, 5, [b"after", b"it"])
        pipe.turn()
        assert messages(pipe.at_server) == [(False, 0, 2, [b"after", b"it"])]
        assert theirs.credit == 7
        pipe.server.settle(theirs, [0, 1])
        pipe.turn()
        (told,) = of_kind(pipe.at_client, Dispositions)
        assert [tag for tag, *_ in told.items] == [5, 6]

    def test_only_aborted_deliveries_make_no_event(self) -> None:
        pipe = Pipe(server={"max_frame_size": 4096})
        mine, theirs = pipe.sender()
        self.abort(pipe, mine)
        pipe.turn()
        assert messages(pipe.at_server) == []
        assert theirs.credit == 9
        assert lib.pn_link_current(theirs._pn) == ffi.NULL

    def test_partial_content_of_an_aborted_delivery_is_dropped(self) -> None:
        pipe = Pipe(server={"max_frame_size": 4096})
        mine, theirs = pipe.sender()
        for tag in (b"\xfe", b"\xff"):
            self.abort(pipe, mine, tag, 100_000)
            pipe.client.send_all(mine, tag[0], [b"x" * 50_000])
        pipe.turn()
        assert [m for _, _, _, each in messages(pipe.at_server) for m in each] == [b"x" * 50_000] * 2
        assert theirs.credit == 6


class TestLarge:
    """The engine takes the bytes of a large incomplete message out of Proton."""

    def test_large_message_is_buffered_until_it_is_complete(self) -> None:
        pipe = Pipe()
        mine, theirs = pipe.sender()
        before, sent = pipe.server.held_bytes, bytes(range(250)) * 1_000
        pipe.client.send_all(mine, 0, [sent, b"small"])
        data = pipe.client.data_to_send()
        assert take_all(pipe.server, data[:200_000], NOW) == []
        assert 190_000 < pipe.server.held_bytes - before < 200_000 + 2 * 65_536
        assert pipe.server.pointers == (0, 0)
        events = take_all(pipe.server, data[200_000:], NOW)
        assert [m for _, _, _, each in messages(events) for m in each] == [sent, b"small"]
        for event in events:
            pipe.server.settle(theirs, event.deliveries)
        assert pipe.server.held_bytes == before

    @pytest.mark.parametrize("ends", ["detached here", "detached there", "session ended", "gone"])
    def test_buffer_of_a_message_that_cannot_complete_is_freed(self, ends: str) -> None:
        pipe = Pipe()
        mine, theirs = pipe.sender()
        before = pipe.server.held_bytes
        begin(mine, b"t", 150_000)
        pipe.turn()
        assert pipe.server.held_bytes - before > 140_000
        match ends:
            case "detached here":
                pipe.server.detach(theirs)
            case "detached there":
                take_all(pipe.server, frame(DETACH, Uint(0), True), NOW)
            case "session ended":
                take_all(pipe.server, frame(END), NOW)
            case _:
                pipe.server.receive_eof(NOW)
        assert not theirs._deliveries.partial

    @pytest.mark.parametrize(
        "size", [PARTIAL_BYTES_MIN - 1, PARTIAL_BYTES_MIN, 3 * PARTIAL_BYTES_MIN, 100_000, 100_001]
    )
    def test_too_large_message_is_refused_before_it_is_complete(self, size: int) -> None:
        pipe = Pipe(server={"max_message_size": 100_000, "max_frame_size": 4096})
        mine, theirs = pipe.sender()
        pipe.client.send_all(mine, 0, [bytes(size)])
        events = take_all(pipe.server, pipe.client.data_to_send(), NOW)
        assert [detached.link for detached in of_kind(events, Detached)] == ([theirs] if size > 100_000 else [])
        assert len(of_kind(events, Transfers)) == (size <= 100_000)
        pipe.client.send_all(mine, 1, [bytes(10**7)])
        events = take_all(pipe.server, pipe.client.data_to_send()[:200_000], NOW)
        assert theirs.closed
        assert not theirs._deliveries.partial

    def test_each_link_has_its_own_buffer(self) -> None:
        pipe = Pipe(server={"max_frame_size": 4096})
        links, theirs = zip(*attach_links(pipe, 3), strict=True)
        sent = {link.name: [bytes([65 + i]) * 70_000, b"then"] for i, link in enumerate(links)}
        for i in range(0, 70_000, 7_000):  # in turns, as a peer may
            for link in links:
                part = sent[link.name][0][i : i + 7_000]
                if not i:
                    begin(link, b"t", 0)
                lib.pn_link_send(link._pn, part, len(part))
            pipe.turn()
        assert {
            link.name: len(begun) > 50_000 for link, begun in theirs[0]._deliveries.partial.items()
        } == dict.fromkeys(sent, True)
        for link in links:
            lib.pn_link_advance(link._pn)
            pipe.client.send(link, 9, b"then")
        pipe.turn()
        found: dict[str, list[bytes]] = {}
        for event in of_kind(pipe.at_server, Transfers):
            found.setdefault(event.link.name, []).extend(event.messages)
        assert found == sent

    def test_memory_of_the_buffer_is_released(self) -> None:
        """Proton would keep the buffer of the largest message of each delivery, which is gigabytes for a fleet."""
        held = _in_use()
        pipes = [Pipe(server={"max_frame_size": 32_768}) for _ in range(20)]
        for pipe in pipes:
            mine, theirs = pipe.sender()
            pipe.client.send_all(mine, 0, [bytes(250_000)] * 8)
            pipe.turn(chunk=1 << 18)
            for event in of_kind(pipe.at_server, Transfers):
                pipe.server.settle(theirs, event.deliveries)
            pipe.turn()
            pipe.forget()
            pipe.sent.clear()
        assert _in_use() - held < len(pipes) * (2 * 8 * 64 * 1024 + 200_000)


def _in_use() -> int:
    """Return the bytes that C has allocated."""
    gc.collect()
    if not hasattr(LIBRARY, "mallinfo2"):
        pytest.skip("the C library does not say")
    said = LIBRARY.mallinfo2()
    return int(said.uordblks + said.hblkhd)


class _Mallinfo(ctypes.Structure):
    """Structure of mallinfo2(3)."""

    _fields_ = [
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks")),
        *((name, ctypes.c_size_t) for name in ("fsmblks", "uordblks", "fordblks", "keepcost")),
    ]


LIBRARY = ctypes.CDLL(None)
if hasattr(LIBRARY, "mallinfo2"):
    LIBRARY.mallinfo2.restype = _Mallinfo


class TestOutcomes:
    """States of deliveries that are unsettled, late, repeated, or for a delivery that has ended."""

    def test_unsettled_outcome_is_reported_and_settled_by_us(self) -> None:
        pipe = Pipe()
        mine, theirs = pipe.sender()
        pipe.client.send_all(mine, 0, [b"a", b"b", b"c"])
        pipe.turn()
        for number, state in enumerate((DeliveryState.ACCEPTED, DeliveryState.RECEIVED, DeliveryState.RELEASED)):
            lib.pn_delivery_update(pointer(theirs._unsettled[number]), int(state))
        pipe.turn()
        (told,) = of_kind(pipe.at_client, Dispositions)
        assert told.items == [(0, DeliveryState.ACCEPTED, False, None), (2, DeliveryState.RELEASED, False, None)]
        pipe.client.settle_sent(mine, 0)
        pipe.client.settle_sent(mine, 0)
        assert sorted(mine._sent) == [1, 2]
        assert lib.pn_link_unsettled(mine._pn) == 2
        pipe.forget()
        pipe.server.settle(theirs, [0, 1, 2], DeliveryState.REJECTED, Condition("amqp:not-found", "gone"))
        pipe.turn()
        (told,) = of_kind(pipe.at_client, Dispositions)
        why = Condition("amqp:not-found", "gone")
        assert told.items == [(1, DeliveryState.REJECTED, True, why), (2, DeliveryState.REJECTED, True, why)]
        assert not pipe.client.closed

    def test_delivery_may_be_settled_before_the_peer_answers(self) -> None:
        pipe = Pipe()
        mine, theirs = pipe.sender()
        pipe.client.send_all(mine, 0, [b"a", b"b", b"c"])
        pipe.turn()
        pipe.server.settle(theirs, [0, 1, 2])
        answer = pipe.server.data_to_send()
        pipe.client.settle_sent(mine, 1)
        pipe.client.send(mine, 1, b"again")  # the tag is free: another delivery uses it now
        (told,) = pipe.client.receive_data(answer, NOW)
        assert [(tag, settled) for tag, _, settled, _ in told.items] == [(0, True), (2, True)]
        assert list(mine._sent) == [1]
        assert not pipe.client.closed

    def test_unknown_state_is_settled_without_an_outcome(self) -> None:
        pipe = Pipe()
        mine, theirs = pipe.sender()
        pipe.client.send(mine, 3, b"a")
        pipe.turn()
        lib.pn_delivery_settle(pointer(theirs._unsettled.pop(0)))
        pipe.turn()
        (told,) = of_kind(pipe.at_client, Dispositions)
        assert told.items == [(3, DeliveryState.NONE, True, None)]

    def test_outcomes_for_a_detached_link_are_dropped(self) -> None:
        pipe = Pipe()
        mine, theirs = pipe.sender()
        other, at_other = pipe.receiver()
        pipe.client.send_all(mine, 0, [b"a", b"b"])
        pipe.server.send_all(at_other, 0, [b"c", b"d"])
        pipe.turn()
        pipe.server.settle(theirs, [0, 1])
        pipe.client.detach(mine)
        pipe.turn()
        assert of_kind(pipe.at_client, Dispositions) == []
        pipe.client.settle(other, [0, 1])
        pipe.turn()
        assert [len(event.items) for event in of_kind(pipe.at_server, Dispositions)] == [2]

    def test_messages_for_a_link_we_detached_are_dropped(self) -> None:
        pipe = Pipe(server={"max_frame_size": 4096})
        mine, theirs = pipe.sender()
        pipe.client.send_all(mine, 0, [b"a", bytes(50_000), b"b"])
        pipe.server.detach(theirs)
        pipe.turn()
        assert of_kind(pipe.at_server, Transfers) == []
        assert of_kind(pipe.at_client, Detached)


class TestForeign:
    """A transfer on a link that its sender receives on makes a foreign delivery in Proton."""

    @pytest.mark.parametrize("tag", [b"\x00", b"\x01", b"a name longer than ours are"])
    def test_foreign_exception_ends_the_connection(self, tag: bytes) -> None:
        server = Engine(container_id="s", server=True)
        zero = Uint(0)
        attach = ("l", zero, RECEIVER, None, None, terminus(SOURCE, "queue/a"), terminus(TARGET, None))
        data = HEADER + frame(OPEN, "c") + frame(BEGIN, None, zero, ROOM, ROOM) + frame(ATTACH, *attach)
        (link,) = [event.link for event in server.receive_data(data, NOW) if isinstance(event, Attached)]
        server.open()
        server.accept(link)
        server.send(link, 1, message(b"ours"))
        server.data_to_send()
        events = server.receive_data(frame(TRANSFER, zero, zero, tag, zero, payload=message(b"x")), NOW)
        (closed,) = events
        assert isinstance(closed, Closed)
        assert closed.condition == Condition("amqp:not-allowed", "transfer on a link the peer is the receiver of")


@pytest.mark.parametrize("call", [
    lambda engine: engine._loops.has_output(engine._transport),
    lambda engine: engine._loops.write(engine._transport, []),
    lambda engine: engine._loops.read(engine._transport, b"x", {}),
])  # fmt: skip
def test_freed_objects_of_proton_are_not_touched(call: Callable[[Engine], Any]) -> None:
    """A call on a freed transport raises. Without the check it would crash the process."""
    engine = Engine(container_id="x", server=True)
    engine.receive_eof(NOW)
    with pytest.raises(ValueError, match="freed"):
        call(engine)


def test_empty_run_sends_nothing() -> None:
    pipe = Pipe()
    mine, _ = pipe.sender()
    pipe.client.send_all(mine, 0, [])
    pipe.client.send(mine, 0, message(b""))
    pipe.turn()
    assert messages(pipe.at_server) == [(False, 0, 1, [message(b"")])]
