"""MQTT 3.1.1 control packets, to bytes and back, by amqtt's codec.

amqtt reads packets from a stream, in coroutines. Here a packet is complete before amqtt sees it, so its coroutines
never wait and are run to their end at once; no event loop is needed. Where a packet ends is found here (section 2.2.3).
"""

from __future__ import annotations

import struct
from collections.abc import Coroutine, Iterator, Sequence
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
_FAILURES: Final = (AMQTTError, CodecError, MQTTError, NoDataError, ValueError, IndexError, TypeError, struct.error)
"""What amqtt raises for bytes that are no packet."""


class MalformedPacket(Exception):
    """The peer does not speak MQTT 3.1.1."""


class ConnectionAnswer(NamedTuple):
    """CONNACK."""

    session_present: bool
    code: int


class Acknowledgement(NamedTuple):
    """PUBACK."""

    packet_id: int


class SubscriptionAnswer(NamedTuple):
    """SUBACK; a code of 128 is a refusal."""

    packet_id: int
    codes: tuple[int, ...]


class PingAnswer(NamedTuple):
    """PINGRESP."""


@hides("payload")
class Publication(NamedTuple):
    """PUBLISH. `packet_id` is None with QoS 0."""

    packet_id: int | None
    topic: str
    payload: bytes
    qos: int
    again: bool
    """DUP: it may have come before."""
    retain: bool


Packet = ConnectionAnswer | Acknowledgement | SubscriptionAnswer | PingAnswer | Publication


def connect(
    client_id: str, *, clean_session: bool, keep_alive_s: int, username: str | None = None, password: str | None = None
) -> bytes:
    """CONNECT."""
    header = ConnectVariableHeader(keep_alive=keep_alive_s)
    header.clean_session_flag = clean_session
    header.username_flag = username is not None
    header.password_flag = password is not None
    payload = ConnectPayload(client_id=client_id, username=username, password=password)
    return bytes(ConnectPacket(variable_header=header, payload=payload).to_bytes())


def publish(topic: str, payload: bytes, packet_id: int, *, again: bool, retain: bool) -> bytes:
    """PUBLISH with QoS 1. Raises `ValueError` when no packet can say it."""
    size = len(topic.encode())
    if not 0 < size <= TOPIC_BYTES_MAX or "\0" in topic:
        raise ValueError("the address is no MQTT topic name")
    if size + len(payload) + 4 > REMAINING_LENGTH_MAX:
        raise ValueError(f"{len(payload)} bytes are more than a packet holds")
    try:
        return bytes(PublishPacket.build(topic, payload, packet_id, again, 1, retain).to_bytes())
    except _FAILURES as error:
        raise ValueError(str(error)) from None


def puback(packet_id: int) -> bytes:
    """PUBACK."""
    return bytes(PubackPacket.build(packet_id).to_bytes())


def subscribe(packet_id: int, filters: Sequence[tuple[str, int]]) -> bytes:
    """SUBSCRIBE to (filter, highest QoS)."""
    return bytes(SubscribePacket.build(list(filters), packet_id).to_bytes())


def pingreq() -> bytes:
    """PINGREQ."""
    return bytes(PingReqPacket().to_bytes())


def disconnect() -> bytes:
    """DISCONNECT."""
    return bytes(DisconnectPacket().to_bytes())


class Packets:
    """The packets in the bytes of one connection."""

    def __init__(self, packet_bytes_max: int = MQTT_PACKET_BYTES_MAX) -> None:
        self._max = packet_bytes_max
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Packet]:
        """The packets these bytes complete. Raises `MalformedPacket`; the connection is of no use then."""
        self._buffer += data
        start = 0
        try:
            while (end := self._end(start)) is not None:
                yield _decode(bytes(self._buffer[start:end]))
                start = end
        finally:
            del self._buffer[:start]

    def _end(self, start: int) -> int | None:
        """Where the packet that begins at `start` ends; None while bytes are missing."""
        length = 0
        for i in range(_LENGTH_BYTES_MAX):
            at = start + 1 + i
            if at >= len(self._buffer):
                return None
            length |= (self._buffer[at] & 0x7F) << (7 * i)
            if not self._buffer[at] & 0x80:
                end = at + 1 + length
                if end - start > self._max:
                    raise MalformedPacket(f"a packet of {end - start} bytes; at most {self._max} are taken")
                return end if end <= len(self._buffer) else None
        raise MalformedPacket("a remaining length of five bytes")


class _Bytes:
    """amqtt's reader, of bytes that are there."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._offset = 0

    async def read(self, n: int = -1) -> bytes:
        start = self._offset
        self._offset = len(self._data) if n < 0 else min(start + n, len(self._data))
        return self._data[start : self._offset]


def _completed(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that has nothing to wait for."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    coroutine.close()
    raise MalformedPacket("a packet that is not complete")


def _decode(frame: bytes) -> Packet:
    reader = _Bytes(frame)
    try:
        header = _completed(MQTTFixedHeader.from_stream(reader))
        packet = _completed(packet_class(header).from_stream(reader, fixed_header=header))
    except _FAILURES as error:
        raise MalformedPacket(str(error) or "a packet that cannot be read") from None
    match packet:
        case PubackPacket():
            return Acknowledgement(packet.variable_header.packet_id)
        case PublishPacket():
            return _publication(packet)
        case ConnackPacket():
            return ConnectionAnswer(bool(packet.variable_header.session_parent), packet.variable_header.return_code)
        case SubackPacket():
            return SubscriptionAnswer(packet.variable_header.packet_id, tuple(packet.payload.return_codes))
        case PingRespPacket():
            return PingAnswer()
    raise MalformedPacket(f"a {type(packet).__name__}, which no server sends")


def _publication(packet: Any) -> Publication:
    topic, qos = packet.topic_name, packet.qos
    if qos > 1:
        raise MalformedPacket(f"a PUBLISH with QoS {qos}, and 1 was asked for")
    if qos == 1 and not packet.packet_id:
        raise MalformedPacket("a PUBLISH with packet identifier 0")
    size = packet.fixed_header.remaining_length - len(packet.data) - (2 if qos else 0) - 2
    if not topic or len(topic.encode()) != size:  # amqtt makes another text of what is no UTF-8
        raise MalformedPacket("a topic name that is empty or no UTF-8")
    return Publication(packet.packet_id, topic, packet.data, qos, packet.dup_flag, packet.retain_flag)
