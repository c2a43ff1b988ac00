"""CONNECT: decode it to an event, and encode the answers to it, for each version."""

from __future__ import annotations

from typing import Final

import msgspec

from bridge.message import DURABLE, RETAIN, Run
from edge.broker.limits import TOPIC_LEVELS_MAX, Limits
from edge.broker.message.mqtt_errors import MalformedPacket, ProtocolError, RemoteError, UnsupportedProtocolVersion
from edge.broker.message.mqtt_properties import NONE, Properties, encode_run
from edge.broker.message.mqtt_reason_codes import ReasonCode, connack_return_code
from edge.broker.message.mqtt_wire import PacketReader, PacketType, is_text, read_fixed_header
from edge.broker.mqtt import events
from edge.broker.mqtt.handshake import (
    CLIENT_DISCONNECT_REASONS,
    CONNACK_REASONS,
    SERVER_DISCONNECT_REASONS,
    ConnAck,
    Connect,
    Disconnect,
    WillMessage,
)
from edge.broker.mqtt.limits import REASON_STRING_CHARACTERS_MAX, TOPIC_ALIAS_MAXIMUM
from edge.broker.mqtt.names import check_topic_name

NEVER_EXPIRES: Final = 0xFFFF_FFFF
"""Session expiry interval without an end (section 3.1.2.11.2)."""
RECEIVE_MAXIMUM_DEFAULT: Final = 65_535
_REASON_STRING_HEAD_BYTES: Final = 1 + 3 + 3 + 3
"""Most bytes of: first byte, remaining length, length of the properties, identifier and length of the Reason String. A
packet that would just fit with shorter lengths is sent without its Reason String."""
KEEP_ALIVE_S_MAX: Final = 65_535
"""The largest two byte integer."""
PACKET_BYTES_UNLIMITED: Final = 268_435_460
"""Size of the largest possible packet: five bytes of fixed header and 268 435 455 behind it."""


def decode_connect(body: bytes, flags: int) -> events.ConnectEvent:
    """Decode variable header and payload of a CONNECT.

    Raises MalformedPacket or ProtocolError.
    """
    packet = Connect.decode(PacketReader(body), flags, 0)
    block = packet.properties
    expiry_s = block.session_expiry_interval_s or 0
    if packet.version < 5:
        expiry_s = 0 if packet.clean_start else NEVER_EXPIRES
    return events.ConnectEvent(
        version=packet.version,
        client_id=packet.client_id,
        clean_start=packet.clean_start,
        keep_alive_s=packet.keep_alive_s,
        session_expiry_s=expiry_s,
        username=packet.username,
        password=packet.password,
        will=_will(packet.will, packet.client_id) if packet.will is not None else None,
        receive_maximum=block.receive_maximum or RECEIVE_MAXIMUM_DEFAULT,
        maximum_packet_size=block.maximum_packet_size or PACKET_BYTES_UNLIMITED,
        topic_alias_maximum=block.topic_alias_maximum or 0,
        request_response_information=block.request_response_information == 1,
        request_problem_information=block.request_problem_information != 0,
        authentication_method=block.authentication_method,
        authentication_data=block.authentication_data or b"",
        bridge=packet.bridge,
    )


class ConnectTerms(msgspec.Struct, frozen=True):
    """Granted session expiry and keep alive. `announced_*` is None if it equals what the client requested."""

    session_expiry_s: int
    announced_session_expiry_s: int | None
    announced_keep_alive_s: int | None


def negotiate(connect: events.ConnectEvent, limits: Limits, *, keeps_session: bool = True) -> ConnectTerms:
    """Apply our limits to session expiry and keep alive.

    MQTT 5 clients receive the limits and have to follow [MQTT-3.1.2-21]. For older clients only the session expiry can
    be limited. Without `keeps_session` the session ends with the connection.
    """
    expiry_s = min(connect.session_expiry_s, limits.session_expiry_s_max) if keeps_session else 0
    if connect.version < 5:
        return ConnectTerms(expiry_s, None, None)
    keep_alive_s = min(connect.keep_alive_s or KEEP_ALIVE_S_MAX, limits.keep_alive_s_max, KEEP_ALIVE_S_MAX)
    return ConnectTerms(
        expiry_s,
        expiry_s if expiry_s != connect.session_expiry_s else None,
        keep_alive_s if keep_alive_s != connect.keep_alive_s else None,
    )


def connack(connect: events.ConnectEvent, limits: Limits, session_present: bool, announced: Properties) -> ConnAck:
    """Return the CONNACK of success. For MQTT 5 it has the `announced` properties and our limits.

    Properties with their default value are left out (section 3.2.2.3), as some clients accept small packets only.
    """
    if connect.version < 5:
        return ConnAck(session_present)
    supported: dict[str, object] = {
        "receive_maximum": limits.receive_maximum,
        "maximum_packet_size": limits.packet_bytes_max,
        "topic_alias_maximum": TOPIC_ALIAS_MAXIMUM,
        "authentication_method": connect.authentication_method,  # [MQTT-4.12.0-5] [MQTT-4.12.0-6]
    }
    return ConnAck(session_present, properties=msgspec.structs.replace(announced, **supported))


def _will(will: WillMessage, client_id: str) -> events.Will:
    check_topic_name(will.topic, TOPIC_LEVELS_MAX)
    block = will.properties
    forwarded = Properties(
        payload_format_indicator=block.payload_format_indicator,
        message_expiry_interval_s=block.message_expiry_interval_s,
        content_type=block.content_type,
        response_topic=block.response_topic,
        correlation_data=block.correlation_data,
        user_property=block.user_property,
    )
    if block.payload_format_indicator == 1 and not is_text(will.payload):
        raise ProtocolError("the will is marked as UTF-8 and is not", ReasonCode.PAYLOAD_FORMAT_INVALID)
    flags = will.qos | (RETAIN if will.retain else 0) | (DURABLE if will.qos else 0)
    run = Run(will.topic, client_id, flags, encode_run(forwarded), [will.payload])
    return events.Will(run, block.will_delay_interval_s or 0)


def encode_refusal(
    reason: ReasonCode, version: int, text: str = "", packet_bytes_max: int = PACKET_BYTES_UNLIMITED
) -> bytes:
    """Encode a CONNACK with an error, without `text` if the packet would be too large for the client.

    Return nothing if even that is too large, or if MQTT 3.1 and 3.1.1 have no return code for it [MQTT-3.2.2-6].
    """
    if version < 5:
        return b"" if connack_return_code(reason) is None else ConnAck(reason=reason).encode(version)
    sent = reason if reason in CONNACK_REASONS else ReasonCode.UNSPECIFIED_ERROR
    for words in (text, ""):
        answer = ConnAck(reason=sent, properties=Properties(reason_string=words or None)).encode(5)
        if len(answer) <= packet_bytes_max:
            return answer
    return b""


def reason_string(connect: events.ConnectEvent, text: str, content_bytes: int) -> Properties:
    """Return properties with `text` as Reason String, for a packet with `content_bytes` of other content.

    They are empty if the client does not request problem information [MQTT-3.1.2-29] or the packet would be too large
    for it [MQTT-3.4.2-2] [MQTT-3.5.2-2] [MQTT-3.9.2-1] [MQTT-3.14.2-3].
    """
    if not text or connect.version < 5 or not connect.request_problem_information:
        return NONE
    text = text[:REASON_STRING_CHARACTERS_MAX]
    if len(text.encode()) + content_bytes + _REASON_STRING_HEAD_BYTES > connect.maximum_packet_size:
        return NONE
    return Properties(reason_string=text)


def encode_disconnect(reason: ReasonCode, text: str, connect: events.ConnectEvent) -> bytes:
    """Encode a DISCONNECT for an MQTT 5 client; return nothing if it is too large for the client."""
    sent = reason if reason in SERVER_DISCONNECT_REASONS else ReasonCode.UNSPECIFIED_ERROR
    encoded = Disconnect(sent, reason_string(connect, text, 1)).encode(5)
    return encoded if len(encoded) <= connect.maximum_packet_size else b""


def encode_violation(error: RemoteError, data: bytes) -> bytes:
    """Encode the answer to first bytes that are not an acceptable CONNECT; often nothing."""
    if isinstance(error, UnsupportedProtocolVersion):
        # A level with bit 7 set is a bridge's: those of MQTT 3.1.1 and older read return code 1.
        return encode_refusal(error.reason, 5 if 5 < error.level < 0x80 else 4)
    if not data or data[0] != PacketType.CONNECT << 4:
        return b""
    try:
        header = read_fixed_header(data, 0)
    except MalformedPacket:
        return b""
    if header is not None and data.startswith(b"\x00\x04MQTT\x05", header[0]):
        return encode_refusal(error.reason, 5, str(error))
    return encode_refusal(error.reason, 4)


def expiry_of_disconnect(packet: Disconnect, connect: events.ConnectEvent) -> int | None:
    """Return the session expiry interval of a client's DISCONNECT in seconds; None if absent. Raises ProtocolError."""
    if packet.reason not in CLIENT_DISCONNECT_REASONS:
        raise ProtocolError(f"DISCONNECT of a client with reason {packet.reason.words}")
    expiry_s = packet.properties.session_expiry_interval_s
    if expiry_s and not connect.session_expiry_s:
        raise ProtocolError("session expiry interval in DISCONNECT after 0 in CONNECT")
    return expiry_s
