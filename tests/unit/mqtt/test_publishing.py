"""PUBLISH in: runs, topic names, topic aliases, flow control, QoS 1 and 2 (sections 3.3 to 3.7, 4.3, 4.9)."""

from __future__ import annotations

import pytest

from bridge.message import DURABLE, RETAIN
from edge.broker.limits import Limits
from edge.broker.message.mqtt_properties import Properties, decode_run, message_expiry_s, with_message_expiry
from edge.broker.message.mqtt_reason_codes import ReasonCode as R
from edge.broker.mqtt import events, inbound
from edge.broker.mqtt import packets as p
from edge.broker.mqtt.state import SessionState
from tests.support.mqtt_connection import VERSIONS, Opened


def ended(opened: Opened, found: list[object]) -> R | None:
    """Check that the connection ended with this read; return the reason that an MQTT 5 client got."""
    assert isinstance(found[-1], events.DisconnectedEvent)
    assert opened.connection.closed
    assert not opened.connection.receive_eof(opened.now)
    said = opened.sent()
    if opened.version < 5:
        assert not any(isinstance(packet, p.Disconnect) for packet in said)
        return None
    assert isinstance(said[-1], p.Disconnect)
    return said[-1].reason


class TestRuns:
    @pytest.mark.parametrize("version", VERSIONS)
    def test_similar_packets_are_one_run(self, version: int) -> None:
        opened = Opened(version)
        (event,) = opened.send(*[p.Publish("t/a", b"x" * n, 1, packet_id=n + 1) for n in (0, 5, 5, 200, 127, 16_000)])
        assert event.packet_ids == [1, 6, 6, 201, 128, 16_001]
        assert [len(body) for body in event.run.bodies] == [0, 5, 5, 200, 127, 16_000]
        assert (event.run.address, event.run.device, event.run.flags) == ("t/a", "c", 1 | DURABLE)
        assert event.run.received_at == 0

    @pytest.mark.parametrize("version", VERSIONS)
    def test_any_difference_ends_a_run(self, version: int) -> None:
        opened = Opened(version)
        found = opened.send(
            p.Publish("a", b"1", 1, packet_id=1),
            p.Publish("ab", b"2", 1, packet_id=2),
            p.Publish("a", b"b3", 1, packet_id=3),
            p.Publish("a", b"4", 1, retain=True, packet_id=4),
            p.Publish("a", b"5", 0),
            p.Publish("a", b"6", 2, packet_id=6),
        )
        assert [(e.run.address, e.run.bodies, e.run.qos, e.packet_ids) for e in found] == [
            ("a", [b"1"], 1, [1]),
            ("ab", [b"2"], 1, [2]),
            ("a", [b"b3"], 1, [3]),
            ("a", [b"4"], 1, [4]),
            ("a", [b"5"], 0, []),
            ("a", [b"6"], 2, [6]),
        ]
        assert [bool(e.run.flags & RETAIN) for e in found] == [False, False, False, True, False, False]

    def test_different_properties_of_equal_length_end_a_run(self) -> None:
        found = Opened(5).send(*[p.Publish("t", b"x", properties=Properties(content_type=c)) for c in "aab"])
        assert [(decode_run(e.run.properties).content_type, len(e.run)) for e in found] == [("a", 2), ("b", 1)]

    @pytest.mark.parametrize("version", VERSIONS)
    def test_run_may_be_split_anywhere(self, version: int) -> None:
        """Remaining lengths of one, two and three bytes, cut in the middle of each."""
        packets = [p.Publish("t", b"x" * n, 1, packet_id=n) for n in (1, 1, 200, 200, 16_500, 16_500, 2)]
        data = b"".join(packet.encode(version) for packet in packets)
        for cut in [*range(440), *range(len(data) - 60, len(data))]:
            opened = Opened(version)
            found = opened.send(data[:cut]) + opened.send(data[cut:])
            assert [body for event in found for body in event.run.bodies] == [packet.payload for packet in packets]

    @pytest.mark.parametrize("version", VERSIONS)
    def test_shorter_packet_ends_a_run(self, version: int) -> None:
        """The packet starts like the run and ends inside its packet identifier (or before its properties)."""
        opened = Opened(version)
        data = b"\x32\x04\x00\x01t\x00" + b"\x32" * 8
        found = opened.send(p.Publish("t", b"1", 1, packet_id=1), data)
        assert found[0].packet_ids == [1]
        assert ended(opened, found) in {None, R.MALFORMED_PACKET}

    def test_overlong_remaining_length_ends_a_run(self) -> None:
        plain, long = p.Publish("t", b"1").encode(5), b"\x30\x85\x00\x00\x01t\x001"
        opened = Opened(5)
        found = opened.send(plain, long)
        assert found[0].run.bodies == [b"1"]
        assert ended(opened, found) is R.MALFORMED_PACKET
        found = Opened(4).send(p.Publish("t", b"1"), b"\x30\x84\x00\x00\x01t2")
        assert [body for event in found for body in event.run.bodies] == [b"1", b"2"]

    def test_large_payloads_arrive_in_many_reads(self) -> None:
        opened = Opened(4)
        data = p.Publish("t", b"x" * 3_000_000, 1, packet_id=1).encode(4) + p.PingReq().encode(4)
        found = []
        for start in range(0, len(data), 65_536):
            found += opened.connection.receive_data(data[start : start + 65_536], opened.now)
        (event,) = found
        assert event.run.bodies == [b"x" * 3_000_000]
        assert [type(packet) for packet in opened.sent()] == [p.PingResp]

    def test_properties_are_forwarded_unchanged(self) -> None:
        opened = Opened(5)
        block = Properties(content_type="a/b", user_property=(("k", "2"), ("k", "1")), correlation_data=b"\0")
        found = opened.send(
            p.Publish("t", b"1", 1, packet_id=1, properties=block),
            p.Publish("t", b"2", 1, packet_id=2, properties=block),
            p.Publish("t", b"3", 1, packet_id=3),
        )
        assert [event.packet_ids for event in found] == [[1, 2], [3]]
        assert decode_run(found[0].run.properties) == block
        assert found[1].run.properties == b""

    def test_message_expiry_can_be_changed(self) -> None:
        opened = Opened(5)
        block = Properties(message_expiry_interval_s=60, user_property=(("k", "1"),))
        (event,) = opened.send(p.Publish("t", properties=block))
        assert message_expiry_s(event.run.properties) == 60
        changed = with_message_expiry(event.run.properties, 7)
        assert decode_run(changed) == Properties(message_expiry_interval_s=7, user_property=(("k", "1"),))


class TestTopicNames:
    @pytest.mark.parametrize("version", VERSIONS)
    @pytest.mark.parametrize("topic", ["a/+", "#", "a#", "+", "", "/".join(["a"] * 129)])
    def test_invalid_names_close(self, version: int, topic: str) -> None:
        opened = Opened(version)
        reason = ended(opened, opened.send(p.Publish("ok"), p.Publish(topic)))
        assert reason in {None, R.TOPIC_NAME_INVALID, R.PROTOCOL_ERROR}

    @pytest.mark.parametrize("topic", [" ", "/", "//a", "$SYS/x", "a b", "ä/€/😀", "\ufeffa", "a/$b"])
    def test_valid_names_are_accepted(self, topic: str) -> None:
        (event,) = Opened(4).send(p.Publish(topic))
        assert event.run.address == topic

    def test_invalid_utf8_after_valid_packets_closes(self) -> None:
        opened = Opened(5)
        found = opened.send(p.Publish("ok"), b"\x30\x04\x00\x01\xff\x00")
        assert isinstance(found[0], events.PublishEvent)
        assert ended(opened, found) is R.MALFORMED_PACKET


class TestTopicAliases:
    def test_alias_is_set_used_and_changed(self) -> None:
        opened = Opened(5)
        one, two = Properties(topic_alias=1), Properties(topic_alias=2, content_type="x")
        found = opened.send(
            p.Publish("a", b"1", properties=one),
            p.Publish("", b"2", properties=one),
            p.Publish("", b"3", properties=one),
            p.Publish("b", b"4", properties=two),
            p.Publish("b", b"5", properties=one),
            p.Publish("", b"6", properties=one),
        )
        assert [(e.run.address, e.run.bodies) for e in found] == [
            ("a", [b"1"]),
            ("a", [b"2", b"3"]),
            ("b", [b"4"]),
            ("b", [b"5"]),
            ("b", [b"6"]),
        ]
        assert decode_run(found[2].run.properties) == Properties(content_type="x")

    @pytest.mark.parametrize(
        ("alias", "reason"), [(17, R.TOPIC_ALIAS_INVALID), (3, R.PROTOCOL_ERROR), (None, R.PROTOCOL_ERROR)]
    )
    def test_invalid_aliases_close(self, alias: int | None, reason: R) -> None:
        opened = Opened(5)
        found = opened.send(p.Publish("", b"", properties=Properties(topic_alias=alias)))
        assert ended(opened, found) is reason

    def test_subscription_identifier_of_a_client_closes(self) -> None:
        opened = Opened(5)
        found = opened.send(p.Publish("t", properties=Properties(subscription_identifier=(1,))))
        assert ended(opened, found) is R.PROTOCOL_ERROR


class TestLimits:
    @pytest.mark.parametrize("version", VERSIONS)
    def test_too_large_packet_closes(self, version: int) -> None:
        opened = Opened(version, limits=Limits(packet_bytes_max=1000))
        exact = p.Publish("t", b"x" * (1000 - 6 - (version == 5))).encode(version)
        assert len(exact) == 1000
        (event,) = opened.send(exact)
        assert len(event.run) == 1
        found = opened.send(p.Publish("t"), p.Publish("t", b"x" * 1000).encode(version)[:10])
        assert isinstance(found[0], events.PublishEvent)
        assert ended(opened, found) in {None, R.PACKET_TOO_LARGE}

    def test_receive_maximum_is_enforced(self) -> None:
        opened = Opened(5, limits=Limits(receive_maximum=3))
        opened.send(*[p.Publish("t", b"", 1, packet_id=n) for n in (1, 2)])
        opened.connection.acknowledge(1, [1])
        opened.send(p.Publish("t", b"", 2, packet_id=3))
        found = opened.send(*[p.Publish("t", bytes((n,)), 1, packet_id=n) for n in (4, 5)])
        assert found[0].packet_ids == [4]
        assert found[0].run.bodies == [b"\x04"]
        assert ended(opened, found) is R.RECEIVE_MAXIMUM_EXCEEDED

    def test_qos_2_message_counts_until_pubcomp(self) -> None:
        opened = Opened(5, limits=Limits(receive_maximum=1))
        opened.send(p.Publish("t", b"", 2, packet_id=1))
        opened.connection.acknowledge(2, [1])
        opened.send(p.PubRel(1))
        opened.state.complete([1])
        (event,) = opened.send(p.Publish("t", b"", 1, packet_id=2))
        assert event.packet_ids == [2]
        found = opened.send(p.Publish("t", b"", 1, packet_id=3))
        assert ended(opened, found) is R.RECEIVE_MAXIMUM_EXCEEDED

    def test_older_versions_have_no_receive_maximum(self) -> None:
        opened = Opened(4, limits=Limits(receive_maximum=1))
        (event,) = opened.send(*[p.Publish("t", b"", 1, packet_id=n) for n in (1, 2, 3)])
        assert event.packet_ids == [1, 2, 3]

    def test_older_versions_are_limited_by_packet_identifiers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A client of the standard cannot have more messages open than there are identifiers [MQTT-2.3.1-3]."""
        monkeypatch.setattr(inbound, "UNANSWERED_MAX", 3)
        opened = Opened(4)
        opened.send(*[p.Publish("t", b"", 1, packet_id=n) for n in (1, 2, 3)])
        opened.connection.acknowledge(1, [1])
        (event,) = opened.send(p.Publish("t", b"", 1, packet_id=1))
        assert event.packet_ids == [1]
        found = opened.send(p.Publish("t", b"", 1, packet_id=1))
        assert [type(event) for event in found] == [events.DisconnectedEvent]

    def test_packet_identifier_0_keeps_earlier_packets(self) -> None:
        opened = Opened(5)
        found = opened.send(*[p.Publish("t", bytes((n,)), 1, packet_id=n) for n in (1, 2, 0, 3)])
        assert found[0].packet_ids == [1, 2]
        assert found[0].run.bodies == [b"\x01", b"\x02"]
        assert ended(opened, found) is R.PROTOCOL_ERROR


class TestAcknowledge:
    @pytest.mark.parametrize("version", VERSIONS)
    def test_qos_1_is_acknowledged(self, version: int) -> None:
        opened = Opened(version)
        opened.send(*[p.Publish("t", b"", 1, packet_id=n) for n in (7, 65_535, 256)])
        assert opened.sent() == []
        opened.connection.acknowledge(1, [7, 65_535, 256])
        assert opened.sent() == [p.PubAck(7), p.PubAck(65_535), p.PubAck(256)]

    def test_reasons_of_mqtt_5_are_sent(self) -> None:
        opened = Opened(5)
        opened.send(p.Publish("t", b"", 1, packet_id=7))
        opened.connection.acknowledge(1, [7], R.NO_MATCHING_SUBSCRIBERS)
        opened.send(p.Publish("t", b"", 1, packet_id=7))
        opened.connection.acknowledge(1, [7], R.QUOTA_EXCEEDED)
        assert opened.sent() == [p.PubAck(7, R.NO_MATCHING_SUBSCRIBERS), p.PubAck(7, R.QUOTA_EXCEEDED)]

    def test_older_clients_get_no_refusals(self) -> None:
        opened = Opened(4)
        opened.send(p.Publish("t", b"", 1, packet_id=7), p.Publish("t", b"", 2, packet_id=8))
        opened.connection.acknowledge(1, [7], R.QUOTA_EXCEEDED)
        opened.connection.acknowledge(2, [8], R.QUOTA_EXCEEDED)
        assert opened.sent() == []
        assert not opened.state.incoming
        opened.send(p.Publish("t", b"", 2, packet_id=9))
        opened.connection.acknowledge(1, [7], R.NO_MATCHING_SUBSCRIBERS)  # undelivered, which a PUBACK cannot report
        opened.connection.acknowledge(2, [9], R.NO_MATCHING_SUBSCRIBERS)
        assert opened.sent() == []
        assert not opened.state.incoming


class TestExactlyOnce:
    @pytest.mark.parametrize("version", VERSIONS)
    def test_complete_exchange_succeeds(self, version: int) -> None:
        opened = Opened(version)
        (event,) = opened.send(p.Publish("t", b"a", 2, packet_id=1), p.Publish("t", b"b", 2, packet_id=2))
        assert event.packet_ids == [1, 2]
        assert opened.sent() == []
        opened.connection.acknowledge(2, [1, 2])
        assert opened.sent() == [p.PubRec(1), p.PubRec(2)]
        (released,) = opened.send(p.PubRel(1), p.PubRel(2))
        assert released == events.PubRelEvent([1, 2])
        assert not opened.state.incoming
        assert opened.sent() == []
        opened.state.complete([1, 2])
        assert opened.sent() == [p.PubComp(1), p.PubComp(2)]
        (event,) = opened.send(p.Publish("t", b"c", 2, packet_id=1))
        assert event.run.bodies == [b"c"]

    def test_repeat_before_the_commit_is_not_published_again(self) -> None:
        opened = Opened()
        (event,) = opened.send(p.Publish("t", b"a", 2, packet_id=1), p.Publish("t", b"b", 2, packet_id=1))
        assert event.run.bodies == [b"a"], "the first one counts"
        assert opened.send(p.Publish("t", b"a", 2, dup=True, packet_id=1)) == []
        assert opened.sent() == []
        opened.connection.acknowledge(2, [1])
        assert opened.sent() == [p.PubRec(1)]

    def test_repeat_after_the_commit_is_not_published_again(self) -> None:
        opened = Opened()
        opened.send(p.Publish("t", b"a", 2, packet_id=1))
        opened.connection.acknowledge(2, [1])
        found = opened.send(*[p.Publish("t", b"x", 2, dup=True, packet_id=n) for n in (2, 1, 3)])
        assert [event.packet_ids for event in found] == [[2, 3]]
        assert opened.sent() == [p.PubRec(1), p.PubRec(1)]

    def test_repeat_over_a_new_connection_during_the_commit_is_not_published_again(self) -> None:
        old = Opened(4)
        old.send(p.Publish("t", b"a", 2, packet_id=1), p.Publish("t", b"b", 2, packet_id=2))
        old.connection.receive_eof(old.now)
        new = Opened(4, state=old.state)
        assert new.send(p.Publish("t", b"a", 2, dup=True, packet_id=1)) == []
        assert new.sent() == []
        old.connection.acknowledge(2, [1, 2])
        assert new.sent() == [p.PubRec(1)], "2 has not been sent again yet"
        assert new.send(p.Publish("t", b"b", 2, dup=True, packet_id=2)) == []
        assert new.sent() == [p.PubRec(2)]
        assert old.connection.data_to_send() == b""

    def test_identifier_of_a_refused_message_is_free(self) -> None:
        opened = Opened(5)
        opened.send(p.Publish("t", b"a", 2, packet_id=1))
        opened.connection.acknowledge(2, [1], R.QUOTA_EXCEEDED)
        assert opened.sent() == [p.PubRec(1, R.QUOTA_EXCEEDED)]
        (event,) = opened.send(p.Publish("t", b"a", 2, packet_id=1))
        assert event.packet_ids == [1]

    def test_identifiers_survive_a_restart(self) -> None:
        state = SessionState()
        state.restore_incoming([5])
        opened = Opened(4, state=state)
        assert opened.send(p.Publish("t", b"a", 2, dup=True, packet_id=5)) == []
        assert opened.sent() == [p.PubRec(5)]
        assert opened.send(p.PubRel(5)) == [events.PubRelEvent([5])]

    @pytest.mark.parametrize("version", VERSIONS)
    def test_pubrel_of_an_unknown_identifier_is_answered(self, version: int) -> None:
        opened = Opened(version)
        assert opened.send(p.PubRel(9)) == []
        reason = R.PACKET_IDENTIFIER_NOT_FOUND if version == 5 else R.SUCCESS
        assert opened.sent() == [p.PubComp(9, reason)]

    def test_pubrel_over_a_new_connection_during_the_commit_is_answered(self) -> None:
        """The PUBCOMP goes to the new connection after the commit, as the identifier is free for another message
        then."""
        old = Opened(5)
        old.send(p.Publish("t", b"a", 2, packet_id=1), p.Publish("t", b"b", 2, packet_id=2))
        old.connection.acknowledge(2, [1, 2])
        assert old.send(p.PubRel(1), p.PubRel(2)) == [events.PubRelEvent([1, 2])]
        old.connection.receive_eof(old.now)
        new = Opened(5, state=old.state)
        assert new.send(p.PubRel(1)) == []
        assert new.sent() == []
        old.state.complete([1, 2])
        assert new.sent() == [p.PubComp(1)], "PUBREL for 2 has not been sent again yet"
        assert new.send(p.PubRel(2)) == []
        assert new.sent() == [p.PubComp(2, R.PACKET_IDENTIFIER_NOT_FOUND)]

    def test_pubrel_before_the_commit_is_answered(self) -> None:
        opened = Opened(5)
        opened.send(p.Publish("t", b"a", 2, packet_id=1))
        assert ended(opened, opened.send(p.PubRel(1))) is R.PROTOCOL_ERROR
        assert opened.state.incoming == {1}
