"""MQTT packets in words, without credentials, and without payloads unless a trace requests them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from edge.broker.message.mqtt_errors import RemoteError
from edge.broker.message.mqtt_properties import Properties
from edge.broker.message.mqtt_properties import decode as decode_properties
from edge.broker.message.mqtt_reason_codes import ReasonCode, connack_return_code
from edge.broker.message.mqtt_wire import PacketReader, PacketType, read_fixed_header
from edge.broker.mqtt import packets
from edge.broker.mqtt.events import DisconnectedEvent
from edge.broker.mqtt.handshake import PROTOCOL_NAMES
from edge.broker.tracing.dissector import DissectedPacket, IncompleteBytes, RecentAddresses, Wanted, payload_text
from edge.broker.tracing.events import IN, OUT
from edge.broker.tracing.limits import TRACE_FILTERS_SHOWN_MAX, TRACE_HEAD_BYTES_MAX
from edge.output.amounts import counted

T = PacketType
_VERSIONS: Final = {3: "MQTT 3.1", 4: "MQTT 3.1.1", 5: "MQTT 5"}
_RETURN_CODES: Final = (
    "accepted",
    "unacceptable protocol version",
    "identifier rejected",
    "server unavailable",
    "bad user name or password",
    "not authorized",
)
"""Names of CONNACK return codes (MQTT 3.1.1 section 3.2.2.3)."""
_UNAVAILABLE: Final = 3
_ACKNOWLEDGEMENTS: Final = (T.PUBACK, T.PUBREC, T.PUBREL, T.PUBCOMP)
_PROPERTIES: Final = {
    "session_expiry_interval_s": "session expiry {} s",
    "receive_maximum": "receive maximum {}",
    "maximum_packet_size": "maximum packet size {} B",
    "topic_alias_maximum": "topic alias maximum {}",
    "topic_alias": "topic alias {}",
    "message_expiry_interval_s": "expires in {} s",
    "response_topic": "response topic {}",
    "content_type": "content type {}",
    "assigned_client_identifier": "assigned client {}",
    "server_keep_alive_s": "server keep alive {} s",
    "authentication_method": "method {}",
    "maximum_qos": "maximum QoS {}",
    "will_delay_interval_s": "will delay {} s",
    "reason_string": '"{}"',
}
"""Properties that are shown with their values."""
_ELIDED: Final = {
    "correlation_data": "correlation data",
    "authentication_data": "authentication data",
    "user_property": "user properties",
}
"""Properties that are only named, as their values may be a customer's data."""


class MqttDissector:
    """`edge.broker.tracing.dissector.Dissector` of MQTT 3.1, 3.1.1 and 5."""

    def __init__(self, version: int = 0, client: str = "", user: str = "", pending: bytes = b"") -> None:
        """`version`: protocol level of an open connection, 0 for a new one. `pending`: bytes of an incomplete packet in
        its machine."""
        self.client = client
        self.user = user
        self.known = bool(version)
        self.shows_payload = False
        self._version = version or 4
        self.protocol = _VERSIONS.get(version, "MQTT")
        self._streams = {IN: IncompleteBytes(pending), OUT: IncompleteBytes()}
        self._published: dict[str, RecentAddresses[int]] = {IN: RecentAddresses(), OUT: RecentAddresses()}
        """Topic names by packet identifier, of PUBLISH packets in each direction."""
        self._asked: RecentAddresses[int] = RecentAddresses()
        """Filters of SUBSCRIBE and UNSUBSCRIBE."""
        self._aliases: dict[str, RecentAddresses[int]] = {IN: RecentAddresses(), OUT: RecentAddresses()}

    def read(self, direction: str, data: bytes, wanted: Wanted) -> Iterator[DissectedPacket | None]:
        stream = self._streams[direction]
        data = stream.take(data)
        pos, end = 0, len(data)
        while pos < end and not stream.lost:
            try:
                header = read_fixed_header(data, pos)
            except RemoteError as error:
                stream.lost = True
                yield DissectedPacket(name="(not MQTT)", text=str(error), always=True)
                return
            if header is None:
                break
            body, length, _ = header
            stop = body + length
            if min(stop, body + TRACE_HEAD_BYTES_MAX) > end:
                break
            kind = data[pos] >> 4
            skipped = kind == T.PUBLISH or kind in _ACKNOWLEDGEMENTS
            if skipped and not wanted():
                yield None
            else:
                yield self._packet(direction, data, pos, body, stop)
            pos = stop
        stream.keep(data, pos)

    def why_ended(self, event: Any) -> str:
        return event.reason if isinstance(event, DisconnectedEvent) else ""

    def address_of(self, packet_id: int) -> str:
        """Return the topic name of an unanswered message of the client."""
        return self._published[IN].get(packet_id)

    def _packet(self, direction: str, data: bytes, pos: int, body: int, stop: int) -> DissectedPacket:
        first, size = data[pos], stop - pos
        try:
            if first >> 4 == T.PUBLISH:
                found = self._publish(direction, first, data, body, stop)
            elif stop > len(data):
                found = DissectedPacket(name=_name(first), text="too large for the trace", always=True)
            else:
                found = self._other(direction, packets.decode(first, data[body:stop], self._version))
        except RemoteError as error:
            found = DissectedPacket(name=_name(first), text=f"cannot be read: {error}", always=True)
        found.bytes = size
        return found

    def _publish(self, direction: str, first: int, data: bytes, body: int, stop: int) -> DissectedPacket:
        reader = PacketReader(data, body, min(stop, len(data)))
        qos = first >> 1 & 3
        topic = reader.string()
        packet_id = reader.integer(2) if qos else None
        properties = decode_properties(reader, T.PUBLISH) if self._version == 5 else None
        if properties is not None and properties.topic_alias is not None:
            aliases = self._aliases[direction]
            if topic:
                aliases.put(properties.topic_alias, topic)
            topic = topic or aliases.get(properties.topic_alias)
        if packet_id is not None:
            self._published[direction].put(packet_id, topic)
        flags = [f"q{qos}"]
        if first & 1:
            flags.append("retain")
        if first & 8:
            flags.append("dup")
        return DissectedPacket(
            name="PUBLISH",
            id=packet_id,
            address=topic,
            addresses=(topic,),
            flags=tuple(flags),
            payload_bytes=stop - reader.pos,
            payload=payload_text(data[reader.pos : min(stop, len(data))]) if self.shows_payload else "",
            text=_describe(properties),
        )

    def _other(self, direction: str, packet: Any) -> DissectedPacket:
        kind: PacketType = packet.kind
        match packet:
            case packets.Connect():
                found = self._connect(packet)
            case packets.ConnAck():
                found = self._connack(packet)
            case packets.PubAck() | packets.PubRec() | packets.PubRel() | packets.PubComp():
                found = self._acknowledgement(direction, packet)
            case packets.Subscribe():
                filters = [f"{each.filter} q{each.qos}{_options(each)}" for each in packet.requests]
                found = self._asking(packet, [each.filter for each in packet.requests], filters)
            case packets.Unsubscribe():
                found = self._asking(packet, list(packet.filters), list(packet.filters))
            case packets.SubAck() | packets.UnsubAck():
                found = self._answered(packet)
            case packets.Disconnect() | packets.Auth():
                goodbye = kind is T.DISCONNECT
                found = self._with_reason(DissectedPacket(name=kind.name, always=True, goodbye=goodbye), packet)
            case _:
                found = DissectedPacket(name=kind.name)
        return found

    def _connect(self, packet: packets.Connect) -> DissectedPacket:
        self._version, self.client, self.user = packet.version, packet.client_id, packet.username or ""
        self.known = True
        self.protocol = _VERSIONS[packet.version]
        parts = [
            self.protocol + (" bridge" if packet.bridge else ""),
            "clean start" if packet.clean_start and packet.version == 5 else "clean session",
            f"keep alive {packet.keep_alive_s} s",
        ]
        if not packet.clean_start:
            parts[1] = "resumes its session"
        if packet.username is not None:
            parts.append(f"user {packet.username}")
        parts.append("with a password" if packet.password is not None else "no password")
        will = packet.will
        if will is not None:
            retain = " retain" if will.retain else ""
            parts.append(f"will to {will.topic} q{will.qos}{retain} {len(will.payload)} B")
        if extra := _describe(packet.properties):
            parts.append(extra)
        return DissectedPacket(name=f"CONNECT {PROTOCOL_NAMES[packet.version]}", text=", ".join(parts), always=True)

    def _connack(self, packet: packets.ConnAck) -> DissectedPacket:
        assigned = packet.properties.assigned_client_identifier
        if assigned:
            self.client = assigned
        code, reason = int(packet.reason), named(packet.reason)
        if self._version < 5:
            code = connack_return_code(packet.reason) or 0
            reason = _RETURN_CODES[code]
        parts = ["session present"] if packet.session_present else []
        if extra := _describe(packet.properties):
            parts.append(extra)
        return DissectedPacket(
            name="CONNACK",
            code=code,
            reason=reason,
            text=", ".join(parts),
            always=True,
            refuses_login=packet.reason is ReasonCode.BAD_USER_NAME_OR_PASSWORD,
            too_busy=packet.reason is ReasonCode.SERVER_BUSY or (self._version < 5 and code == _UNAVAILABLE),
        )

    def _acknowledgement(self, direction: str, packet: Any) -> DissectedPacket:
        kind: PacketType = packet.kind
        published = self._published[OUT if (direction == IN) != (kind is T.PUBREL) else IN]
        over = kind in (T.PUBACK, T.PUBCOMP) or (kind is T.PUBREC and packet.reason.failed)
        topic = (published.pop if over else published.get)(packet.packet_id)
        found = DissectedPacket(name=kind.name, id=packet.packet_id, address=topic, addresses=(topic,) if topic else ())
        return self._with_reason(found, packet)

    def _asking(self, packet: Any, filters: list[str], shown: list[str]) -> DissectedPacket:
        left = len(shown) - TRACE_FILTERS_SHOWN_MAX
        address = ", ".join(shown[:TRACE_FILTERS_SHOWN_MAX]) + (f" and {left} more" if left > 0 else "")
        self._asked.put(packet.packet_id, address)
        kind: PacketType = packet.kind
        return DissectedPacket(
            name=kind.name,
            id=packet.packet_id,
            address=address,
            addresses=tuple(filters),
            text=_describe(packet.properties),
        )

    def _answered(self, packet: Any) -> DissectedPacket:
        kind: PacketType = packet.kind
        codes = packet.codes[:TRACE_FILTERS_SHOWN_MAX]
        left = len(packet.codes) - len(codes)
        parts = [_granted(code) if kind is T.SUBACK else f"0x{code:02X} {named(ReasonCode(code))}" for code in codes]
        if left > 0:
            parts.append(f"{left} more")
        if extra := _describe(packet.properties):
            parts.append(extra)
        failed = next((code for code in packet.codes if code >= 0x80), None)
        asked = self._asked.pop(packet.packet_id)
        found = DissectedPacket(name=kind.name, id=packet.packet_id, address=asked, text=", ".join(parts), always=True)
        if failed is not None:
            found.code, found.reason = failed, "failure" if self._version < 5 else named(ReasonCode(failed))
        return found

    def _with_reason(self, found: DissectedPacket, packet: Any) -> DissectedPacket:
        if self._version == 5:
            found.code, found.reason = int(packet.reason), _named_for(packet)
            found.text = _describe(packet.properties)
        return found


def named(reason: ReasonCode) -> str:
    """Return the name of a reason code as in the standard: ``Not authorized``."""
    return reason.words.capitalize().replace(" qos", " QoS").replace("Qos", "QoS")


def _named_for(packet: Any) -> str:
    if packet.kind is T.DISCONNECT and not packet.reason:
        return "Normal disconnection"
    return named(packet.reason)


def _granted(code: int) -> str:
    if code < 3:
        return f"granted q{code}"
    return f"0x{code:02X} {named(ReasonCode(code))}"


def _options(request: Any) -> str:
    options = " no-local" if request.no_local else ""
    options += " retain-as-published" if request.retain_as_published else ""
    return options + (f" retain-handling={request.retain_handling}" if request.retain_handling else "")


def _describe(properties: Properties | None) -> str:
    """Return properties in words, without a customer's data."""
    if properties is None:
        return ""
    parts = []
    for name, words in _PROPERTIES.items():
        value = getattr(properties, name)
        if value is not None:
            parts.append(words.format(value))
    if properties.subscription_identifier:
        parts.append("subscription " + ",".join(map(str, properties.subscription_identifier)))
    for name, words in _ELIDED.items():
        value = getattr(properties, name)
        if value:
            count = len(value) if name == "user_property" else 0
            parts.append(counted(count, "user property", "user properties") if count else words)
    return ", ".join(parts)


def _name(first: int) -> str:
    return PacketType(first >> 4).name if first >> 4 else "(packet type 0)"
