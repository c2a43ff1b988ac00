"""MQTT and AMQP clients of one router."""

from __future__ import annotations

from typing import Any

from edge.broker.limits import Limits
from edge.broker.message.mqtt_properties import Properties
from edge.broker.message.mqtt_translator import MqttTranslator
from edge.broker.mqtt import packets as p
from edge.broker.mqtt.connection import MqttConnection
from edge.broker.mqtt.events import SubscriptionRequest
from edge.broker.mqtt.handler import ConnectionHandler, HandlerContext
from edge.broker.mqtt.session_registry import SessionRegistry
from tests.support.machines import take_all
from tests.support.models.lanes import NoLanes
from tests.support.mqtt_connection import split
from tests.support.mqtt_sessions import StubDriver
from tests.unit.amqp import broker as amqp


class MixedSite(amqp.Site):
    """A broker with AMQP clients and `Peer` as clients."""

    def __init__(self) -> None:
        super().__init__()
        self.sessions = SessionRegistry(self.router, self.store, MqttTranslator())

    @property
    def losses(self) -> list[tuple[str, int]]:
        """Return the reasons in the ledger, with counts of messages."""
        return [(loss.reason, loss.messages) for loss in self.store.ledger.entries(0, 100)]


class MqttClient:
    """An MQTT 5 client."""

    def __init__(self, site: MixedSite, client_id: str, pattern: str = "", qos: int = 1, **properties: Any) -> None:
        """Connect with these properties and subscribe to `pattern`."""
        self.site = site
        self.connection = MqttConnection(Limits(), 0.0)
        self.handler = ConnectionHandler(
            StubDriver(),  # type: ignore[arg-type]
            self.connection,
            HandlerContext(site.router, site.sessions, lambda: 0.0, NoLanes()),
        )
        self.send(p.Connect(client_id, 5, clean_start=False, properties=Properties(**properties)))
        self.sent()
        if pattern:
            self.send(p.Subscribe(1, (SubscriptionRequest(pattern, qos),)))

    def send(self, *what: p.Packet) -> None:
        data = b"".join(each.encode(5) for each in what)
        self.handler.handle(take_all(self.connection, data, 0.0))
        self.site.settle_down()

    def sent(self) -> list[Any]:
        return split(self.connection.data_to_send(), 5)

    def lose(self) -> None:
        """Break the network connection."""
        self.handler.handle(self.connection.receive_eof(1.0))
        self.site.settle_down()

    def publish(self, address: str, *bodies: bytes, qos: int = 1) -> list[Any]:
        """Publish, and return the answers."""
        self.send(*(p.Publish(address, body, qos, packet_id=i) for i, body in enumerate(bodies, 1)))
        return self.sent()

    def take(self) -> list[bytes]:
        """Acknowledge the received messages; return their payloads."""
        taken: list[bytes] = []
        while found := [packet for packet in self.sent() if isinstance(packet, p.Publish)]:
            taken += [packet.payload for packet in found]
            self.send(*(p.PubAck(packet.packet_id) for packet in found if packet.qos == 1))
        return taken
