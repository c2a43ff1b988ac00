"""Codec for the MQTT 5 control packets that a connector needs; amqtt supports only 3.1.1 (decision 0010).

Packets that are the same in both versions are in `packets`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from bridge.connectors.mqtt.packets import (
    PACKET_ID_MAX,
    REMAINING_LENGTH_MAX,
    TOPIC_BYTES_MAX,
    AckReceived,
    ConnackReceived,
    ConnackTerms,
    DisconnectReceived,
    MalformedBrokerPacket,
    Packet,
    PingrespReceived,
    PublishReceived,
    SubackReceived,
)

NEVER_EXPIRES: Final = 0xFFFF_FFFF
"""Session expiry interval of a permanent session (section 3.1.2.11.2)."""
_PROPERTY_BYTES: Final = {
    **dict.fromkeys((0x01, 0x17, 0x19, 0x24, 0x25, 0x28, 0x29, 0x2A), 1),
    **dict.fromkeys((0x13, 0x21, 0x22, 0x23), 2),
    **dict.fromkeys((0x02, 0x11, 0x18, 0x27), 4),
}
"""Bytes of numeric properties, by identifier (section 2.2.2.2)."""
_PAIR, _VARIABLE = 0x26, 0x0B
_TEXTS: Final = frozenset((0x03, 0x08, 0x09, 0x12, 0x15, 0x16, 0x1A, 0x1C, 0x1F))
_SESSION_EXPIRY, _SERVER_KEEP_ALIVE, _RECEIVE_MAXIMUM, _MAXIMUM_QOS = 0x11, 0x13, 0x21, 0x24
_OPTIONS, _SHARED = 0x1C, 0x18
"""Retain Handling 1, Retain As Published and No Local, which shared subscriptions must not have (section 3.8.3.1)."""
_RETAIN_AVAILABLE, _MAXIMUM_PACKET_SIZE, _REASON_STRING = 0x25, 0x27, 0x1F


class _Cursor:
    """Reads the fields of one packet. Raises MalformedBrokerPacket when the packet is too short."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data = data
        self.at = at

    @property
    def left(self) -> int:
        return len(self.data) - self.at

    def take(self, count: int) -> bytes:
        if count > self.left:
            raise MalformedBrokerPacket("a packet that ends in the middle of a field")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count))

    def variable(self) -> int:
        value = 0
        for shift in (0, 7, 14, 21):
            byte = self.number(1)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise MalformedBrokerPacket("a length of more than four bytes")

    def block(self) -> bytes:
        """Read the encoded properties, after their length."""
        return self.take(self.variable())


def connect(
    client_id: str, *, clean_start: bool, keep_alive_s: int, username: str | None = None, password: str | None = None
) -> bytes:
    """Encode CONNECT. The session never expires unless `clean_start`."""
    flags = (0x02 if clean_start else 0) | (0 if username is None else 0x80) | (0 if password is None else 0x40)
    properties = b"" if clean_start else bytes((_SESSION_EXPIRY,)) + NEVER_EXPIRES.to_bytes(4)
    texts = [text for text in (client_id, username, password) if text is not None]
    head = b"\x00\x04MQTT\x05" + bytes((flags,)) + keep_alive_s.to_bytes(2) + _counted(properties)
    return _framed(0x10, head + b"".join(map(_text, texts)))


def publish(
    topic: str, payload: bytes, packet_id: int, *, dup: bool, retain: bool, properties: bytes, packet_bytes_max: int
) -> bytes:
    """Encode PUBLISH with QoS 1. Raises `ValueError` when the message does not fit into a packet."""
    if not 0 < len(topic.encode()) <= TOPIC_BYTES_MAX or "\0" in topic or "+" in topic or "#" in topic:
        raise ValueError("the address is not an MQTT topic name")
    body = _text(topic) + packet_id.to_bytes(2) + _counted(properties) + payload
    if len(body) > REMAINING_LENGTH_MAX:
        raise ValueError(f"{len(payload)} bytes do not fit into a packet")
    packet = _framed(0x32 | (8 if dup else 0) | bool(retain), body)
    if len(packet) > packet_bytes_max:
        raise ValueError(f"a packet of {len(packet)} bytes; the broker accepts {packet_bytes_max}")
    return packet


def subscribe(packet_id: int, filters: Sequence[tuple[str, int]], *, options: int = _OPTIONS) -> bytes:
    """Encode SUBSCRIBE to (filter, highest QoS). The default options are No Local, Retain As Published, and retained
    messages only for new subscriptions (Retain Handling 1)."""
    parts = (
        _text(name) + bytes((qos | (_SHARED if name.startswith("$share/") else options),)) for name, qos in filters
    )
    return _framed(0x82, packet_id.to_bytes(2) + b"\x00" + b"".join(parts))


def decode(frame: bytes) -> Packet:
    """Decode one packet of a server. Raises MalformedBrokerPacket."""
    first, cursor = frame[0], _Cursor(frame, 1)
    cursor.variable()
    match first >> 4:
        case 2:
            return _connection_answer(cursor)
        case 3:
            return _publication(first, cursor)
        case 4:
            return AckReceived(cursor.number(2), cursor.number(1) if cursor.left else 0)
        case 9:
            packet_id = cursor.number(2)
            cursor.block()
            return SubackReceived(packet_id, tuple(cursor.take(cursor.left)))
        case 13:
            return PingrespReceived()
        case 14:
            code = cursor.number(1) if cursor.left else 0
            return DisconnectReceived(code, _reason_string(cursor.block()) if cursor.left else "")
    raise MalformedBrokerPacket(f"a packet of type {first >> 4}, which no server sends here")


def _connection_answer(cursor: _Cursor) -> ConnackReceived:
    present, code = cursor.number(1) & 1, cursor.number(1)
    if not cursor.left:  # a broker of an older version answers in that version
        return ConnackReceived(bool(present), code)
    block = cursor.block()
    found = {kind: value for kind, value in _properties(block) if isinstance(value, int)}
    terms = ConnackTerms(
        max(1, found.get(_RECEIVE_MAXIMUM, PACKET_ID_MAX)),
        found.get(_MAXIMUM_PACKET_SIZE, REMAINING_LENGTH_MAX),
        found.get(_MAXIMUM_QOS, 2),
        found.get(_RETAIN_AVAILABLE, 1) == 1,
        found.get(_SERVER_KEEP_ALIVE),
    )
    return ConnackReceived(bool(present), code, terms, _reason_string(block))


def _publication(first: int, cursor: _Cursor) -> PublishReceived:
    qos = first >> 1 & 3
    if qos > 1:
        raise MalformedBrokerPacket(f"a PUBLISH with QoS {qos}, more than the QoS 1 of the subscription")
    try:
        topic = cursor.take(cursor.number(2)).decode()
    except UnicodeDecodeError:
        topic = ""
    packet_id = cursor.number(2) if qos else None
    if packet_id == 0:
        raise MalformedBrokerPacket("a PUBLISH with packet identifier 0")
    if not topic:  # our CONNECT allows no topic aliases
        raise MalformedBrokerPacket("a topic name that is empty or not UTF-8")
    block = cursor.block()
    for _ in _properties(block):
        pass  # raises when they are malformed
    return PublishReceived(packet_id, topic, cursor.take(cursor.left), qos, bool(first & 8), bool(first & 1), block)


def _properties(block: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield identifiers with their values."""
    cursor = _Cursor(block)
    while cursor.left:
        kind = cursor.variable()
        if kind in _PROPERTY_BYTES:
            yield kind, cursor.number(_PROPERTY_BYTES[kind])
        elif kind == _VARIABLE:
            yield kind, cursor.variable()
        elif kind in _TEXTS:
            yield kind, cursor.take(cursor.number(2))
        elif kind == _PAIR:
            yield kind, cursor.take(cursor.number(2)) + b"\0" + cursor.take(cursor.number(2))
        else:
            raise MalformedBrokerPacket(f"a property with identifier {kind}")


def _reason_string(block: bytes) -> str:
    """Return the Reason String among properties, or an empty text."""
    texts = (value for kind, value in _properties(block) if kind == _REASON_STRING and isinstance(value, bytes))
    return next(texts, b"").decode("utf-8", "replace")


def _text(text: str) -> bytes:
    raw = text.encode()
    if len(raw) > TOPIC_BYTES_MAX:
        raise ValueError(f"a string of {len(raw)} bytes; MQTT allows {TOPIC_BYTES_MAX}")
    return len(raw).to_bytes(2) + raw


def _counted(content: bytes) -> bytes:
    return _length(len(content)) + content


def _framed(first: int, body: bytes) -> bytes:
    return bytes((first,)) + _length(len(body)) + body


def _length(value: int) -> bytes:
    written = bytearray()
    while True:
        value, low = divmod(value, 128)
        written.append(low | (0x80 if value else 0))
        if not value:
            return bytes(written)
