"""Packets that open and end a connection: CONNECT, CONNACK, DISCONNECT, AUTH (sections 3.1, 3.2, 3.14, 3.15).

Each is a frozen struct with `encode(version)` and `decode(reader, flags, version)`. `version` is the protocol level
(3, 4 or 5). The content is checked here; whether a packet may come now is checked in `phase`.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from bridge.hidden import hides
from edge.broker.message import mqtt_properties as props
from edge.broker.message.mqtt_errors import MalformedPacket, ProtocolError, UnsupportedProtocolVersion
from edge.broker.message.mqtt_properties import NONE, Properties
from edge.broker.message.mqtt_reason_codes import ReasonCode, connack_return_code, reason_of_return_code
from edge.broker.message.mqtt_wire import PacketReader, PacketType, encode_binary, encode_string, frame, reason_code

R = ReasonCode
PROTOCOL_NAMES = {3: "MQIsdp", 4: "MQTT", 5: "MQTT"}
BRIDGE_BIT = 0x80
"""Bit 7 of the protocol level. Bridges of other brokers (Mosquitto and its followers) set it in MQTT 3.1 and 3.1.1,
which have no subscription options."""

CONNACK_REASONS = frozenset(
    {
        R.SUCCESS, R.UNSPECIFIED_ERROR, R.MALFORMED_PACKET, R.PROTOCOL_ERROR, R.IMPLEMENTATION_SPECIFIC_ERROR,
        R.UNSUPPORTED_PROTOCOL_VERSION, R.CLIENT_IDENTIFIER_NOT_VALID, R.BAD_USER_NAME_OR_PASSWORD, R.NOT_AUTHORIZED,
        R.SERVER_UNAVAILABLE, R.SERVER_BUSY, R.BANNED, R.BAD_AUTHENTICATION_METHOD, R.TOPIC_NAME_INVALID,
        R.PACKET_TOO_LARGE, R.QUOTA_EXCEEDED, R.PAYLOAD_FORMAT_INVALID, R.RETAIN_NOT_SUPPORTED, R.QOS_NOT_SUPPORTED,
        R.USE_ANOTHER_SERVER, R.SERVER_MOVED, R.CONNECTION_RATE_EXCEEDED,
    }
)  # fmt: skip
CLIENT_DISCONNECT_REASONS = frozenset(
    {
        R.NORMAL_DISCONNECTION, R.DISCONNECT_WITH_WILL_MESSAGE, R.UNSPECIFIED_ERROR, R.MALFORMED_PACKET,
        R.PROTOCOL_ERROR, R.IMPLEMENTATION_SPECIFIC_ERROR, R.TOPIC_NAME_INVALID, R.RECEIVE_MAXIMUM_EXCEEDED,
        R.TOPIC_ALIAS_INVALID, R.PACKET_TOO_LARGE, R.MESSAGE_RATE_TOO_HIGH, R.QUOTA_EXCEEDED, R.ADMINISTRATIVE_ACTION,
        R.PAYLOAD_FORMAT_INVALID,
    }
)  # fmt: skip
SERVER_DISCONNECT_REASONS = (
    CLIENT_DISCONNECT_REASONS
    | {
        R.NOT_AUTHORIZED, R.SERVER_BUSY, R.SERVER_SHUTTING_DOWN, R.KEEP_ALIVE_TIMEOUT, R.SESSION_TAKEN_OVER,
        R.TOPIC_FILTER_INVALID, R.RETAIN_NOT_SUPPORTED, R.QOS_NOT_SUPPORTED, R.USE_ANOTHER_SERVER, R.SERVER_MOVED,
        R.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED, R.CONNECTION_RATE_EXCEEDED, R.MAXIMUM_CONNECT_TIME,
        R.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED, R.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED,
    }
) - {R.DISCONNECT_WITH_WILL_MESSAGE}  # fmt: skip
AUTH_REASONS = frozenset({R.SUCCESS, R.CONTINUE_AUTHENTICATION, R.RE_AUTHENTICATE})

_CLEAN, _WILL, _WILL_RETAIN, _PASSWORD, _USER_NAME = 0x02, 0x04, 0x20, 0x40, 0x80


@hides("payload", "properties")
class WillMessage(msgspec.Struct, frozen=True):
    """The will in a CONNECT (sections 3.1.3.2 to 3.1.3.4)."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties = NONE


@hides("password", "properties")
class Connect(msgspec.Struct, frozen=True):
    """CONNECT (section 3.1)."""

    kind: ClassVar[PacketType] = PacketType.CONNECT
    client_id: str
    version: int = 4
    clean_start: bool = True
    keep_alive_s: int = 0
    username: str | None = None
    password: bytes | None = None
    will: WillMessage | None = None
    properties: Properties = NONE
    bridge: bool = False
    """The protocol level has the bridge bit (before MQTT 5 only)."""

    def encode(self, version: int = 0) -> bytes:
        """Encode the packet for its own `version`; the argument is ignored."""
        version = self.version
        parts = [
            encode_string(PROTOCOL_NAMES[version]),
            bytes((version | (BRIDGE_BIT if self.bridge else 0), self._flags())),
            self.keep_alive_s.to_bytes(2, "big"),
            props.encode(self.properties, PacketType.CONNECT) if version == 5 else b"",
            encode_string(self.client_id),
        ]
        if self.will is not None:
            parts += [
                props.encode(self.will.properties, PacketType.WILL) if version == 5 else b"",
                encode_string(self.will.topic),
                encode_binary(self.will.payload),
            ]
        if self.username is not None:
            parts.append(encode_string(self.username))
        if self.password is not None:
            parts.append(encode_binary(self.password))
        return frame(0x10, *parts)

    def _flags(self) -> int:
        flags = _CLEAN if self.clean_start else 0
        if self.will is not None:
            flags |= _WILL | self.will.qos << 3 | (_WILL_RETAIN if self.will.retain else 0)
        flags |= _USER_NAME if self.username is not None else 0
        return flags | (_PASSWORD if self.password is not None else 0)

    @classmethod
    def decode(cls, reader: PacketReader, flags: int, version: int) -> Connect:
        """Decode a CONNECT; `version` is ignored.

        Raises UnsupportedProtocolVersion, MalformedPacket or ProtocolError.
        """
        if flags:
            raise MalformedPacket("reserved bits of CONNECT")
        version, bridge = _protocol(reader)
        connect_flags = reader.integer(1)
        _check_flags(connect_flags, version)
        keep_alive_s = reader.integer(2)
        properties = props.decode(reader, PacketType.CONNECT) if version == 5 else NONE
        if properties.authentication_data is not None and properties.authentication_method is None:
            raise ProtocolError("authentication data without a method")
        client_id = reader.string()
        if not client_id and (version == 3 or (version == 4 and not connect_flags & _CLEAN)):
            raise ProtocolError("empty client identifier", R.CLIENT_IDENTIFIER_NOT_VALID)
        will = _will(reader, connect_flags, version) if connect_flags & _WILL else None
        # MQTT 3.1 section 3.1: the remaining length takes precedence over the user name and password flags.
        missing = version == 3 and not reader.left
        username = reader.string() if connect_flags & _USER_NAME and not missing else None
        missing = version == 3 and not reader.left
        password = reader.binary() if connect_flags & _PASSWORD and not missing else None
        reader.finish()
        clean_start = bool(connect_flags & _CLEAN)
        return cls(client_id, version, clean_start, keep_alive_s, username, password, will, properties, bridge)


def _protocol(reader: PacketReader) -> tuple[int, bool]:
    """Read protocol name and level (sections 3.1.2.1 and 3.1.2.2). Return the level and the bridge bit."""
    name = reader.binary()
    if name not in {b"MQTT", b"MQIsdp"}:
        raise MalformedPacket("not MQTT")
    level = reader.integer(1)
    bridge = level in (3 | BRIDGE_BIT, 4 | BRIDGE_BIT)
    version = level & ~BRIDGE_BIT if bridge else level
    if (name == b"MQIsdp") != (version == 3) or version not in PROTOCOL_NAMES:
        raise UnsupportedProtocolVersion(level)
    return version, bridge


def _check_flags(flags: int, version: int) -> None:
    """Check the connect flags (section 3.1.2.3)."""
    if flags & 1 and version > 3:
        raise MalformedPacket("reserved connect flag")
    if flags & 0x18 == 0x18:
        raise MalformedPacket("will QoS 3")
    if not flags & _WILL and flags & 0x38:
        raise MalformedPacket("will QoS or will retain without a will")
    if version < 5 and flags & _PASSWORD and not flags & _USER_NAME:
        raise MalformedPacket("password without a user name")


def _will(reader: PacketReader, flags: int, version: int) -> WillMessage:
    properties = props.decode(reader, PacketType.WILL) if version == 5 else NONE
    topic = reader.string()
    return WillMessage(topic, reader.binary(), flags >> 3 & 3, bool(flags & _WILL_RETAIN), properties)


@hides("properties")
class ConnAck(msgspec.Struct, frozen=True):
    """CONNACK (section 3.2). Before MQTT 5 the reason is sent as the equivalent return code."""

    kind: ClassVar[PacketType] = PacketType.CONNACK
    session_present: bool = False
    reason: ReasonCode = R.SUCCESS
    properties: Properties = NONE

    def encode(self, version: int) -> bytes:
        """Encode the packet. Raises ValueError if `version` has no return code for the reason."""
        if version == 5:
            head = bytes((self.session_present, self.reason))
            return frame(0x20, head, props.encode(self.properties, PacketType.CONNACK))
        code = connack_return_code(self.reason)
        if code is None:
            raise ValueError(f"no return code for {self.reason.words}")
        return frame(0x20, bytes((self.session_present and version > 3, code)))

    @classmethod
    def decode(cls, reader: PacketReader, flags: int, version: int) -> ConnAck:
        """Decode a CONNACK. Raises MalformedPacket."""
        acknowledge_flags = reader.integer(1)
        code = reader.integer(1)
        if flags or acknowledge_flags > 1:
            raise MalformedPacket("reserved bits of CONNACK")
        properties = props.decode(reader, PacketType.CONNACK) if version == 5 else NONE
        reader.finish()
        reason = reason_code(code, CONNACK_REASONS) if version == 5 else reason_of_return_code(code)
        if reason is None:
            raise MalformedPacket(f"reserved return code {code}")
        return cls(bool(acknowledge_flags), reason, properties)


@hides("properties")
class Disconnect(msgspec.Struct, frozen=True):
    """DISCONNECT (section 3.14). Before MQTT 5 it has no content and only clients send it."""

    kind: ClassVar[PacketType] = PacketType.DISCONNECT
    reason: ReasonCode = R.NORMAL_DISCONNECTION
    properties: Properties = NONE

    def encode(self, version: int) -> bytes:
        """Encode the packet in its shortest form."""
        return frame(0xE0, _reason_and_properties(self.reason, self.properties, self.kind) if version == 5 else b"")

    @classmethod
    def decode(cls, reader: PacketReader, flags: int, version: int) -> Disconnect:
        """Decode the packet. Raises MalformedPacket or ProtocolError."""
        if flags and version > 3:
            raise MalformedPacket("reserved bits of DISCONNECT")
        if version < 5:
            reader.finish()
            return cls()
        allowed = CLIENT_DISCONNECT_REASONS | SERVER_DISCONNECT_REASONS
        reason = reason_code(reader.integer(1), allowed) if reader.left else R.NORMAL_DISCONNECTION
        properties = props.decode(reader, cls.kind) if reader.left else NONE
        reader.finish()
        return cls(reason, properties)


@hides("properties")
class Auth(msgspec.Struct, frozen=True):
    """AUTH (section 3.15); MQTT 5 only."""

    kind: ClassVar[PacketType] = PacketType.AUTH
    reason: ReasonCode = R.SUCCESS
    properties: Properties = NONE

    def encode(self, version: int) -> bytes:
        """Encode the packet in its shortest form."""
        if version < 5:
            raise ValueError("there is no AUTH before MQTT 5")
        return frame(0xF0, _reason_and_properties(self.reason, self.properties, self.kind))

    @classmethod
    def decode(cls, reader: PacketReader, flags: int, version: int) -> Auth:
        """Decode the packet. Raises MalformedPacket or ProtocolError."""
        if flags or version < 5:
            raise MalformedPacket("reserved bits of AUTH" if version == 5 else "packet type 15 before MQTT 5")
        reason = reason_code(reader.integer(1), AUTH_REASONS) if reader.left else R.SUCCESS
        properties = props.decode(reader, cls.kind) if reader.left else NONE
        reader.finish()
        return cls(reason, properties)


def _reason_and_properties(reason: ReasonCode, properties: Properties, kind: PacketType) -> bytes:
    if properties is not NONE:
        return bytes((reason,)) + props.encode(properties, kind)
    return bytes((reason,)) if reason else b""
