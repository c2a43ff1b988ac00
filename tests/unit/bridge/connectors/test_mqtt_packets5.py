"""MQTT 5 packets of the connector: written, read, and malformed."""

from __future__ import annotations

import pytest

from bridge.connectors.mqtt import packets5
from bridge.connectors.mqtt.packets import (
    AckReceived,
    ConnackReceived,
    ConnackTerms,
    DisconnectReceived,
    MalformedBrokerPacket,
    Packet,
    Packets,
    PingrespReceived,
    PublishReceived,
    SubackReceived,
)
from edge.broker.message.mqtt_properties import Properties
from edge.broker.mqtt import packets as ours
from edge.broker.mqtt.packets import SubscriptionRequest

TERMS = Properties(receive_maximum=20, maximum_packet_size=5_000, server_keep_alive_s=7)

CASES: list[tuple[bytes, Packet]] = [
    (ours.ConnAck(True, properties=TERMS).encode(5), ConnackReceived(True, 0, ConnackTerms(20, 5_000, keep_alive_s=7))),
    (
        b"\x20\x0c\x00\x87\x09\x1f\x00\x02no\x24\x00\x25\x00",
        ConnackReceived(False, 0x87, ConnackTerms(qos_max=0, retains=False), "no"),
    ),
    (b"\x20\x02\x00\x01", ConnackReceived(False, 1)),
    (b"\x40\x02\x12\x34", AckReceived(0x1234)),
    (b"\x40\x03\x12\x34\x97", AckReceived(0x1234, 0x97)),
    (ours.SubAck(0xFFFF, (1, 0x87)).encode(5), SubackReceived(0xFFFF, (1, 0x87))),
    (b"\xd0\x00", PingrespReceived()),
    (b"\xe0\x00", DisconnectReceived(0, "")),
    (ours.Disconnect(0x8E, Properties(reason_string="taken")).encode(5), DisconnectReceived(0x8E, "taken")),
    (b"\x3b\x0a\x00\x03a/b\x00\x07\x00hi", PublishReceived(7, "a/b", b"hi", 1, True, True)),
]


@pytest.mark.parametrize(("data", "packet"), CASES)
@pytest.mark.parametrize("size", [1, 3, 1_000])
def test_packet_is_read(data: bytes, packet: Packet, size: int) -> None:
    stream, found = Packets(read=packets5.decode), list[Packet]()
    for start in range(0, len(data), size):
        found += stream.feed(data[start : start + size])
    assert found == [packet]


@pytest.mark.parametrize("data", [data for data, _ in CASES if len(data) > 4])
def test_truncated_packet_raises_or_is_another(data: bytes) -> None:
    for length in range(len(data) - 2):
        try:
            list(Packets(read=packets5.decode).feed(data[:1] + bytes((length,)) + data[2 : 2 + length]))
        except MalformedBrokerPacket:
            continue


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x10\x00", "type 1"),
        (b"\x34\x08\x00\x03a/b\x00\x01\x00", "QoS 2"),
        (b"\x32\x08\x00\x03a/b\x00\x00\x00", "identifier 0"),
        (b"\x30\x03\x00\x00\x00", "empty"),
        (b"\x30\x06\x00\x02a/\x01\x7e", "identifier 126"),
        (b"\x30\x06\x00\x02a/\x05\x7e", "middle of a field"),
        (b"\x30\x09\x00\x02a/\xff\xff\xff\xff\x01", "more than four bytes"),
    ],
)
def test_packets_that_servers_do_not_send_raise(data: bytes, why: str) -> None:
    with pytest.raises(MalformedBrokerPacket, match=why):
        list(Packets(read=packets5.decode).feed(data))


def test_packet_is_written_as_the_gateway_reads_it() -> None:
    """The connector writes the same bytes as the listener, which has a codec of its own."""
    connect = packets5.connect("me", clean_start=False, keep_alive_s=30, username="u", password="p")
    kept = Properties(session_expiry_interval_s=0xFFFF_FFFF)
    assert connect == ours.Connect("me", 5, False, 30, "u", b"p", properties=kept).encode()
    clean = packets5.connect("me", clean_start=True, keep_alive_s=30)
    assert clean == ours.Connect("me", 5, True, 30).encode()
    wanted = tuple(SubscriptionRequest(name, 1, name[0] != "$", True, 1) for name in ("a/#", "$share/g/a"))
    assert packets5.subscribe(9, [("a/#", 1), ("$share/g/a", 1)]) == ours.Subscribe(9, wanted).encode(5)
    sent = packets5.publish(
        "a/b", b"hi", 7, dup=True, retain=True, properties=b"\x26\x00\x01a\x00\x01b", packet_bytes_max=100
    )
    expected = ours.Publish("a/b", b"hi", 1, True, True, 7, Properties(user_property=(("a", "b"),)))
    assert sent == expected.encode(5)


@pytest.mark.parametrize("topic", ["", "a/+", "#", "a\0b", "x" * 65_536])
def test_invalid_topics_raise(topic: str) -> None:
    with pytest.raises(ValueError, match="topic name"):
        packets5.publish(topic, b"", 1, dup=False, retain=False, properties=b"", packet_bytes_max=100)


def test_message_above_the_maximum_packet_size_raises() -> None:
    size = len(packets5.publish("a", b"12", 1, dup=False, retain=False, properties=b"", packet_bytes_max=100))
    with pytest.raises(ValueError, match=f"accepts {size - 1}$"):
        packets5.publish("a", b"12", 1, dup=False, retain=False, properties=b"", packet_bytes_max=size - 1)
