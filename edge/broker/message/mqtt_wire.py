"""Encode and decode the data types of MQTT (MQTT 5 section 1.5) and the fixed header (section 2.1).

Knows no packet's content, no property and no connection.
"""

from __future__ import annotations

import enum

from edge.broker.message.mqtt_errors import MalformedPacket
from edge.broker.message.mqtt_reason_codes import ReasonCode

VARIABLE_BYTE_INTEGER_MAX = 268_435_455
"""Largest variable byte integer: four bytes of seven bits (section 1.5.5)."""
LENGTH_MAX = 0xFFFF
"""Longest string or binary data, with a two byte length (sections 1.5.4 and 1.5.6)."""


class PacketType(enum.IntEnum):
    """Bits 7-4 of the first byte (section 2.1.2).

    WILL is for the Will Properties, which have a column in the properties table and no packet.
    """

    WILL = 0
    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


def decode_string(raw: bytes) -> str:
    """Decode a UTF-8 string (section 1.5.4) without its length.

    Raises MalformedPacket for ill-formed UTF-8, surrogates [MQTT-1.5.4-1] and U+0000 [MQTT-1.5.4-2]. A byte order
    mark stays what it is, U+FEFF [MQTT-1.5.4-3].
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedPacket(f"ill-formed UTF-8 at byte {error.start} of a string") from None
    if "\0" in text:
        raise MalformedPacket("U+0000 in a string")
    return text


def is_text(payload: bytes) -> bool:
    """Return True if a payload is UTF-8. Unlike a string it may contain U+0000."""
    try:
        payload.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def encode_string(text: str) -> bytes:
    """Encode a UTF-8 string with its length. Raises ValueError if it is invalid."""
    if "\0" in text:
        raise ValueError("U+0000 cannot be part of an MQTT string")
    return encode_binary(text.encode("utf-8"))


def encode_binary(raw: bytes) -> bytes:
    """Encode binary data with its length. Raises ValueError above 65 535 bytes."""
    if len(raw) > LENGTH_MAX:
        raise ValueError(f"{len(raw)} bytes do not fit a two byte length")
    return len(raw).to_bytes(2, "big") + raw


def encode_variable_byte_integer(value: int) -> bytes:
    """Encode a variable byte integer (section 1.5.5) in the fewest bytes [MQTT-1.5.5-1]. Raises ValueError outside
    0..268 435 455."""
    if not 0 <= value <= VARIABLE_BYTE_INTEGER_MAX:
        raise ValueError(f"{value} is out of range of a variable byte integer")
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def frame(first: int, *parts: bytes) -> bytes:
    """Encode a packet from first byte and parts, with its remaining length."""
    body = b"".join(parts)
    return bytes((first,)) + encode_variable_byte_integer(len(body)) + body


def read_fixed_header(data: bytes, pos: int) -> tuple[int, int, bool] | None:
    """Read the remaining length of the packet that starts at `pos`.

    Returns (where its variable header starts, remaining length, whether that length used the fewest bytes), or None
    when more bytes are needed. Raises MalformedPacket for a length of more than four bytes.
    """
    length = 0
    for index in range(4):
        at = pos + 1 + index
        if at >= len(data):
            return None
        byte = data[at]
        length |= (byte & 127) << 7 * index
        if byte < 128:
            return at + 1, length, index == 0 or byte > 0
    raise MalformedPacket("remaining length of more than four bytes")


class PacketReader:
    """Reads values from a packet in order. Raises MalformedPacket if the packet ends too early."""

    __slots__ = ("data", "end", "pos")

    def __init__(self, data: bytes, pos: int = 0, end: int | None = None) -> None:
        self.data = data
        self.pos = pos
        self.end = len(data) if end is None else end

    @property
    def left(self) -> int:
        """Number of unread bytes."""
        return self.end - self.pos

    def take(self, count: int) -> bytes:
        """Read `count` bytes."""
        start = self.pos
        if start + count > self.end:
            raise MalformedPacket("the packet ends in the middle of a field")
        self.pos = start + count
        return self.data[start : start + count]

    def rest(self) -> bytes:
        """Read all remaining bytes."""
        return self.take(self.left)

    def integer(self, size: int) -> int:
        """Read an integer of one, two or four bytes (sections 1.5.2 and 1.5.3)."""
        return int.from_bytes(self.take(size), "big")

    def variable_byte_integer(self) -> int:
        """Read a variable byte integer (section 1.5.5) of up to four bytes in its shortest form."""
        value = 0
        for shift in (0, 7, 14, 21):
            byte = self.integer(1)
            value |= (byte & 127) << shift
            if byte < 128:
                if shift and not byte:
                    raise MalformedPacket("variable byte integer is not in its shortest form")
                return value
        raise MalformedPacket("variable byte integer of more than four bytes")

    def binary(self) -> bytes:
        """Read binary data (section 1.5.6)."""
        return self.take(self.integer(2))

    def string(self) -> str:
        """Read a UTF-8 string (section 1.5.4)."""
        return decode_string(self.binary())

    def part(self, size: int) -> PacketReader:
        """Return a reader of the next `size` bytes, and skip them."""
        start = self.pos
        self.take(size)
        return PacketReader(self.data, start, start + size)

    def finish(self) -> None:
        """Raise MalformedPacket if bytes remain."""
        if self.pos != self.end:
            raise MalformedPacket(f"{self.left} bytes too many in the packet")


def reason_code(value: int, allowed: frozenset[ReasonCode]) -> ReasonCode:
    """Return the reason code of a value. Raises MalformedPacket if it is not allowed for the packet."""
    try:
        reason = ReasonCode(value)
    except ValueError:
        raise MalformedPacket(f"unknown reason code 0x{value:02X}") from None
    if reason not in allowed:
        raise MalformedPacket(f"reason code 0x{value:02X} is not one of this packet's")
    return reason
