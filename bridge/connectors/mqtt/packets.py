"""Codec for MQTT 3.1.1 control packets, on amqtt's codec.

amqtt reads packets from a stream, in coroutines. This module finds the end of a packet (section 2.2.3) and passes only
complete packets to amqtt. So the coroutines never wait, and run without an event loop.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Final, NamedTuple

from amqtt.errors import AMQTTError, CodecError, MQTTError, NoDataError
from amqtt.mqtt import packet_class
from amqtt.mqtt.connack import ConnackPacket
from amqtt.mqtt.connect import ConnectPacket, ConnectPayload, ConnectVariableHeader
from amqtt.mqtt.disconnect import DisconnectPacket
from amqtt.mqtt.packet import MQTTFixedHeader
from amqtt.mqtt.pingreq import PingReqPacket
from amqtt.mqtt.pingresp import PingRespPacket
from amqtt.mqtt.puback import PubackPacket
from amqtt.mqtt.publish import PublishPacket
from amqtt.mqtt.suback import SubackPacket
from amqtt.mqtt.subscribe import SubscribePacket

from bridge.connectors.limits import MQTT_PACKET_BYTES_MAX
from bridge.hidden import hides

PACKET_ID_MAX: Final = 0xFFFF
TOPIC_BYTES_MAX: Final = 0xFFFF
REMAINING_LENGTH_MAX: Final = 268_435_455
_LENGTH_BYTES_MAX: Final = 4
_PUBLISH: Final = 3
_FAILURES: Final = (AMQTTError, CodecError, MQTTError, NoDataError, ValueError, IndexError, TypeError, struct.error)
"""Exceptions that amqtt raises for malformed packets."""


class MalformedBrokerPacket(Exception):
    """The peer sent bytes that MQTT 3.1.1 does not allow."""


class ConnackTerms(NamedTuple):
    """Limits from the broker's CONNACK (MQTT 5). The defaults are those of MQTT 3.1.1."""

    receive_maximum: int = PACKET_ID_MAX
    """Maximum number of PUBLISH packets without a PUBACK."""
    packet_bytes_max: int = REMAINING_LENGTH_MAX
    qos_max: int = 2
    retains: bool = True
    keep_alive_s: int | None = None
    """None: that of CONNECT."""


class ConnackReceived(NamedTuple):
    """CONNACK; `terms` are None before MQTT 5."""

    session_present: bool
    code: int
    terms: ConnackTerms | None = None
    reason: str = ""
    """Reason String."""


class AckReceived(NamedTuple):
    """PUBACK; a code of 128 or above is a refusal (MQTT 5)."""

    packet_id: int
    code: int = 0


class DisconnectReceived(NamedTuple):
    """DISCONNECT of an MQTT 5 server."""

    code: int
    reason: str


class SubackReceived(NamedTuple):
    """SUBACK; a code of 128 is a refusal."""

    packet_id: int
    codes: tuple[int, ...]


class PingrespReceived(NamedTuple):
    """PINGRESP."""


@hides("payload", "properties")
class PublishReceived(NamedTuple):
    """PUBLISH. `packet_id` is None with QoS 0."""

    packet_id: int | None
    topic: str
    payload: bytes
    qos: int
    dup: bool
    """DUP flag: the packet may have been sent before."""
    retain: bool
    properties: bytes = b""
    """Encoded properties, without their length (MQTT 5)."""


class LargePublishReceived(NamedTuple):
    """PUBLISH above the size limit, with its payload skipped. `packet_id` is None with QoS 0."""

    packet_id: int | None
    topic: str
    packet_bytes: int


Packet = (
    ConnackReceived
    | AckReceived
    | SubackReceived
    | PingrespReceived
    | PublishReceived
    | LargePublishReceived
    | DisconnectReceived
)


def connect(
    client_id: str,
    *,
    clean_session: bool,
    keep_alive_s: int,
    username: str | None = None,
    password: str | None = None,
    bridge: bool = False,
) -> bytes:
    """Encode CONNECT. `bridge`: set the bridge bit of the protocol level, as Mosquitto does."""
    header = ConnectVariableHeader(keep_alive=keep_alive_s, proto_level=0x84 if bridge else 0x04)
    header.clean_session_flag = clean_session
    header.username_flag = username is not None
    header.password_flag = password is not None
    payload = ConnectPayload(client_id=client_id, username=username, password=password)
    return bytes(ConnectPacket(variable_header=header, payload=payload).to_bytes())


def publish(topic: str, payload: bytes, packet_id: int, *, dup: bool, retain: bool) -> bytes:
    """Encode PUBLISH with QoS 1. Raises `ValueError` when the message does not fit into a packet."""
    size = len(topic.encode())
    if not 0 < size <= TOPIC_BYTES_MAX or "\0" in topic:
        raise ValueError("the address is not an MQTT topic name")
    if size + len(payload) + 4 > REMAINING_LENGTH_MAX:
        raise ValueError(f"{len(payload)} bytes do not fit into a packet")
    try:
        return bytes(PublishPacket.build(topic, payload, packet_id, dup, 1, retain).to_bytes())
    except _FAILURES as error:
        raise ValueError(str(error)) from None


def puback(packet_id: int) -> bytes:
    """Encode PUBACK."""
    return bytes(PubackPacket.build(packet_id).to_bytes())


def subscribe(packet_id: int, filters: Sequence[tuple[str, int]]) -> bytes:
    """Encode SUBSCRIBE to (filter, highest QoS)."""
    return bytes(SubscribePacket.build(list(filters), packet_id).to_bytes())


def pingreq() -> bytes:
    """Encode PINGREQ."""
    return bytes(PingReqPacket().to_bytes())


def disconnect() -> bytes:
    """Encode DISCONNECT."""
    return bytes(DisconnectPacket().to_bytes())


class Packets:
    """Splits the bytes of one connection into packets."""

    def __init__(
        self, packet_bytes_max: int = MQTT_PACKET_BYTES_MAX, read: Callable[[bytes], Packet] | None = None
    ) -> None:
        """`read` decodes a complete packet; None: the decoder for MQTT 3.1.1."""
        self._max = packet_bytes_max
        self._read = read or decode
        self._buffer = bytearray()
        self._large: LargePublishReceived | None = None
        """Packet that is being skipped."""
        self._left = 0
        """Bytes of that packet that are still to be skipped."""

    def feed(self, data: bytes) -> Iterator[Packet]:
        """Yield the packets that these bytes complete. Raises `MalformedBrokerPacket`; then close the connection.

        The payload of a PUBLISH above the limit is skipped.
        """
        if self._large is not None:
            passed = min(self._left, len(data))
            self._left -= passed
            data = data[passed:]
        self._buffer += data
        start = 0
        try:
            while True:
                if self._large is not None:
                    if self._left:
                        return
                    large, self._large = self._large, None
                    yield large
                span = self._span(start)
                if span is None:
                    return
                body, end = span
                if end - start > self._max:
                    self._large = self._head(start, body, end)
                    if self._large is None:
                        return
                    self._left = max(0, end - len(self._buffer))
                elif end > len(self._buffer):
                    return
                else:
                    yield self._read(bytes(self._buffer[start:end]))
                start = min(end, len(self._buffer))
        finally:
            del self._buffer[:start]

    def _span(self, start: int) -> tuple[int, int] | None:
        """Return start and end of the body of the packet at `start`; None while its length is incomplete."""
        length = 0
        for i in range(_LENGTH_BYTES_MAX):
            at = start + 1 + i
            if at >= len(self._buffer):
                return None
            length |= (self._buffer[at] & 0x7F) << (7 * i)
            if not self._buffer[at] & 0x80:
                return at + 1, at + 1 + length
        raise MalformedBrokerPacket("a remaining length of more than four bytes")

    def _head(self, start: int, body: int, end: int) -> LargePublishReceived | None:
        """Return the head of a PUBLISH above the limit; None while the bytes before the payload are incomplete."""
        first, size = self._buffer[start], end - start
        if first >> 4 != _PUBLISH:
            raise MalformedBrokerPacket(f"a packet of type {first >> 4} with {size} bytes, more than {self._max}")
        qos = first >> 1 & 3
        at = body + 2 + int.from_bytes(self._buffer[body : body + 2])
        head_end = at + 2 if qos else at
        if len(self._buffer) < max(head_end, body + 2):
            return None
        packet_id = int.from_bytes(self._buffer[at:head_end]) if qos else None
        topic = bytes(self._buffer[body + 2 : at])
        if qos > 1 or packet_id == 0 or not topic or head_end > end:
            raise MalformedBrokerPacket(f"a PUBLISH of {size} bytes with an invalid header")
        try:
            return LargePublishReceived(packet_id, topic.decode(), size)
        except UnicodeDecodeError:
            raise MalformedBrokerPacket("a topic name that is not UTF-8") from None


class _Bytes:
    """Stream reader for amqtt over the bytes of one packet."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._offset = 0

    async def read(self, n: int = -1) -> bytes:
        start = self._offset
        self._offset = len(self._data) if n < 0 else min(start + n, len(self._data))
        return self._data[start : self._offset]


def _completed(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    coroutine.close()
    raise MalformedBrokerPacket("an incomplete packet")


def decode(frame: bytes) -> Packet:
    """Decode one packet from a server. Raises MalformedBrokerPacket."""
    reader = _Bytes(frame)
    try:
        header = _completed(MQTTFixedHeader.from_stream(reader))
        packet = _completed(packet_class(header).from_stream(reader, fixed_header=header))
    except _FAILURES as error:
        raise MalformedBrokerPacket(str(error) or "a packet that cannot be decoded") from None
    match packet:
        case PubackPacket():
            return AckReceived(packet.variable_header.packet_id)
        case PublishPacket():
            return _publication(packet)
        case ConnackPacket():
            return ConnackReceived(bool(packet.variable_header.session_parent), packet.variable_header.return_code)
        case SubackPacket():
            return SubackReceived(packet.variable_header.packet_id, tuple(packet.payload.return_codes))
        case PingRespPacket():
            return PingrespReceived()
    raise MalformedBrokerPacket(f"a {type(packet).__name__}, which no server sends")


def _publication(packet: Any) -> PublishReceived:
    topic, qos = packet.topic_name, packet.qos
    if qos > 1:
        raise MalformedBrokerPacket(f"a PUBLISH with QoS {qos}, more than the QoS 1 of the subscription")
    if qos == 1 and not packet.packet_id:
        raise MalformedBrokerPacket("a PUBLISH with packet identifier 0")
    size = packet.fixed_header.remaining_length - len(packet.data) - (2 if qos else 0) - 2
    if not topic or len(topic.encode()) != size:  # amqtt replaces invalid UTF-8
        raise MalformedBrokerPacket("a topic name that is empty or not UTF-8")
    return PublishReceived(packet.packet_id, topic, packet.data, qos, packet.dup_flag, packet.retain_flag)
