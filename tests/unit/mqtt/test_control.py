"""SUBSCRIBE, UNSUBSCRIBE, PING, and the ways a connection ends (sections 3.8 to 3.15, 4.13)."""

from __future__ import annotations

import pytest

from edge.broker.message.mqtt_properties import Properties
from edge.broker.message.mqtt_reason_codes import ReasonCode as R
from edge.broker.mqtt import events
from edge.broker.mqtt import packets as p
from edge.broker.mqtt.events import SubscriptionRequest as Request
from tests.support.mqtt_connection import VERSIONS, Opened


class TestSubscribe:
    @pytest.mark.parametrize("version", VERSIONS)
    def test_subscribe_becomes_an_event_and_is_answered(self, version: int) -> None:
        opened = Opened(version)
        requests = [Request("a/+", 1), Request("#", 2), Request("$share/g/a/#", 0)]
        (event,) = opened.send(p.Subscribe(10, tuple(requests)))
        assert event == events.SubscribeEvent(10, requests)
        opened.connection.subscribed(10, [R.GRANTED_QOS_1, R.NOT_AUTHORIZED, R.GRANTED_QOS_0])
        failure = {3: 0, 4: 0x80, 5: 0x87}[version]
        assert opened.sent() == [p.SubAck(10, (1, failure, 0))]

    def test_options_of_mqtt_5_are_read(self) -> None:
        opened = Opened(5)
        request = Request("a", 1, no_local=True, retain_as_published=True, retain_handling=2)
        block = Properties(subscription_identifier=(268_435_455,), user_property=(("a", "b"),))
        (event,) = opened.send(p.Subscribe(10, (request,), block))
        assert event == events.SubscribeEvent(10, [request], 268_435_455)

    @pytest.mark.parametrize("version", VERSIONS)
    @pytest.mark.parametrize(
        "topic_filter", ["", "a#", "a/#/b", "+a", "a/b+/c", "#/", "$share/g", "$share//a", "$share/+/a", "$share/g/"]
    )
    def test_invalid_filters_are_refused(self, version: int, topic_filter: str) -> None:
        for packet in (p.Subscribe(1, (Request(topic_filter, 0),)), p.Unsubscribe(1, ("ok", topic_filter))):
            opened = Opened(version)
            assert [type(event) for event in opened.send(packet)] == [events.DisconnectedEvent]
            told = [packet.reason for packet in opened.sent()]  # type: ignore[attr-defined]
            assert told == ([R.TOPIC_FILTER_INVALID] if version == 5 else [])

    @pytest.mark.parametrize("topic_filter", ["+", "#", "/", "+/+", "/+", "a/+/#", "a b", "$SYS/#", "+/a/", "$shared"])
    def test_valid_filters_are_accepted(self, topic_filter: str) -> None:
        (event,) = Opened(4).send(p.Subscribe(1, (Request(topic_filter, 0),)))
        assert event.requests[0].filter == topic_filter

    def test_no_local_on_a_shared_subscription_is_refused(self) -> None:
        opened = Opened(5)
        found = opened.send(p.Subscribe(1, (Request("$share/g/a", 0, no_local=True),)))
        assert isinstance(found[0], events.DisconnectedEvent)
        assert opened.sent()[-1].reason is R.PROTOCOL_ERROR  # type: ignore[attr-defined]

    def test_suback_above_the_maximum_packet_size_closes(self) -> None:
        opened = Opened(5, p.Connect("c", 5, properties=Properties(maximum_packet_size=60)))
        opened.connection.subscribed(1, [0] * 60)
        assert opened.connection.closed
        assert [type(packet) for packet in opened.sent()] == [p.Disconnect]


class TestUnsubscribe:
    @pytest.mark.parametrize("version", VERSIONS)
    def test_unsubscribe_becomes_an_event_and_is_answered(self, version: int) -> None:
        opened = Opened(version)
        (event,) = opened.send(p.Unsubscribe(3, ("a", "b/#")))
        assert event == events.UnsubscribeEvent(3, ["a", "b/#"])
        opened.connection.unsubscribed(3, [R.SUCCESS, R.NO_SUBSCRIPTION_EXISTED])
        assert opened.sent() == [p.UnsubAck(3, (0, 0x11) if version == 5 else ())]


@pytest.mark.parametrize("version", VERSIONS)
def test_ping_is_answered(version: int) -> None:
    opened = Opened(version)
    assert opened.send(p.PingReq(), p.PingReq()) == []
    assert opened.sent() == [p.PingResp(), p.PingResp()]


def with_will(version: int, expiry_s: int | None = None) -> Opened:
    block = Properties(session_expiry_interval_s=expiry_s)
    connect = p.Connect("c", version, will=p.WillMessage("w", b"x"), properties=block if version == 5 else p.NONE)
    return Opened(version, connect)


class TestDisconnect:
    @pytest.mark.parametrize("version", VERSIONS)
    def test_normal_disconnect_drops_the_will_and_later_packets(self, version: int) -> None:
        opened = with_will(version)
        found = opened.send(p.Publish("t", b"1"), p.Disconnect(), p.Publish("t", b"2"))
        assert [type(event) for event in found] == [events.PublishEvent, events.DisconnectedEvent]
        assert not found[1].publish_will
        assert opened.connection.closed
        assert opened.sent() == []
        assert not opened.connection.receive_eof(opened.now)
        assert not opened.send(p.PingReq())

    @pytest.mark.parametrize("reason", [R.DISCONNECT_WITH_WILL_MESSAGE, R.UNSPECIFIED_ERROR])
    def test_disconnect_with_the_will_publishes_it(self, reason: R) -> None:
        (event,) = with_will(5).send(p.Disconnect(reason))
        assert event.publish_will

    def test_session_expiry_of_disconnect_is_read(self) -> None:
        (event,) = with_will(5, 10).send(p.Disconnect(properties=Properties(session_expiry_interval_s=0)))
        assert event.session_expiry_s == 0
        (event,) = with_will(5, 10).send(p.Disconnect(properties=Properties(session_expiry_interval_s=99)))
        assert event.session_expiry_s == 99
        assert not event.publish_will

    def test_disconnect_cannot_start_a_session_expiry(self) -> None:
        opened = with_will(5)
        (event,) = opened.send(p.Disconnect(properties=Properties(session_expiry_interval_s=5)))
        assert event.publish_will
        assert event.session_expiry_s is None
        assert opened.sent()[-1].reason is R.PROTOCOL_ERROR  # type: ignore[attr-defined]

    def test_reason_reserved_for_servers_is_refused(self) -> None:
        opened = with_will(5)
        opened.send(p.Disconnect(R.SESSION_TAKEN_OVER))
        assert opened.sent()[-1].reason is R.PROTOCOL_ERROR  # type: ignore[attr-defined]

    @pytest.mark.parametrize("version", VERSIONS)
    def test_server_disconnect_is_sent(self, version: int) -> None:
        opened = with_will(version)
        opened.connection.acknowledge(1, [4])
        opened.connection.disconnect(R.SESSION_TAKEN_OVER)
        opened.connection.disconnect(R.SERVER_SHUTTING_DOWN)
        assert opened.connection.closed
        sent = opened.sent()
        assert sent[0] == p.PubAck(4)
        assert [packet.reason for packet in sent[1:]] == ([R.SESSION_TAKEN_OVER] if version == 5 else [])  # type: ignore[attr-defined]
        opened.connection.subscribed(1, [0])
        assert opened.connection.data_to_send() == b""
        (event,) = opened.connection.receive_eof(opened.now)
        assert event.publish_will

    def test_server_disconnect_respects_a_small_maximum_packet_size(self) -> None:
        opened = Opened(5, p.Connect("c", 5, properties=Properties(maximum_packet_size=37)))
        opened.send(b"\xf0\x00")
        (told,) = opened.sent()
        assert told == p.Disconnect(R.PROTOCOL_ERROR)


class TestViolations:
    @pytest.mark.parametrize("version", VERSIONS)
    @pytest.mark.parametrize(
        "packet",
        [
            p.Connect("c"),
            p.ConnAck(),
            p.SubAck(1, (0,)),
            p.UnsubAck(1),
            p.PingResp(),
            b"\xf0\x00",
            b"\x00\x00",
            b"\xff\xff\xff\xff\xff",
            b"\x32\x02\x00\x00",
        ],
    )
    def test_violations_close_with_the_will(self, version: int, packet: p.Packet | bytes) -> None:
        opened = with_will(version)
        found = opened.send(p.Publish("t"), packet, p.Publish("t"))
        assert [type(event) for event in found] == [events.PublishEvent, events.DisconnectedEvent]
        assert found[1].publish_will
        assert found[1].reason
        assert opened.connection.closed
        told = opened.sent()
        if version == 5:
            assert [packet.reason for packet in told] in ([R.PROTOCOL_ERROR], [R.MALFORMED_PACKET])  # type: ignore[attr-defined]
        else:
            assert told == []

    def test_overlong_remaining_length_is_malformed(self) -> None:
        assert Opened(4).send(b"\xc0\x80\x00") == []
        opened = Opened(5)
        assert [type(event) for event in opened.send(b"\xc0\x80\x00")] == [events.DisconnectedEvent]

    def test_mqtt_3_1_uses_dup_on_more_than_publish(self) -> None:
        opened = Opened(3)
        again = b"\x8a" + p.Subscribe(1, (Request("a", 1),)).encode(3)[1:]
        (event,) = opened.send(again)
        assert event.packet_id == 1
        assert opened.send(b"\x6a\x02\x00\x09") == []
        assert opened.sent() == [p.PubComp(9)]

    @pytest.mark.parametrize("version", VERSIONS)
    def test_eof_closes(self, version: int) -> None:
        opened = with_will(version)
        opened.send(p.Publish("t", b"x" * 10).encode(version)[:5])
        (event,) = opened.connection.receive_eof(opened.now)
        assert event.publish_will
        assert not opened.connection.receive_eof(opened.now)
        assert not opened.connection.handle_timeout(opened.now + 10_000)
        assert not opened.send(p.PingReq())
