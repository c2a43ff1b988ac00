"""Encode and decode PUBACK, PUBREC, PUBREL and PUBCOMP in their four byte form, many at a time.

Each message has an acknowledgement, and usually many of one type are sent together. Two array operations encode them,
without a loop in Python.
"""

from __future__ import annotations

import array
import struct
import sys
from collections.abc import Iterable, Sequence

from edge.broker.message.mqtt_properties import NONE, Properties, encode
from edge.broker.message.mqtt_reason_codes import ReasonCode
from edge.broker.message.mqtt_wire import PacketType, encode_variable_byte_integer

PUBACK, PUBREC, PUBREL, PUBCOMP = 0x40, 0x50, 0x62, 0x70
"""First byte of each packet type."""


def encode_acknowledgements(first: int, packet_ids: Sequence[int]) -> bytes:
    """Encode a four byte packet with this first byte for each packet identifier, in order."""
    if len(packet_ids) == 1:
        return (first << 24 | 2 << 16 | packet_ids[0]).to_bytes(4, "big")
    words = array.array("H", (first << 8 | 2,)) * (2 * len(packet_ids))
    words[1::2] = array.array("H", packet_ids)
    if sys.byteorder == "little":
        words.byteswap()
    return words.tobytes()


def encode_reasons(first: int, packet_ids: Sequence[int], reason: ReasonCode, properties: Properties = NONE) -> bytes:
    """Encode an MQTT 5 acknowledgement with reason code and properties for each packet identifier, in order."""
    tail = bytes((reason,))
    if properties is not NONE:
        tail += encode(properties, PacketType(first >> 4))
    head = bytes((first,)) + encode_variable_byte_integer(2 + len(tail))
    return b"".join([head + packet_id.to_bytes(2, "big") + tail for packet_id in packet_ids])


def encode_packet_ids(packet_ids: Iterable[int]) -> list[bytes]:
    """Encode packet identifiers as two bytes each."""
    words = array.array("H", packet_ids)
    if sys.byteorder == "little":
        words.byteswap()
    return [raw for (raw,) in struct.iter_unpack("2s", words)]


def read_packet_ids(data: bytes, pos: int, ids: list[int]) -> int:
    """Read the four byte acknowledgement at `pos` and those of the same type behind it. Return where they end."""
    head = data[pos : pos + 2]
    last = len(data) - 4
    startswith, append = data.startswith, ids.append
    while pos <= last and startswith(head, pos):
        append(data[pos + 2] << 8 | data[pos + 3])
        pos += 4
    return pos
