"""MQTT 5 properties: the table of section 2.2.2.2, with encoder and decoder that check them for their packet.

The properties of a PUBLISH that a server forwards unaltered [MQTT-3.3.2-4, -15, -16, -17, -18, -20] travel through
Waypost as the bytes they came in (`bridge.message.Run.properties`); `split_publish` takes them apart from the two that
end here (topic alias, subscription identifier), and `decode_run` decodes them into values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec

from bridge.hidden import hides
from edge.broker.limits import USER_PROPERTIES_MAX
from edge.broker.message.mqtt_errors import MalformedPacket, ProtocolError
from edge.broker.message.mqtt_reason_codes import ReasonCode
from edge.broker.message.mqtt_wire import (
    PacketReader,
    PacketType,
    encode_binary,
    encode_string,
    encode_variable_byte_integer,
)

UserProperties = tuple[tuple[str, str], ...]


@hides("correlation_data", "authentication_data", "user_property")
class Properties(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """All properties of section 2.2.2.2 by name; None or an empty tuple if absent."""

    payload_format_indicator: int | None = None
    message_expiry_interval_s: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    subscription_identifier: tuple[int, ...] = ()
    session_expiry_interval_s: int | None = None
    assigned_client_identifier: str | None = None
    server_keep_alive_s: int | None = None
    authentication_method: str | None = None
    authentication_data: bytes | None = None
    request_problem_information: int | None = None
    will_delay_interval_s: int | None = None
    request_response_information: int | None = None
    response_information: str | None = None
    server_reference: str | None = None
    reason_string: str | None = None
    receive_maximum: int | None = None
    topic_alias_maximum: int | None = None
    topic_alias: int | None = None
    maximum_qos: int | None = None
    retain_available: int | None = None
    user_property: UserProperties = ()
    maximum_packet_size: int | None = None
    wildcard_subscription_available: int | None = None
    subscription_identifier_available: int | None = None
    shared_subscription_available: int | None = None


NONE = Properties()


class PropertyType(NamedTuple):
    """Data type of a property, with decoder and encoder."""

    decode: Callable[[PacketReader], Any]
    encode: Callable[[Any], bytes]


BYTE = PropertyType(lambda reader: reader.integer(1), lambda value: value.to_bytes(1, "big"))
TWO_BYTE_INTEGER = PropertyType(lambda reader: reader.integer(2), lambda value: value.to_bytes(2, "big"))
FOUR_BYTE_INTEGER = PropertyType(lambda reader: reader.integer(4), lambda value: value.to_bytes(4, "big"))
VARIABLE_BYTE_INTEGER = PropertyType(PacketReader.variable_byte_integer, encode_variable_byte_integer)
BINARY_DATA = PropertyType(PacketReader.binary, encode_binary)
STRING = PropertyType(PacketReader.string, encode_string)
STRING_PAIR = PropertyType(
    lambda reader: (reader.string(), reader.string()),
    lambda pair: encode_string(pair[0]) + encode_string(pair[1]),
)


class Property(NamedTuple):
    """One row of the table: packets, repetition and allowed values of a property."""

    identifier: int
    name: str
    kind: PropertyType
    packets: frozenset[PacketType]
    repeated: frozenset[PacketType] = frozenset()
    check: Callable[[Any], bool] = lambda value: True
    error: ReasonCode = ReasonCode.PROTOCOL_ERROR


def _on(*packets: PacketType) -> frozenset[PacketType]:
    return frozenset(packets)


def _flag(value: int) -> bool:
    return value <= 1


def _not_zero(value: int) -> bool:
    return value > 0


def _topic_name(value: str) -> bool:
    return "+" not in value and "#" not in value and value != ""


T = PacketType
_MESSAGE = _on(T.PUBLISH, T.WILL)
_REASONED = _on(
    T.CONNACK, T.PUBACK, T.PUBREC, T.PUBREL, T.PUBCOMP, T.SUBACK, T.UNSUBACK, T.DISCONNECT, T.AUTH
)  # fmt: skip
_HANDSHAKE = _on(T.CONNECT, T.CONNACK)
_AUTHENTICATION = _on(T.CONNECT, T.CONNACK, T.AUTH)
_ANY = frozenset(T) - _on(T.PINGREQ, T.PINGRESP)

PROPERTIES: tuple[Property, ...] = (
    Property(0x01, "payload_format_indicator", BYTE, _MESSAGE, check=_flag),
    Property(0x02, "message_expiry_interval_s", FOUR_BYTE_INTEGER, _MESSAGE),
    Property(0x03, "content_type", STRING, _MESSAGE),
    Property(0x08, "response_topic", STRING, _MESSAGE, check=_topic_name),
    Property(0x09, "correlation_data", BINARY_DATA, _MESSAGE),
    Property(
        0x0B,
        "subscription_identifier",
        VARIABLE_BYTE_INTEGER,
        _on(T.PUBLISH, T.SUBSCRIBE),
        repeated=_on(T.PUBLISH),
        check=_not_zero,
    ),
    Property(0x11, "session_expiry_interval_s", FOUR_BYTE_INTEGER, _HANDSHAKE | _on(T.DISCONNECT)),
    Property(0x12, "assigned_client_identifier", STRING, _on(T.CONNACK)),
    Property(0x13, "server_keep_alive_s", TWO_BYTE_INTEGER, _on(T.CONNACK)),
    Property(0x15, "authentication_method", STRING, _AUTHENTICATION),
    Property(0x16, "authentication_data", BINARY_DATA, _AUTHENTICATION),
    Property(0x17, "request_problem_information", BYTE, _on(T.CONNECT), check=_flag),
    Property(0x18, "will_delay_interval_s", FOUR_BYTE_INTEGER, _on(T.WILL)),
    Property(0x19, "request_response_information", BYTE, _on(T.CONNECT), check=_flag),
    Property(0x1A, "response_information", STRING, _on(T.CONNACK)),
    Property(0x1C, "server_reference", STRING, _on(T.CONNACK, T.DISCONNECT)),
    Property(0x1F, "reason_string", STRING, _REASONED),
    Property(0x21, "receive_maximum", TWO_BYTE_INTEGER, _HANDSHAKE, check=_not_zero),
    Property(0x22, "topic_alias_maximum", TWO_BYTE_INTEGER, _HANDSHAKE),
    Property(
        0x23,
        "topic_alias",
        TWO_BYTE_INTEGER,
        _on(T.PUBLISH),
        check=_not_zero,
        error=ReasonCode.TOPIC_ALIAS_INVALID,
    ),
    Property(0x24, "maximum_qos", BYTE, _on(T.CONNACK), check=_flag),
    Property(0x25, "retain_available", BYTE, _on(T.CONNACK), check=_flag),
    Property(0x26, "user_property", STRING_PAIR, _ANY, repeated=_ANY),
    Property(0x27, "maximum_packet_size", FOUR_BYTE_INTEGER, _HANDSHAKE, check=_not_zero),
    Property(0x28, "wildcard_subscription_available", BYTE, _on(T.CONNACK), check=_flag),
    Property(0x29, "subscription_identifier_available", BYTE, _on(T.CONNACK), check=_flag),
    Property(0x2A, "shared_subscription_available", BYTE, _on(T.CONNACK), check=_flag),
)

_BY_IDENTIFIER = {row.identifier: row for row in PROPERTIES}
_MULTIPLE = frozenset(row.name for row in PROPERTIES if row.repeated)
_PAYLOAD_FORMAT, _MESSAGE_EXPIRY, _SUBSCRIPTION_IDENTIFIER, _TOPIC_ALIAS = 0x01, 0x02, 0x0B, 0x23


def _walk(
    reader: PacketReader, packet: PacketType, repeated_max: float = math.inf
) -> Iterator[tuple[Property, Any, int]]:
    """Yield row, value and start of each property, checked. The reader contains properties only.

    `repeated_max`: limit for a client's packet; stored properties were checked before.
    """
    seen: set[int] = set()
    repeated = 0
    while reader.left:
        start = reader.pos
        identifier = reader.variable_byte_integer()
        row = _BY_IDENTIFIER.get(identifier)
        if row is None or packet not in row.packets:
            raise MalformedPacket(f"property 0x{identifier:02X} is not one of {packet.name}")
        if identifier in seen and packet not in row.repeated:
            raise ProtocolError(f"property {row.name} twice in {packet.name}")
        if identifier in seen:
            repeated += 1
            if repeated >= repeated_max:
                raise ProtocolError(f"property {row.name} more than {repeated} times", ReasonCode.QUOTA_EXCEEDED)
        seen.add(identifier)
        value = row.kind.decode(reader)
        if not row.check(value):
            raise ProtocolError(f"property {row.name} cannot be {value!r}", row.error)
        yield row, value, start


def _collect(reader: PacketReader, packet: PacketType, repeated_max: float = math.inf) -> Properties:
    values: dict[str, Any] = {}
    several: dict[str, list[Any]] = {}
    for row, value, _ in _walk(reader, packet, repeated_max):
        if row.name in _MULTIPLE:
            several.setdefault(row.name, []).append(value)
        else:
            values[row.name] = value
    values.update((name, tuple(found)) for name, found in several.items())
    return Properties(**values) if values else NONE


def decode(reader: PacketReader, packet: PacketType) -> Properties:
    """Read the properties of a packet, with their length.

    Raises MalformedPacket for a property this packet cannot have or a broken value, ProtocolError for one that comes
    twice, has a value that is not allowed, or is repeated beyond `USER_PROPERTIES_MAX`.
    """
    return _collect(reader.part(reader.variable_byte_integer()), packet, USER_PROPERTIES_MAX)


def encode(properties: Properties, packet: PacketType) -> bytes:
    """Encode properties with their length. Raises ValueError for one that the packet cannot have."""
    raw = encode_run(properties, packet)
    return encode_variable_byte_integer(len(raw)) + raw


def encode_run(properties: Properties, packet: PacketType = PacketType.PUBLISH) -> bytes:
    """Encode properties without their length, as in `Run.properties`."""
    if properties is NONE:
        return b""
    parts: list[bytes] = []
    for row in PROPERTIES:
        value = getattr(properties, row.name)
        if value is None or value == ():
            continue
        if packet not in row.packets:
            raise ValueError(f"property {row.name} is not one of {packet.name}")
        values = value if row.name in _MULTIPLE else (value,)
        if len(values) > 1 and packet not in row.repeated:
            raise ValueError(f"property {row.name} comes once in {packet.name}")
        parts.extend(bytes((row.identifier,)) + row.kind.encode(each) for each in values)
    return b"".join(parts)


def decode_run(raw: bytes) -> Properties:
    """Decode `Run.properties` of an MQTT run."""
    return _collect(PacketReader(raw), PacketType.PUBLISH) if raw else NONE


def split_publish(reader: PacketReader) -> tuple[int, bytes, bool]:
    """Read the properties of a PUBLISH from a client: (topic alias or 0, the properties to forward unchanged, whether
    the payload format indicator is UTF-8).

    Raises as `decode` does, and ProtocolError for a subscription identifier [MQTT-3.3.4-6].
    """
    block = reader.part(reader.variable_byte_integer())
    alias, text = 0, False
    kept: list[bytes] = []
    for row, value, start in _walk(block, PacketType.PUBLISH, USER_PROPERTIES_MAX):
        if row.identifier == _SUBSCRIPTION_IDENTIFIER:
            raise ProtocolError("subscription identifier in a PUBLISH of a client")
        if row.identifier == _TOPIC_ALIAS:
            alias = value
        else:
            text = text or (row.identifier == _PAYLOAD_FORMAT and value == 1)
            kept.append(block.data[start : block.pos])
    return alias, b"".join(kept), text


def message_expiry_s(raw: bytes) -> int | None:
    """Return the Message Expiry Interval in `Run.properties`, in seconds; None if absent."""
    return decode_run(raw).message_expiry_interval_s


def with_message_expiry(raw: bytes, seconds: int) -> bytes:
    """Return `Run.properties` with the remaining Message Expiry Interval [MQTT-3.3.2-6]."""
    block = PacketReader(raw)
    parts: list[bytes] = []
    for row, _, start in _walk(block, PacketType.PUBLISH):
        if row.identifier == _MESSAGE_EXPIRY:
            parts.append(bytes((_MESSAGE_EXPIRY,)) + FOUR_BYTE_INTEGER.encode(seconds))
        else:
            parts.append(raw[start : block.pos])
    return b"".join(parts)


def subscription_identifiers(identifiers: tuple[int, ...]) -> bytes:
    """Encode Subscription Identifiers without a length (section 3.3.2.3.8)."""
    return b"".join(b"\x0b" + encode_variable_byte_integer(each) for each in identifiers)


__all__ = [
    "NONE",
    "PROPERTIES",
    "Properties",
    "Property",
    "decode",
    "decode_run",
    "encode",
    "encode_run",
    "message_expiry_s",
    "split_publish",
    "subscription_identifiers",
    "with_message_expiry",
]
