"""Versions of MQTT for a client and its broker, the best first: a client tries them in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from bridge.connectors.messages import ConnectorMessage
from bridge.connectors.mqtt import packets, packets5
from bridge.connectors.settings import ClientIdentity
from bridge.plain import ADDRESS, CLIENT, DEVICE, EPOCH, GATEWAY, HOPS, PREFIX, RECEIVED_AT, SEQUENCE
from bridge.publish_properties import PublishProperties, write

_NS: Final = 1_000_000_000


class MqttDialect(Protocol):
    """Version of MQTT."""

    peer: str
    """Description of the broker for people, with the features that this version lacks."""
    names: bool
    """Messages carry their names, and subscriptions their options: MQTT 5."""
    refusals: Mapping[int, str]
    """Reasons of CONNACK codes where the broker gives them a meaning of its own."""

    def connect(self, identity: ClientIdentity, *, clean: bool, keep_alive_s: int) -> bytes:
        """Encode CONNECT."""
        ...

    def publish(
        self, message: ConnectorMessage, packet_id: int, *, dup: bool, terms: packets.ConnackTerms, now_ns: int
    ) -> bytes:
        """Encode PUBLISH; `now_ns` is UTC. Raises ValueError when the message does not fit into a packet."""
        ...

    def subscribe(self, packet_id: int, filters: Sequence[tuple[str, int]]) -> bytes:
        """Encode SUBSCRIBE to (filter, highest QoS)."""
        ...

    def decode(self, frame: bytes) -> packets.Packet:
        """Decode a packet of the broker. Raises MalformedBrokerPacket."""
        ...


class Mqtt5:
    """MQTT 5: messages keep name, expiry, content type, user properties, and the flag of retained ones."""

    peer = "an MQTT 5 broker"
    names = True
    refusals: Mapping[int, str] = {}

    def connect(self, identity: ClientIdentity, *, clean: bool, keep_alive_s: int) -> bytes:
        return packets5.connect(
            identity.client_id,
            clean_start=clean,
            keep_alive_s=keep_alive_s,
            username=identity.username,
            password=identity.password,
        )

    def publish(
        self, message: ConnectorMessage, packet_id: int, *, dup: bool, terms: packets.ConnackTerms, now_ns: int
    ) -> bytes:
        return packets5.publish(
            message.target,
            message.payload,
            packet_id,
            dup=dup,
            retain=message.retain and terms.retains,
            properties=write(self._properties(message, now_ns)),
            packet_bytes_max=terms.packet_bytes_max,
        )

    def subscribe(self, packet_id: int, filters: Sequence[tuple[str, int]]) -> bytes:
        return packets5.subscribe(packet_id, filters)

    def decode(self, frame: bytes) -> packets.Packet:
        return packets5.decode(frame)

    def _properties(self, message: ConnectorMessage, now_ns: int) -> PublishProperties:
        (gateway, epoch), address, sequence = message.name
        named = (
            (GATEWAY, gateway),
            (EPOCH, epoch),
            (ADDRESS, address),
            (SEQUENCE, str(sequence)),
            (DEVICE, message.device),
            (CLIENT, message.client),
            (RECEIVED_AT, str(message.received_at)),
            (HOPS, " ".join(message.hops)),
        )
        theirs = tuple(pair for pair in message.properties.users if not pair[0].startswith(PREFIX))
        expiry_s = message.properties.expiry_s
        if expiry_s is not None:  # minus the time that the message has waited here [MQTT-3.3.2-6]
            expiry_s = max(1, expiry_s - max(0, now_ns - message.received_at) // _NS)
        users = (*((str(key), value) for key, value in named if value), *theirs)
        return message.properties._replace(expiry_s=expiry_s, users=users)


class Mqtt311:
    """MQTT 3.1.1; as a `bridge`, with the protocol-level bit of Mosquitto and others: such brokers keep the flags of
    retained messages, and do not send our own messages back."""

    names = False
    refusals: Mapping[int, str] = {}

    def __init__(self, *, bridge: bool) -> None:
        lost = "messages carry no names, so duplicates after a reconnect are not detected"
        if bridge:
            self.peer = f"an MQTT 3.1.1 broker, as its bridge: {lost}"
        else:
            self.peer = f"an MQTT 3.1.1 broker: updates of retained messages lose their flag, and {lost}"
        self._bridge = bridge

    def connect(self, identity: ClientIdentity, *, clean: bool, keep_alive_s: int) -> bytes:
        return packets.connect(
            identity.client_id,
            clean_session=clean,
            keep_alive_s=keep_alive_s,
            username=identity.username,
            password=identity.password,
            bridge=self._bridge,
        )

    def publish(
        self, message: ConnectorMessage, packet_id: int, *, dup: bool, terms: packets.ConnackTerms, now_ns: int
    ) -> bytes:
        return packets.publish(message.target, message.payload, packet_id, dup=dup, retain=message.retain)

    def subscribe(self, packet_id: int, filters: Sequence[tuple[str, int]]) -> bytes:
        return packets.subscribe(packet_id, filters)

    def decode(self, frame: bytes) -> packets.Packet:
        return packets.decode(frame)


DIALECTS: Final[Sequence[MqttDialect]] = (Mqtt5(), Mqtt311(bridge=True), Mqtt311(bridge=False))
"""All versions, the best first."""
