"""PUBLISH out: encoding, window, acknowledgements of the client, sending again (sections 3.3, 4.3, 4.4, 4.9)."""

from __future__ import annotations

import pytest

from bridge.message import Run
from edge.broker.limits import Limits
from edge.broker.message.mqtt_errors import LocalError
from edge.broker.message.mqtt_properties import Properties, encode_run
from edge.broker.message.mqtt_reason_codes import ReasonCode as R
from edge.broker.model.interfaces import DeliveryOutcome
from edge.broker.mqtt import events
from edge.broker.mqtt import packets as p
from edge.broker.mqtt.events import AcknowledgedEvent, MqttDelivery
from edge.broker.mqtt.limits import INFLIGHT_BYTES_MAX
from edge.broker.mqtt.state import PACKET_ID_MAX, SessionState
from tests.support.mqtt_connection import VERSIONS, Opened


def delivery(*bodies: bytes, qos: int = 1, retain: bool = False, properties: Properties | None = None) -> MqttDelivery:
    raw = encode_run(properties) if properties is not None else b""
    return MqttDelivery(Run("t/a", "someone", qos, raw, list(bodies)), qos, retain, object())


def publish(body: bytes, packet_id: int = 0, qos: int = 1, **fields: object) -> p.Publish:
    return p.Publish("t/a", body, qos, packet_id=packet_id, **fields)  # type: ignore[arg-type]


class TestEncoding:
    @pytest.mark.parametrize("version", VERSIONS)
    def test_each_qos_is_encoded(self, version: int) -> None:
        opened = Opened(version)
        bodies = [b"x" * n for n in (0, 3, 3, 117, 118, 119, 120, 130, 17_000)]
        for qos in (0, 1, 2):
            assert not opened.connection.deliver(delivery(*bodies, qos=qos))
        sent = opened.sent()
        assert [packet.payload for packet in sent] == bodies * 3  # type: ignore[attr-defined]
        assert [packet.packet_id for packet in sent] == [0] * 9 + list(range(1, 19))  # type: ignore[attr-defined]
        assert all(not packet.dup and not packet.retain for packet in sent)  # type: ignore[attr-defined]

    @pytest.mark.parametrize("qos", [0, 1])
    def test_properties_and_subscription_identifiers_are_encoded(self, qos: int) -> None:
        block = Properties(content_type="a/b", user_property=(("k", "1"),))
        sent = MqttDelivery(
            Run("t/a", "d", qos, encode_run(block), [b"1", b"2"]), qos, retain=True, token=None, identifiers=(5, 300)
        )
        five, four = Opened(5), Opened(4)
        five.connection.deliver(sent)
        four.connection.deliver(sent)
        expected = Properties(content_type="a/b", user_property=(("k", "1"),), subscription_identifier=(5, 300))
        ids = (1, 2) if qos else (0, 0)
        assert five.sent() == [
            publish(b"1", ids[0], qos, retain=True, properties=expected),
            publish(b"2", ids[1], qos, retain=True, properties=expected),
        ]
        assert four.sent() == [publish(b"1", ids[0], qos, retain=True), publish(b"2", ids[1], qos, retain=True)]

    @pytest.mark.parametrize("limit", [20, 129, 130, 131, 132, 16_386, 16_387, 16_388, 16_389])
    @pytest.mark.parametrize("qos", [0, 2])
    def test_maximum_packet_size_is_respected(self, limit: int, qos: int) -> None:
        """Exactly the packets that fit are sent; the others do not take a packet identifier."""
        block = Properties(maximum_packet_size=max(limit, 60))
        opened = Opened(5, p.Connect("c", 5, properties=block))
        limit = max(limit, 60)
        bodies = [b"x" * n for n in range(limit - 20, limit + 2)]
        sizes = [len(publish(body, 1, qos).encode(5)) for body in bodies]
        skipped = opened.connection.deliver(delivery(*bodies, qos=qos))
        assert list(skipped) == [i for i, size in enumerate(sizes) if size > limit]
        assert [len(packet.encode(5)) for packet in opened.sent()] == [size for size in sizes if size <= limit]
        assert opened.state.in_flight == (len(bodies) - len(skipped) if qos else 0)


class TestWindow:
    def test_smaller_maximum_of_both_sides_applies(self) -> None:
        block = Properties(receive_maximum=3)
        assert Opened(5, p.Connect("c", 5, properties=block)).connection.window == 3
        assert Opened(5, limits=Limits(inflight_max=2)).connection.window == 2
        assert Opened(4, limits=Limits(inflight_max=2)).connection.window == 2

    def test_qos_1_and_2_count_until_puback_and_pubcomp(self) -> None:
        opened = Opened(4, limits=Limits(inflight_max=2))
        opened.connection.deliver(delivery(b"0", qos=0))
        opened.connection.deliver(delivery(b"1", qos=1))
        opened.connection.deliver(delivery(b"2", qos=2))
        assert opened.connection.window == 0
        opened.send(p.PubRec(2))
        assert opened.connection.window == 0
        opened.send(p.PubAck(1))
        assert opened.connection.window == 1
        opened.send(p.PubComp(2))
        assert opened.connection.window == 2

    def test_delivery_beyond_the_window_raises(self) -> None:
        opened = Opened(4, limits=Limits(inflight_max=2))
        with pytest.raises(LocalError):
            opened.connection.deliver(delivery(b"1", b"2", b"3"))
        assert opened.state.in_flight == 0

    def test_nothing_is_sent_when_closed(self) -> None:
        opened = Opened(4)
        opened.connection.disconnect(R.SERVER_SHUTTING_DOWN)
        assert opened.connection.window == 0


class TestAcknowledged:
    @pytest.mark.parametrize("version", VERSIONS)
    def test_qos_1_may_be_acknowledged_in_any_order(self, version: int) -> None:
        opened = Opened(version)
        sent = delivery(b"a", b"b", b"c")
        opened.connection.deliver(sent)
        (event,) = opened.send(p.PubAck(3), p.PubAck(1), p.PubAck(1), p.PubAck(77), p.PubAck(2))
        assert event == AcknowledgedEvent([(sent, 2), (sent, 0), (sent, 1)])
        assert opened.state.in_flight == 0

    @pytest.mark.parametrize("version", VERSIONS)
    def test_qos_2_is_acknowledged_in_two_steps(self, version: int) -> None:
        opened = Opened(version)
        sent = delivery(b"a", b"b", qos=2)
        opened.connection.deliver(sent)
        opened.sent()
        assert (list(opened.state.outgoing), list(opened.state.released)) == ([1, 2], [])
        assert opened.send(p.PubRec(1), p.PubRec(2)) == []
        assert opened.sent() == [p.PubRel(1), p.PubRel(2)]
        assert (list(opened.state.outgoing), list(opened.state.released)) == ([], [1, 2])
        assert opened.send(p.PubRec(1)) == []
        assert opened.sent() == [p.PubRel(1)]
        (event,) = opened.send(p.PubComp(1), p.PubComp(2), p.PubComp(2))
        assert event == AcknowledgedEvent([(sent, 0), (sent, 1)])
        assert opened.state.in_flight == 0

    @pytest.mark.parametrize("version", VERSIONS)
    def test_pubrec_of_an_unknown_identifier_is_answered(self, version: int) -> None:
        opened = Opened(version)
        assert opened.send(p.PubRec(9)) == []
        reason = R.PACKET_IDENTIFIER_NOT_FOUND if version == 5 else R.SUCCESS
        assert opened.sent() == [p.PubRel(9, reason)]

    def test_error_reasons_of_mqtt_5_end_a_message(self) -> None:
        opened = Opened(5)
        one, two = delivery(b"a"), delivery(b"b", qos=2)
        opened.connection.deliver(one)
        opened.connection.deliver(two)
        opened.sent()
        found = opened.send(p.PubAck(1, R.NOT_AUTHORIZED), p.PubRec(2, R.QUOTA_EXCEEDED))
        rejected = DeliveryOutcome.REJECTED
        assert found == [AcknowledgedEvent([(one, 0)], rejected), AcknowledgedEvent([(two, 0)], rejected)]
        assert opened.sent() == []

    @pytest.mark.parametrize("answer", [p.PubRec(1), p.PubComp(2), p.PubAck(2)])
    @pytest.mark.parametrize("long", [False, True])
    def test_wrong_type_of_acknowledgement_is_a_protocol_error(self, answer: p.PubAck, long: bool) -> None:
        opened = Opened(5)
        opened.connection.deliver(delivery(b"a"))
        opened.connection.deliver(delivery(b"b", qos=2))
        opened.sent()
        data = answer.encode(5)
        found = opened.send(data[:1] + b"\4" + data[2:] + b"\0\0" if long else data)
        assert [type(event) for event in found] == [events.DisconnectedEvent]
        assert opened.sent()[-1].reason is R.PROTOCOL_ERROR  # type: ignore[attr-defined]
        assert opened.state.in_flight == 2, "nothing is lost for it"

    def test_puback_of_a_released_message_is_a_protocol_error(self) -> None:
        opened = Opened(5)
        opened.connection.deliver(delivery(b"a", qos=2))
        opened.send(p.PubRec(1))
        opened.sent()
        found = opened.send(p.PubAck(1))
        assert [type(event) for event in found] == [events.DisconnectedEvent]
        assert opened.sent()[-1].reason is R.PROTOCOL_ERROR  # type: ignore[attr-defined]
        assert list(opened.state.released) == [1]

    def test_acknowledgements_before_an_error_count(self) -> None:
        opened = Opened(5)
        sent = delivery(b"a", b"b")
        opened.connection.deliver(sent)
        found = opened.send(p.PubAck(1), b"\x40\x02\0\0", p.PubAck(2))
        assert found[0] == AcknowledgedEvent([(sent, 0)])
        assert isinstance(found[1], events.DisconnectedEvent)
        assert len(found) == 2


class TestSendingAgain:
    @pytest.mark.parametrize("version", VERSIONS)
    def test_repeats_keep_their_order(self, version: int) -> None:
        old = Opened(version)
        one, two = delivery(b"a", b"b", b"c"), delivery(b"x", b"y", b"z", qos=2)
        old.connection.deliver(one)
        old.connection.deliver(two)
        old.send(p.PubAck(2), p.PubRec(6), p.PubRec(4))
        old.connection.receive_eof(old.now)
        new = Opened(version, state=old.state)
        assert new.first[1:] == [
            p.PubRel(6),
            p.PubRel(4),
            publish(b"a", 1, 1, dup=True),
            publish(b"c", 3, 1, dup=True),
            publish(b"y", 5, 2, dup=True),
        ]
        assert new.send(p.PubAck(3), p.PubComp(4)) == [AcknowledgedEvent([(one, 2)]), AcknowledgedEvent([(two, 0)])]

    def test_repeats_respect_the_new_receive_maximum(self) -> None:
        old = Opened(5)
        sent = delivery(*[bytes((n,)) for n in range(5)])
        old.connection.deliver(sent)
        old.connection.receive_eof(old.now)
        block = Properties(receive_maximum=2)
        new = Opened(5, p.Connect("c", 5, properties=block), state=old.state)
        assert [packet.packet_id for packet in new.first[1:]] == [1, 2]  # type: ignore[attr-defined]
        assert new.connection.window == 0
        new.send(p.PubAck(1))
        assert new.sent() == [publish(b"\x02", 3, dup=True)]
        new.send(p.PubAck(2), p.PubAck(3))
        assert [packet.packet_id for packet in new.sent()] == [4, 5]  # type: ignore[attr-defined]
        assert new.connection.window == 0
        new.send(p.PubAck(4), p.PubAck(5))
        assert new.connection.window == 2

    def test_pubcomp_and_refusals_open_the_window(self) -> None:
        old = Opened(5)
        old.connection.deliver(delivery(*[bytes((n,)) for n in range(4)], qos=2))
        old.send(p.PubRec(1))
        old.connection.receive_eof(old.now)
        block = Properties(receive_maximum=2)
        new = Opened(5, p.Connect("c", 5, properties=block), state=old.state)
        assert new.first[1:] == [p.PubRel(1), publish(b"\x01", 2, 2, dup=True)]
        new.send(p.PubComp(1))
        assert new.sent() == [publish(b"\x02", 3, 2, dup=True)]
        new.send(p.PubRec(2, R.QUOTA_EXCEEDED))
        assert new.sent() == [publish(b"\x03", 4, 2, dup=True)]

    def test_message_above_the_new_maximum_packet_size_is_skipped(self) -> None:
        old = Opened(5)
        sent = delivery(b"x" * 100, b"y")
        old.connection.deliver(sent)
        old.connection.receive_eof(old.now)
        block = Properties(maximum_packet_size=60)
        new = Opened(5, p.Connect("c", 5, properties=block), state=old.state)
        assert new.events == [AcknowledgedEvent([(sent, 0)], DeliveryOutcome.TOO_LARGE)]
        assert new.first[1:] == [publish(b"y", 2, dup=True)]

    def test_message_delivered_after_close_is_repeated(self) -> None:
        """The router may deliver after a connection ended and before the session is notified."""
        old = Opened(4)
        old.connection.disconnect(R.ADMINISTRATIVE_ACTION)
        assert not old.connection.deliver(delivery(b"0", qos=0))
        assert not old.connection.deliver(delivery(b"1", qos=1))
        assert old.connection.data_to_send() == b""
        new = Opened(4, state=old.state)
        assert new.first[1:] == [publish(b"1", 1, dup=True)]


class TestPacketIdentifiers:
    def test_identifiers_wrap_and_skip_those_in_use(self) -> None:
        state = SessionState()
        kept = delivery(b"kept")
        assert list(state.reserve(2)) == [1, 2]
        state.outgoing[2] = (kept, 0)
        assert list(state.reserve(PACKET_ID_MAX - 4)) == list(range(3, PACKET_ID_MAX - 1))
        state.released[1] = (kept, 0)
        assert list(state.reserve(4)) == [65_534, 65_535, 3, 4]
        assert list(state.reserve(1)) == [5]

    @pytest.mark.parametrize("place", ["outgoing", "released"])
    def test_new_identifiers_avoid_those_in_use(self, place: str) -> None:
        state = SessionState()
        getattr(state, place)[3] = (delivery(b""), 0)
        assert list(state.reserve(4)) == [1, 2, 4, 5]

    def test_deliveries_stop_when_identifiers_run_out(self) -> None:
        state = SessionState()
        state.outgoing[1] = (delivery(b""), 0)
        with pytest.raises(LocalError):
            state.reserve(PACKET_ID_MAX)
        assert len(state.reserve(PACKET_ID_MAX - 1)) == PACKET_ID_MAX - 1

    def test_all_identifiers_can_be_used(self) -> None:
        assert sorted(SessionState().reserve(PACKET_ID_MAX)) == list(range(1, PACKET_ID_MAX + 1))


class TestLargeMessages:
    """Bodies in flight stay in memory, so fewer large messages than small ones are in flight."""

    def test_large_messages_narrow_the_window(self) -> None:
        opened = Opened(4)
        most = opened.connection.window
        opened.connection.deliver(delivery(b"small", b"small"))
        assert opened.connection.window == most - 2
        opened.connection.deliver(delivery(bytes(INFLIGHT_BYTES_MAX // 4)))
        assert opened.connection.window == 1
        opened.connection.deliver(delivery(b"small"))
        assert opened.connection.window == 0
        opened.send(p.PubAck(1), p.PubAck(2), p.PubAck(3))
        assert opened.connection.window == 3, "one of them is in flight"
        opened.send(p.PubAck(4))
        assert opened.connection.window == most

    def test_single_message_may_have_any_size(self) -> None:
        opened = Opened(4)
        opened.connection.deliver(delivery(bytes(2 * INFLIGHT_BYTES_MAX)))
        assert opened.connection.window == 0
        opened.send(p.PubAck(1))
        assert opened.connection.window > 1
