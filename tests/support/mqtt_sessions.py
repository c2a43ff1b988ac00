"""MQTT sessions over a router and a store in memory; the test ends each commit."""

from __future__ import annotations

import array
from collections import deque
from collections.abc import Callable
from typing import Any

from edge.broker.limits import SESSION_LINGER_S, Limits
from edge.broker.message.mqtt_properties import NONE, Properties
from edge.broker.message.mqtt_translator import MqttTranslator
from edge.broker.model.addresses import AddressRule, AddressTable, AddressType
from edge.broker.mqtt import packets as p
from edge.broker.mqtt.connection import MqttConnection
from edge.broker.mqtt.handler import ConnectionHandler, HandlerContext
from edge.broker.mqtt.interception import NO_INTERCEPTION
from edge.broker.mqtt.session_registry import SessionRegistry
from edge.broker.router.batch import Publication, PublishBatch
from edge.broker.router.router import Router
from tests.support.machines import take_all
from tests.support.memory_store import MemoryStore
from tests.support.models.lanes import NoLanes
from tests.support.mqtt_connection import split

RULES = [AddressRule("queue/#", AddressType.QUEUE), AddressRule("anycast/#", AddressType.ANYCAST)]


class StubDriver:
    """Driver as a handler sees it."""

    address = "192.0.2.1"
    identity = None
    congested = False
    trace = None

    def __init__(self) -> None:
        self.aborted = False

    def flush_soon(self) -> None:
        """Do nothing: the test reads the output."""

    def identified(self, user: str) -> bool:
        return True

    def run(self, step: Callable[[], None]) -> None:
        step()

    def abort(self) -> None:
        self.aborted = True


class RaisingRouter(Router):
    """Router that raises for publications to the address `raises`."""

    raises = "raises"

    def publish(self, batch: PublishBatch) -> None:
        if isinstance(batch, Publication) and batch.run.address == self.raises:
            raise LookupError("a bug")
        super().publish(batch)


class SessionSite:
    """A router and its sessions over a store; the test ends its commits."""

    rules = RULES
    interception = NO_INTERCEPTION

    def __init__(self) -> None:
        self.posted: deque[Callable[[], None]] = deque()
        self.store = MemoryStore(post=self.posted.append)
        self.turns: deque[Callable[[], None]] = deque()
        """Callbacks for the next turn of the loop."""
        self.start()

    def start(self) -> None:
        """Start as after a kill, with the committed state."""
        self.router = RaisingRouter(
            self.store, AddressTable(self.rules), clock_ns=lambda: 1, flush_soon=lambda: None, soon=self.turns.append
        )
        self.sessions = SessionRegistry(self.router, self.store, MqttTranslator())

    def end_commit(self) -> None:
        """End the running commit."""
        self.posted.popleft()()

    def settle(self) -> None:
        self.router.flush()
        while self.posted:
            self.end_commit()

    def incoming(self, client_id: str = "c") -> list[int]:
        """Return the QoS 2 packet identifiers on disk."""
        return list(array.array("H", dict(self.store.state.items("incoming")).get(client_id, b"")))


class SessionPeer:
    """A client with a session that outlives its connection."""

    def __init__(
        self,
        site: SessionSite,
        client_id: str = "c",
        *,
        version: int = 5,
        clean_start: bool = False,
        expiry_s: int = 100,
        receive_maximum: int | None = None,
        waits: bool = False,
    ) -> None:
        """Connect; with `waits` the test itself reads the CONNACK."""
        self.version = version
        self._behind: list[Any] = []
        """Packets behind CONNACK."""
        self.connection = MqttConnection(Limits(), 0.0)
        self.driver = StubDriver()
        self.handler = ConnectionHandler(
            self.driver,  # type: ignore[arg-type]
            self.connection,
            HandlerContext(site.router, site.sessions, lambda: 0.0, NoLanes(), interception=site.interception),
        )
        block = Properties(session_expiry_interval_s=expiry_s, receive_maximum=receive_maximum)
        block = block if version == 5 else NONE
        self.send(p.Connect(client_id, version, clean_start, properties=block))
        if not waits:
            site.settle()
            self.connack, *self._behind = self.sent()

    def send(self, *what: p.Packet) -> None:
        data = b"".join(each.encode(self.version) for each in what)
        self.handler.handle(take_all(self.connection, data, 0.0))

    def sent(self) -> list[Any]:
        found, self._behind = [*self._behind, *split(self.connection.data_to_send(), self.version)], []
        return found

    def lose(self) -> None:
        """Break the network connection."""
        self.handler.handle(self.connection.receive_eof(1.0))

    def publish(self, packet_id: int, address: str = "queue/1", qos: int = 2) -> None:
        self.send(p.Publish(address, b"x", qos, packet_id=packet_id))


def age_sessions(site: SessionSite, now: float = SESSION_LINGER_S) -> None:
    """Let time pass for clients that have been absent since 0."""
    for _ in range(3):
        site.settle()
        site.router.tick()
        site.sessions.tick(now)
    site.settle()
