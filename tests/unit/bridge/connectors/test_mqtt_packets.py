"""MQTT 3.1.1 packets through amqtt's codec: written, read, and malformed."""

from __future__ import annotations

import pytest

from bridge.connectors.mqtt import packets
from bridge.connectors.mqtt.packets import (
    AckReceived,
    ConnackReceived,
    LargePublishReceived,
    MalformedBrokerPacket,
    Packet,
    Packets,
    PingrespReceived,
    PublishReceived,
    SubackReceived,
)

CASES = [
    (b"\x20\x02\x01\x00", ConnackReceived(True, 0)),
    (b"\x20\x02\x00\x05", ConnackReceived(False, 5)),
    (b"\x40\x02\x12\x34", AckReceived(0x1234)),
    (b"\x90\x04\xff\xff\x01\x80", SubackReceived(0xFFFF, (1, 128))),
    (b"\xd0\x00", PingrespReceived()),
    (b"\x3b\x09\x00\x03a/b\x00\x07hi", PublishReceived(7, "a/b", b"hi", 1, True, True)),
    (b"\x30\x05\x00\x03a/b", PublishReceived(None, "a/b", b"", 0, False, False)),
    (b"\x32\x07\x00\x03\xe2\x82\xac\x00\x01", PublishReceived(1, "€", b"", 1, False, False)),
]
"""Bytes of a server, and the packet they encode."""


@pytest.mark.parametrize(("data", "packet"), CASES)
def test_packet_is_read(data: bytes, packet: Packet) -> None:
    assert list(Packets().feed(data)) == [packet]


def test_packet_is_read_in_any_pieces() -> None:
    data = b"".join(data for data, _ in CASES)
    for size in (1, 2, 3, 7, len(data)):
        stream, found = Packets(), list[Packet]()
        for start in range(0, len(data), size):
            found += stream.feed(data[start : start + size])
        assert found == [packet for _, packet in CASES]


@pytest.mark.parametrize("data", [data for data, _ in CASES if len(data) > 2])
def test_packet_shorter_than_its_content_raises(data: bytes) -> None:
    """Every truncation of the content raises, with a length that matches the truncation."""
    kind, content = data[:1], data[2:]
    whole = next(iter(Packets().feed(data)))
    for length in range(len(content)):
        short = kind + bytes((length,)) + content[:length]
        try:
            found = list(Packets().feed(short))
        except MalformedBrokerPacket:
            continue
        # Payloads and lists of codes may have any length.
        assert isinstance(whole, PublishReceived | SubackReceived)
        assert type(found[0]) is type(whole)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00", "ConnectPacket"),
        (b"\x00\x00", "packet Type"),
        (b"\xf0\x00", "packet Type"),
        (b"\x34\x07\x00\x03a/b\x00\x01", "QoS 2"),
        (b"\x32\x07\x00\x03a/b\x00\x00", "identifier 0"),
        (b"\x32\x07\x00\x03\xff\xfe\xfd\x00\x01", "UTF-8"),
        (b"\x32\x04\x00\x00\x00\x01", "empty"),
        (b"\x40\xff\xff\xff\xff\x01", "more than four bytes"),
        (b"\x40\xff\xff\xff\x7f", "more than"),
        (b"\x34\xff\xff\xff\x7f\x00\x01a\x00\x01", "invalid header"),
        (b"\x32\xff\xff\xff\x7f\x00\x01a\x00\x00", "invalid header"),
        (b"\x30\xff\xff\xff\x7f\x00\x01\xff", "UTF-8"),
    ],
)
def test_packets_that_servers_do_not_send_raise(data: bytes, why: str) -> None:
    with pytest.raises(MalformedBrokerPacket, match=why):
        list(Packets().feed(data))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 1_000])
def test_publish_above_the_limit_is_skipped(size: int) -> None:
    """A PUBLISH above the limit is skipped; later packets are read as usual, in pieces of any size."""
    stream = Packets(packet_bytes_max=100)
    limit = b"\x32\x62\x00\x03a/b\x00\x01" + bytes(91)
    above = b"\x32\x63\x00\x03a/b\x00\x02" + bytes(92)
    much = b"\x30\xfb\x04\x00\x04a/b/" + bytes(629)
    data = limit + above + limit + much + above + b"\xd0\x00"
    found = list[Packet]()
    for start in range(0, len(data), size):
        found += stream.feed(data[start : start + size])
        assert len(stream._buffer) < 101 + size, "the buffer holds at most one packet within the limit"
    taken = PublishReceived(1, "a/b", bytes(91), 1, False, False)
    large = LargePublishReceived(2, "a/b", 101)
    assert found == [taken, large, taken, LargePublishReceived(None, "a/b/", 638), large, PingrespReceived()]


def test_other_packets_above_the_limit_are_refused_before_they_are_buffered() -> None:
    with pytest.raises(MalformedBrokerPacket, match="type 9 with 101 bytes"):
        list(Packets(packet_bytes_max=100).feed(b"\x90\x63"))


def test_packet_is_written() -> None:
    connect = packets.connect("me", clean_session=False, keep_alive_s=30, username="u", password="p")
    assert connect == b"\x10\x14\x00\x04MQTT\x04\xc0\x00\x1e\x00\x02me\x00\x01u\x00\x01p"
    assert packets.connect("me", clean_session=True, keep_alive_s=1)[8:12] == b"\x04\x02\x00\x01"
    assert packets.publish("a/b", b"hi", 7, dup=True, retain=False) == b"\x3a\x09\x00\x03a/b\x00\x07hi"
    assert packets.puback(0x1234) == b"\x40\x02\x12\x34"
    assert packets.subscribe(0xFFFF, [("a/#", 1)]) == b"\x82\x08\xff\xff\x00\x03a/#\x01"
    assert (packets.pingreq(), packets.disconnect()) == (b"\xc0\x00", b"\xe0\x00")


@pytest.mark.parametrize("topic", ["", "a/+", "#", "a\0b", "x" * 65_536])
def test_invalid_topics_raise(topic: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        packets.publish(topic, b"", 1, dup=False, retain=False)
