"""Control packets of MQTT 3.1, 3.1.1 and 5 as frozen structs, with encoder and decoder.

`encode` is complete in both directions, so a client (a test, a simulator) can be written with it. The server's hot
path (`inbound`, `outbound`) reads and writes PUBLISH and the two byte acknowledgements without these structs; the
property tests hold both to the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol, Self

import msgspec

from bridge.hidden import hides
from edge.broker.message import mqtt_properties as props
from edge.broker.message.mqtt_errors import MalformedPacket, ProtocolError
from edge.broker.message.mqtt_properties import NONE, Properties
from edge.broker.message.mqtt_reason_codes import ReasonCode
from edge.broker.message.mqtt_wire import PacketReader, PacketType, encode_string, frame, reason_code
from edge.broker.mqtt.events import SubscriptionRequest
from edge.broker.mqtt.handshake import Auth, ConnAck, Connect, Disconnect, WillMessage
from edge.broker.mqtt.limits import FILTERS_MAX

R = ReasonCode
DUP = 0x08


class Packet(Protocol):
    """Interface of all packets."""

    kind: ClassVar[PacketType]

    def encode(self, version: int) -> bytes:
        """Encode the packet for `version` (3, 4, 5). Raises ValueError if the version cannot express it."""
        ...

    @classmethod
    def decode(cls, reader: PacketReader, flags: int, version: int) -> Self:
        """Decode variable header and payload; `flags` are the low four bits of the first byte.

        Raises MalformedPacket or ProtocolError.
        """
        ...


def packet_identifier(reader: PacketReader) -> int:
    """Read a packet identifier, which must not be 0 [MQTT-2.2.1-3] (3.1.1: [MQTT-2.3.1-1])."""
    value = reader.integer(2)
    if not value:
        raise ProtocolError("packet identifier 0")
    return value


def _check_reserved(flags: int, expected: int, version: int, kind: PacketType) -> None:
    # MQTT 3.1 does not use these bits, and its clients set DUP when they resend a packet (section 2.1.2).
    if flags != expected and version > 3:
        raise MalformedPacket(f"reserved bits of {kind.name}")


@hides("payload", "properties")
class Publish(msgspec.Struct, frozen=True):
    """PUBLISH (section 3.3). `packet_id` is 0 at QoS 0."""

    kind: ClassVar[PacketType] = PacketType.PUBLISH
    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0
    properties: Properties = NONE

    def encode(self, version: int) -> bytes:
        """Encode the packet."""
        return frame(
            0x30 | (DUP if self.dup else 0) | self.qos << 1 | self.retain,
            encode_string(self.topic),
            self.packet_id.to_bytes(2, "big") if self.qos else b"",
            props.encode(self.properties, self.kind) if version == 5 else b"",
            self.payload,
        )

    @classmethod
    def decode(cls, reader: PacketReader, flags: int, version: int) -> Publish:
        """Decode the packet. The caller checks the topic name."""
        qos = flags >> 1 & 3
        dup = bool(flags & DUP)
        if qos == 3:
            raise MalformedPacket("QoS 3")
        if dup and not qos and version > 3:
            raise MalformedPacket("DUP at QoS 0")
        topic = reader.string()
        packet_id = packet_identifier(reader) if qos else 0
        properties = props.decode(reader, cls.kind) if version == 5 else NONE
        return cls(topic, reader.rest(), qos, bool(flags & 1), dup, packet_id, properties)


@hides("properties")
class _Acknowledgement(msgspec.Struct, frozen=True):
    """Common part of PUBACK, PUBREC, PUBREL and PUBCOMP (sections 3.4 to 3.7)."""

    kind: ClassVar[PacketType]
    low_bits: ClassVar[int] = 0
    reasons: ClassVar[frozenset[ReasonCode]]
    packet_id: int
    reason: ReasonCode = R.SUCCESS
    properties: Properties = NONE

    def encode(self, version: int) -> bytes:
        """Encode the packet in its shortest form."""
        first = self.kind << 4 | self.low_bits
        head = self.packet_id.to_bytes(2, "big")
        if version < 5 or (not self.reason and self.properties is NONE):
            return frame(first, head)
        tail = b"" if self.properties is NONE else props.encode(self.properties, self.kind)
        return frame(first, head, bytes((self.reason,)), tail)

    @classmethod
    def decode(cls, reader: PacketReader, flags: int, version: int) -> Self:
        """Decode the packet. Raises MalformedPacket or ProtocolError."""
        _check_reserved(flags, cls.low_bits, version, cls.kind)
        packet_id = packet_identifier(reader)
        reason, properties = R.SUCCESS, NONE
        if version == 5 and reader.left:
            reason = reason_code(reader.integer(1), cls.reasons)
            properties = props.decode(reader, cls.kind) if reader.left else NONE
        reader.finish()
        return cls(packet_id, reason, properties)


_TAKEN = frozenset(
    {
        R.SUCCESS, R.NO_MATCHING_SUBSCRIBERS, R.UNSPECIFIED_ERROR, R.IMPLEMENTATION_SPECIFIC_ERROR, R.NOT_AUTHORIZED,
        R.TOPIC_NAME_INVALID, R.PACKET_IDENTIFIER_IN_USE, R.QUOTA_EXCEEDED, R.PAYLOAD_FORMAT_INVALID,
    }
)  # fmt: skip
_RELEASED = frozenset({R.SUCCESS, R.PACKET_IDENTIFIER_NOT_FOUND})


class PubAck(_Acknowledgement, frozen=True):
    """PUBACK (section 3.4)."""

    kind: ClassVar[PacketType] = PacketType.PUBACK
    reasons: ClassVar[frozenset[ReasonCode]] = _TAKEN


class PubRec(_Acknowledgement, frozen=True):
    """PUBREC (section 3.5)."""

    kind: ClassVar[PacketType] = PacketType.PUBREC
    reasons: ClassVar[frozenset[ReasonCode]] = _TAKEN


class PubRel(_Acknowledgement, frozen=True):
    """PUBREL (section 3.6)."""

    kind: ClassVar[PacketType] = PacketType.PUBREL
    low_bits: ClassVar[int] = 2
    reasons: ClassVar[frozenset[ReasonCode]] = _RELEASED


class PubComp(_Acknowledgement, frozen=True):
    """PUBCOMP (section 3.7)."""

    kind: ClassVar[PacketType] = PacketType.PUBCOMP
    reasons: ClassVar[frozenset[ReasonCode]] = _RELEASED


@hides("properties")
class Subscribe(msgspec.Struct, frozen=True):
    """SUBSCRIBE (section 3.8). Subscription options other than QoS require MQTT 5."""

    kind: ClassVar[PacketType] = PacketType.SUBSCRIBE
    packet_id: int
    requests: tuple[SubscriptionRequest, ...]
    properties: Properties = NONE

    def encode(self, version: int) -> bytes:
        """Encode the packet."""
        parts = [self.packet_id.to_bytes(2, "big"), props.encode(self.properties, self.kind) if version == 5 else b""]
        for request in self.requests:
            options = request.qos
            if version == 5:
                options |= request.no_local << 2 | request.retain_as_published << 3 | request.retain_handling << 4
            parts += [encode_string(request.filter), bytes((options,))]
        return frame(0x82, *parts)

    @classmethod
    def decode(cls, reader: PacketReader, flags: int, version: int) -> Subscribe:
        """Decode the packet. The caller checks the filters."""
        _check_reserved(flags, 2, version, cls.kind)
        packet_id = packet_identifier(reader)
        properties = props.decode(reader, cls.kind) if version == 5 else NONE
        if not reader.left:
            raise ProtocolError("SUBSCRIBE without a topic filter")
        requests: list[SubscriptionRequest] = []
        while reader.left:
            requests.append(_request(reader.string(), reader.integer(1), version))
            _check_count(requests)
        return cls(packet_id, tuple(requests), properties)


def _check_count(filters: Sequence[object]) -> None:
    if len(filters) > FILTERS_MAX:
        raise ProtocolError(f"more than {FILTERS_MAX} topic filters in one packet", ReasonCode.QUOTA_EXCEEDED)


def _request(topic_filter: str, options: int, version: int) -> SubscriptionRequest:
    qos = options & 3
    if qos == 3:
        raise ProtocolError("subscription with QoS 3")
    if version == 3:  # MQTT 3.1 section 3.8: the upper six bits are unused
        return SubscriptionRequest(topic_filter, qos)
    if options & (0xFC if version == 4 else 0xC0):
        raise MalformedPacket("reserved bits of the subscription options")
    retain_handling = options >> 4 & 3
    if retain_handling == 3:
        raise ProtocolError("retain handling 3")
    return SubscriptionRequest(topic_filter, qos, bool(options & 4), bool(options & 8), retain_handling)


@hides("properties")
class SubAck(msgspec.Struct, frozen=True):
    """SUBACK (section 3.9); `codes` are reason codes, or the return codes of MQTT 3.1.1."""

    kind: ClassVar[PacketType] = PacketType.SUBACK
    packet_id: int
    codes: tuple[int, ...]
    properties: Properties = NONE

    def encode(self, version: int) -> bytes:
        """Encode the packet."""
        head = self.packet_id.to_bytes(2, "big")
        return frame(0x90, head, props.encode(self.properties, self.kind) if version == 5 else b"", bytes(self.codes))

    @classmethod
    def decode(cls, reader: PacketReader, flags: int, version: int) -> SubAck:
        """Decode the packet. Raises MalformedPacket or ProtocolError."""
        _check_reserved(flags, 0, version, cls.kind)
        packet_id = packet_identifier(reader)
        properties = props.decode(reader, cls.kind) if version == 5 else NONE
        codes = tuple(reader.rest())
        for code in codes:
            if version == 5:
                reason_code(code, _SUBACK_REASONS)
            elif code not in {0, 1, 2, 0x80}:
                raise MalformedPacket(f"reserved return code {code}")
        return cls(packet_id, codes, properties)


_SUBACK_REASONS = frozenset(
    {
        R.GRANTED_QOS_0, R.GRANTED_QOS_1, R.GRANTED_QOS_2, R.UNSPECIFIED_ERROR, R.IMPLEMENTATION_SPECIFIC_ERROR,
        R.NOT_AUTHORIZED, R.TOPIC_FILTER_INVALID, R.PACKET_IDENTIFIER_IN_USE, R.QUOTA_EXCEEDED,
        R.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED, R.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED,
        R.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED,
    }
)  # fmt: skip
_UNSUBACK_REASONS = frozenset(
    {
        R.SUCCESS, R.NO_SUBSCRIPTION_EXISTED, R.UNSPECIFIED_ERROR, R.IMPLEMENTATION_SPECIFIC_ERROR, R.NOT_AUTHORIZED,
        R.TOPIC_FILTER_INVALID, R.PACKET_IDENTIFIER_IN_USE,
    }
)  # fmt: skip


@hides("properties")
class Unsubscribe(msgspec.Struct, frozen=True):
    """UNSUBSCRIBE (section 3.10)."""

    kind: ClassVar[PacketType] = PacketType.UNSUBSCRIBE
    packet_id: int
    filters: tuple[str, ...]
    properties: Properties = NONE

    def encode(self, version: int) -> bytes:
        """Encode the packet."""
        head = self.packet_id.to_bytes(2, "big")
        block = props.encode(self.properties, self.kind) if version == 5 else b""
        return frame(0xA2, head, block, *map(encode_string, self.filters))

    @classmethod
    def decode(cls, reader: PacketReader, flags: int, version: int) -> Unsubscribe:
        """Decode the packet. The caller checks the filters."""
        _check_reserved(flags, 2, version, cls.kind)
        packet_id = packet_identifier(reader)
        properties = props.decode(reader, cls.kind) if version == 5 else NONE
        if not reader.left:
            raise ProtocolError("UNSUBSCRIBE without a topic filter")
        filters: list[str] = []
        while reader.left:
            filters.append(reader.string())
            _check_count(filters)
        return cls(packet_id, tuple(filters), properties)


@hides("properties")
class UnsubAck(msgspec.Struct, frozen=True):
    """UNSUBACK (section 3.11). `codes` require MQTT 5."""

    kind: ClassVar[PacketType] = PacketType.UNSUBACK
    packet_id: int
    codes: tuple[int, ...] = ()
    properties: Properties = NONE

    def encode(self, version: int) -> bytes:
        """Encode the packet."""
        head = self.packet_id.to_bytes(2, "big")
        if version < 5:
            return frame(0xB0, head)
        return frame(0xB0, head, props.encode(self.properties, self.kind), bytes(self.codes))

    @classmethod
    def decode(cls, reader: PacketReader, flags: int, version: int) -> UnsubAck:
        """Decode the packet. Raises MalformedPacket or ProtocolError."""
        _check_reserved(flags, 0, version, cls.kind)
        packet_id = packet_identifier(reader)
        properties = props.decode(reader, cls.kind) if version == 5 else NONE
        codes = tuple(reader.rest())
        if version < 5 and codes:
            raise MalformedPacket("UNSUBACK with a payload")
        for code in codes:
            reason_code(code, _UNSUBACK_REASONS)
        return cls(packet_id, codes, properties)


class _Ping(msgspec.Struct, frozen=True):
    """Common part of PINGREQ and PINGRESP, which have no content."""

    kind: ClassVar[PacketType]

    def encode(self, version: int) -> bytes:
        """Encode the packet."""
        return bytes((self.kind << 4, 0))

    @classmethod
    def decode(cls, reader: PacketReader, flags: int, version: int) -> Self:
        """Decode the packet. Raises MalformedPacket."""
        _check_reserved(flags, 0, version, cls.kind)
        reader.finish()
        return cls()


class PingReq(_Ping, frozen=True):
    """PINGREQ (section 3.12)."""

    kind: ClassVar[PacketType] = PacketType.PINGREQ


class PingResp(_Ping, frozen=True):
    """PINGRESP (section 3.13)."""

    kind: ClassVar[PacketType] = PacketType.PINGRESP


_CLASSES: tuple[type[Packet], ...] = (
    Connect, ConnAck, Publish, PubAck, PubRec, PubRel, PubComp, Subscribe, SubAck, Unsubscribe, UnsubAck,
    PingReq, PingResp, Disconnect, Auth,
)  # fmt: skip
_BY_KIND: dict[int, type[Packet]] = {each.kind: each for each in _CLASSES}


def decode(first: int, body: bytes, version: int) -> Packet:
    """Decode a packet from its first byte and the bytes behind the fixed header.

    Raises MalformedPacket or ProtocolError.
    """
    cls = _BY_KIND.get(first >> 4)
    if cls is None:
        raise MalformedPacket("packet type 0")
    return cls.decode(PacketReader(body), first & 15, version)


__all__ = [
    "Auth",
    "ConnAck",
    "Connect",
    "Disconnect",
    "Packet",
    "PingReq",
    "PingResp",
    "PubAck",
    "PubComp",
    "PubRec",
    "PubRel",
    "Publish",
    "SubAck",
    "Subscribe",
    "UnsubAck",
    "Unsubscribe",
    "WillMessage",
    "decode",
    "packet_identifier",
]
