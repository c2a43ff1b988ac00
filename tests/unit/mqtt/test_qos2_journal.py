"""Journal of QoS 2 deliveries on disk (section 4.3.3), and its use after a restart."""

from __future__ import annotations

from typing import NamedTuple

from bridge.message import Run
from edge.broker.mqtt import events
from edge.broker.mqtt import packets as p
from edge.broker.mqtt.events import MqttDelivery
from edge.broker.mqtt.qos2_journal import Qos2Journal
from edge.broker.mqtt.state import SessionState
from tests.support.mqtt_connection import Opened


class Log(NamedTuple):
    log: int = 3


class Token(NamedTuple):
    subscription: Log
    position: int


def delivery(position: int, *bodies: bytes) -> MqttDelivery:
    return MqttDelivery(Run("t/a", "d", 2, b"", list(bodies)), 2, retain=False, token=Token(Log(), position), kept=True)


class Rig:
    """A session over one connection; `commit` does what `SessionRegistry` does after a commit."""

    def __init__(self, record: bytes = b"", pending: tuple[int, ...] = ()) -> None:
        self.state = SessionState()
        self.changes = 0
        self.journal = Qos2Journal(self.state, self.changed)
        if record:
            self.journal.restore(record, lambda log, position: log == 3 and position in pending)
        self.opened = Opened(5, p.Connect("c", 5, clean_start=False), self.state)

    def changed(self) -> None:
        self.changes += 1

    def deliver(self, position: int, *bodies: bytes) -> list[int]:
        made = delivery(position, *bodies)
        had, too_large = self.journal.deliver(self.opened.connection, made, 3, position)
        assert not too_large
        return list(had)

    def commit(self, moves_kept: int = 0) -> bytes:
        record = self.journal.encode(moves_kept)
        self.opened.connection.send_committed(self.journal.take_unwritten())
        return record

    def answer(self, *what: p.Packet) -> None:
        for event in self.opened.send(*what):
            if isinstance(event, events.PubRecEvent):
                self.journal.received(event.packet_ids)
            elif isinstance(event, events.AcknowledgedEvent):
                for made, i in event.messages:
                    position = made.token.position + i  # type: ignore[attr-defined]
                    self.journal.completed(3, position, position)


def test_publish_and_pubrel_wait_for_the_disk() -> None:
    rig = Rig()
    rig.deliver(10, b"x", b"y")
    assert (rig.opened.sent(), rig.changes) == ([], 1)
    rig.commit()
    assert [(each.payload, each.dup) for each in rig.opened.sent()] == [(b"x", False), (b"y", False)]  # type: ignore[attr-defined]
    rig.answer(p.PubRec(1), p.PubRec(2))
    assert (rig.opened.sent(), rig.changes) == ([], 2)
    rig.commit()
    assert rig.opened.sent() == [p.PubRel(1), p.PubRel(2)]
    rig.answer(p.PubComp(1), p.PubComp(2))
    assert rig.state.in_flight == 0
    assert not rig.state.awaiting_commit


def test_unstored_messages_do_not_overtake_stored_ones() -> None:
    """The order of a producer holds over its qualities of service too."""
    rig = Rig()

    def deliver_at_once(*bodies: bytes) -> None:
        run = Run("t/a", "d", 1, b"", list(bodies))
        rig.opened.connection.deliver(MqttDelivery(run, 1, retain=False, token=None))

    rig.deliver(10, b"1", b"2")
    deliver_at_once(b"3", b"4")
    deliver_at_once(b"5")
    rig.deliver(12, b"6")
    deliver_at_once(b"7")
    assert rig.opened.sent() == []
    rig.commit()
    sent = rig.opened.sent()
    assert [each.payload for each in sent] == [b"1", b"2", b"3", b"4", b"5", b"6", b"7"]  # type: ignore[attr-defined]
    assert not any(each.dup for each in sent)  # type: ignore[attr-defined]
    rig.answer(p.PubRec(1))
    deliver_at_once(b"8")
    assert [each.payload for each in rig.opened.sent()] == [b"8"], "a PUBREL that waits holds nothing up"  # type: ignore[attr-defined]
    rig.opened.send(*(p.PubAck(packet_id) for packet_id in (3, 4, 5, 7, 8)))
    assert list(rig.state.outgoing) == [2, 6]


def test_deliveries_waiting_at_the_end_continue_over_the_next_connection() -> None:
    rig = Rig()
    rig.deliver(10, b"1")
    rig.opened.connection.deliver(MqttDelivery(Run("t/a", "d", 1, b"", [b"2"]), 1, retain=False, token=None))
    rig.opened.connection.receive_eof(0.0)
    rig.opened = Opened(5, p.Connect("c", 5, clean_start=False), rig.state)
    assert [each.payload for each in rig.opened.first[1:]] == [b"2"]  # type: ignore[attr-defined]
    rig.commit()
    assert [each.payload for each in rig.opened.sent()] == [b"1"]  # type: ignore[attr-defined]


def test_sent_message_is_repeated_under_its_identifier() -> None:
    rig = Rig()
    rig.deliver(10, b"x", b"y")
    record = rig.commit()
    again = Rig(record, pending=(10, 11))
    assert list(again.state.reserve(2)) == [3, 4], "the client may know 1 and 2 from before"
    assert again.deliver(9, b"w", b"x", b"y", b"z") == []
    sent = again.opened.sent()
    assert [(each.packet_id, each.payload, each.dup) for each in sent] == [(1, b"x", True), (2, b"y", True)]  # type: ignore[attr-defined]
    again.commit()
    assert [(each.payload, each.dup) for each in again.opened.sent()] == [(b"w", False), (b"z", False)]  # type: ignore[attr-defined]


def test_released_message_is_not_published_again() -> None:
    rig = Rig()
    rig.deliver(10, b"x", b"y")
    rig.commit()
    rig.answer(p.PubRec(1))
    again = Rig(rig.commit(), pending=(10, 11))
    assert again.opened.first[1:] == [p.PubRel(1)]
    assert again.deliver(10, b"x", b"y") == []
    assert [each.packet_id for each in again.opened.sent()] == [2]  # type: ignore[attr-defined]
    again.answer(p.PubComp(1))
    assert list(again.state.outgoing) == [2]


def test_completed_message_is_settled_until_the_cursor_is_on_disk() -> None:
    rig = Rig()
    rig.deliver(10, b"x")
    rig.commit()
    rig.answer(p.PubRec(1))
    rig.commit()
    rig.answer(p.PubComp(1))
    record = rig.commit(moves_kept=5)
    again = Rig(record, pending=(10,))
    assert again.deliver(10, b"x") == [0], "settled by the caller, not sent"
    assert again.opened.sent() == []
    assert rig.commit(moves_kept=5) != b"", "the cursor's move may still wait"
    assert rig.commit(moves_kept=6) == b""


def test_messages_behind_the_cursor_are_forgotten() -> None:
    rig = Rig()
    rig.deliver(10, b"x", b"y")
    rig.commit()
    rig.answer(p.PubRec(2))
    again = Rig(rig.commit(), pending=())
    assert again.opened.first[1:] == [p.PubRel(1), p.PubRel(2)], "it forgets one, and still waits for the other"
    assert not again.state.reserved
    assert again.deliver(12, b"new") == []
