"""MQTT packets in words, both ways and however they are cut, without payloads and passwords."""

from __future__ import annotations

from typing import Any

import pytest

from edge.broker.message.mqtt_properties import Properties
from edge.broker.message.mqtt_reason_codes import ReasonCode
from edge.broker.mqtt import packets
from edge.broker.mqtt.events import SubscriptionRequest
from edge.broker.tracing.dissector import DissectedPacket
from edge.broker.tracing.events import IN, OUT
from edge.broker.tracing.limits import (
    TRACE_ADDRESSES_KEPT_MAX,
    TRACE_FILTERS_SHOWN_MAX,
    TRACE_HEAD_BYTES_MAX,
    TRACE_PAYLOAD_BYTES_MAX,
)
from edge.broker.tracing.mqtt import MqttDissector

SECRET = b"hunter2-secret"
WILL = packets.WillMessage("plant/7/gone", SECRET, qos=1, retain=True)


def read(dissector: MqttDissector, direction: str, *sent: Any, version: int = 5) -> list[DissectedPacket]:
    data = b"".join(each if isinstance(each, bytes) else each.encode(version) for each in sent)
    return [each for each in dissector.read(direction, data, lambda: True) if each is not None]


def open_dissector(version: int = 5) -> MqttDissector:
    return MqttDissector(version, "meter7", "alice")


CASES = [
    (IN, packets.Publish("plant/7", b"12345", 1, retain=True, dup=True, packet_id=9),
     ("PUBLISH", 9, "plant/7", ("q1", "retain", "dup"), 5, None, "", "")),
    (OUT, packets.PubAck(9, ReasonCode.NO_MATCHING_SUBSCRIBERS),
     ("PUBACK", 9, "", (), None, 0x10, "No matching subscribers", "")),
    (OUT, packets.PubRec(9, ReasonCode.QUOTA_EXCEEDED, Properties(reason_string="store is full")),
     ("PUBREC", 9, "", (), None, 0x97, "Quota exceeded", '"store is full"')),
    (IN, packets.Subscribe(3, (SubscriptionRequest("a/#", 2), SubscriptionRequest("b", 0, no_local=True))),
     ("SUBSCRIBE", 3, "a/# q2, b q0 no-local", (), None, None, "", "")),
    (OUT, packets.SubAck(3, (2, 0x87)),
     ("SUBACK", 3, "", (), None, 0x87, "Not authorized", "granted q2, 0x87 Not authorized")),
    (IN, packets.Unsubscribe(4, ("a/#",)), ("UNSUBSCRIBE", 4, "a/#", (), None, None, "", "")),
    (OUT, packets.UnsubAck(4, (0x11,)), ("UNSUBACK", 4, "", (), None, None, "", "0x11 No subscription existed")),
    (IN, packets.PingReq(), ("PINGREQ", None, "", (), None, None, "", "")),
    (OUT, packets.PingResp(), ("PINGRESP", None, "", (), None, None, "", "")),
    (OUT, packets.Disconnect(ReasonCode.SESSION_TAKEN_OVER),
     ("DISCONNECT", None, "", (), None, 0x8E, "Session taken over", "")),
    (IN, packets.Disconnect(), ("DISCONNECT", None, "", (), None, 0, "Normal disconnection", "")),
    (IN, packets.Auth(ReasonCode.CONTINUE_AUTHENTICATION,
                      Properties(authentication_method="SCRAM-SHA-256", authentication_data=SECRET)),
     ("AUTH", None, "", (), None, 0x18, "Continue authentication", "method SCRAM-SHA-256, authentication data")),
    (OUT, packets.ConnAck(True, ReasonCode.SUCCESS, Properties(assigned_client_identifier="auto-1")),
     ("CONNACK", None, "", (), None, 0, "Success", "session present, assigned client auto-1")),
    (IN, packets.Publish("a", b"x", properties=Properties(user_property=(("k", SECRET.decode()),), content_type="t",
                                                          correlation_data=SECRET, message_expiry_interval_s=60)),
     ("PUBLISH", None, "a", ("q0",), 1, None, "",
      "expires in 60 s, content type t, correlation data, 1 user property")),
]  # fmt: skip


def _encoded(packet: Any) -> bytes:
    encoded: bytes = packet.encode(5)
    return encoded


def shown(packet: DissectedPacket) -> tuple[Any, ...]:
    fields = packet.name, packet.id, packet.address, packet.flags, packet.payload_bytes, packet.code
    return (*fields, packet.reason, packet.text)


@pytest.mark.parametrize(("direction", "packet", "expected"), CASES, ids=[case[2][0] for case in CASES])
def test_packet_is_described(direction: str, packet: Any, expected: tuple[Any, ...]) -> None:
    (found,) = read(open_dissector(), direction, packet)
    assert shown(found) == expected
    assert found.bytes == len(packet.encode(5))
    assert SECRET.decode() not in repr(found)


@pytest.mark.parametrize(("version", "protocol"), [(3, "MQTT 3.1"), (4, "MQTT 3.1.1"), (5, "MQTT 5")])
def test_connect_shows_everything_but_secrets(version: int, protocol: str) -> None:
    dissector = MqttDissector()
    connect = packets.Connect("meter7", version, False, 60, "alice", SECRET, WILL)
    assert not dissector.known
    (found,) = read(dissector, IN, connect, version=version)
    assert (dissector.known, dissector.client, dissector.user, dissector.protocol) == (
        True,
        "meter7",
        "alice",
        protocol,
    )
    for words in (protocol, "keep alive 60 s", "user alice", "with a password", "will to plant/7/gone q1 retain 14 B"):
        assert words in found.text
    assert SECRET.decode() not in repr(found)


@pytest.mark.parametrize(
    ("reason", "code", "words", "refuses"),
    [
        (ReasonCode.SUCCESS, 0, "accepted", False),
        (ReasonCode.BAD_USER_NAME_OR_PASSWORD, 4, "bad user name or password", True),
        (ReasonCode.NOT_AUTHORIZED, 5, "not authorized", False),
    ],
)
def test_return_codes_of_older_versions_are_named(reason: ReasonCode, code: int, words: str, refuses: bool) -> None:
    (found,) = read(open_dissector(4), OUT, packets.ConnAck(False, reason), version=4)
    assert (found.code, found.reason, found.refuses_login) == (code, words, refuses)


def test_answers_show_the_topic_they_refer_to() -> None:
    dissector = open_dissector()
    read(
        dissector, IN, packets.Publish("plant/7", b"", 1, packet_id=1), packets.Publish("plant/8", b"", 2, packet_id=2)
    )
    read(dissector, OUT, packets.Publish("down", b"", 1, packet_id=1))
    sent = read(dissector, OUT, packets.PubAck(1), packets.PubRec(2))
    received = read(dissector, IN, packets.PubAck(1), packets.PubRel(2))
    sent += read(dissector, OUT, packets.PubComp(2))
    assert [each.address for each in sent] == ["plant/7", "plant/8", "plant/8"]
    assert [each.address for each in received] == ["down", "plant/8"]


def test_topic_alias_is_resolved() -> None:
    dissector = open_dissector()
    alias = Properties(topic_alias=3)
    found = read(dissector, IN, packets.Publish("plant/7", properties=alias), packets.Publish("", properties=alias))
    assert [each.address for each in found] == ["plant/7", "plant/7"]


def test_any_split_of_the_bytes_gives_the_same_packets() -> None:
    data = b"".join(_encoded(packet) for direction, packet, _ in CASES if direction == IN)
    whole = [shown(each) for each in read(open_dissector(), IN, data)]
    bytewise = open_dissector()
    assert [shown(each) for at in range(len(data)) for each in read(bytewise, IN, data[at : at + 1])] == whole
    for at in range(1, len(data)):
        cut = open_dissector()
        assert [shown(each) for part in (data[:at], data[at:]) for each in read(cut, IN, part)] == whole


def test_trace_that_joins_within_a_packet_continues_after_it() -> None:
    data = packets.Publish("plant/7", b"12345", 1, packet_id=9).encode(5)
    dissector = MqttDissector(5, "meter7", "", pending=data[:6])
    assert [each.address for each in read(dissector, IN, data[6:])] == ["plant/7"]


def test_payload_above_the_limit_is_skipped() -> None:
    large = packets.Publish("plant/7", bytes(3 * TRACE_HEAD_BYTES_MAX), 1, packet_id=1).encode(5)
    after = packets.Publish("plant/8", b"", 1, packet_id=2).encode(5)
    dissector = open_dissector()
    found = [each for at in range(0, len(large), 4096) for each in read(dissector, IN, large[at : at + 4096])]
    found += read(dissector, IN, after)
    assert [(each.address, each.payload_bytes) for each in found] == [
        ("plant/7", 3 * TRACE_HEAD_BYTES_MAX),
        ("plant/8", 0),
    ]
    assert len(dissector._streams[IN].rest) < TRACE_HEAD_BYTES_MAX


def test_invalid_packet_is_reported_once() -> None:
    dissector = open_dissector()
    assert [each.name for each in read(dissector, IN, b"\x30\xff\xff\xff\xff\xff")] == ["(not MQTT)"]
    assert read(dissector, IN, packets.PingReq()) == []


def test_malformed_packet_is_named() -> None:
    found = read(open_dissector(), IN, b"\x36\x03\x00\x01a", packets.PingReq())
    assert [each.name for each in found] == ["PUBLISH", "PINGREQ"]
    assert "cannot be read" in found[0].text


def test_hidden_filters_are_counted() -> None:
    filters = tuple(SubscriptionRequest(f"f/{i}", 0) for i in range(TRACE_FILTERS_SHOWN_MAX + 2))
    (found,) = read(open_dissector(), IN, packets.Subscribe(1, filters))
    assert found.address.endswith(f"f/{TRACE_FILTERS_SHOWN_MAX - 1} q0 and 2 more")
    assert len(found.addresses) == TRACE_FILTERS_SHOWN_MAX + 2


def test_oldest_topic_is_forgotten() -> None:
    dissector = open_dissector()
    for packet_id in range(1, TRACE_ADDRESSES_KEPT_MAX + 2):
        read(dissector, IN, packets.Publish(f"t/{packet_id}", b"", 1, packet_id=packet_id))
    assert (dissector.address_of(1), dissector.address_of(2)) == ("", "t/2")


def test_packets_without_room_are_counted_and_not_read() -> None:
    data = packets.Publish("a", b"x", 1, packet_id=1).encode(5)
    assert list(open_dissector().read(IN, 3 * data, lambda: False)) == [None, None, None]


def test_payload_is_read_only_while_a_trace_asks_for_it() -> None:
    message = packets.Publish("plant/7", b"x" * 2 * TRACE_PAYLOAD_BYTES_MAX, 0)
    dissector = open_dissector()
    assert read(dissector, IN, message)[0].payload == ""
    dissector.shows_payload = True
    (found,) = read(dissector, IN, message)
    assert found.payload == "x" * TRACE_PAYLOAD_BYTES_MAX
    assert "xxx" not in repr(found)
