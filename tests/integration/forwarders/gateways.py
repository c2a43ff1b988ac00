"""Gateways in this process, each with a store of its own, that forward to one another over real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any

import msgspec

from bridge import plain
from bridge.message import Run, Stored
from bridge.resources.endpoint import ListenEndpoint
from edge.broker.configuration import (
    AddressConfiguration,
    BrokerConfiguration,
    Connector,
    ConnectorType,
    Direction,
    EndpointHost,
    Forwarder,
    Listener,
    Protocol,
)
from edge.broker.limits import Limits
from edge.broker.model.addresses import AddressRule, AddressType
from edge.broker.model.interfaces import DeliveryOutcome, Origin, Refusal, SubscribeOptions, Subscription
from edge.broker.router.batch import Publication
from edge.broker.router.peer_connector import PeerConnector
from edge.broker.router.uplinks import Uplinks
from edge.broker.server import Broker
from tests.simulation.gateway import NoKey
from tests.support.memory_store import MemoryStore
from tests.support.run_consumer import RunConsumer

DEADLINE_S = 30.0

ADDRESSES = tuple(
    AddressConfiguration(AddressRule(pattern, kind))
    for pattern, kind in (("queue/#", AddressType.QUEUE), ("plant/#", AddressType.TOPIC), ("site/#", AddressType.TOPIC))
)


async def eventually(condition: Callable[[], object], what: str = "") -> None:
    """Wait until the condition holds."""
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"not within {DEADLINE_S:g} s: {what or condition}") from None


class Sender(Origin):
    """Publish at the router and track acknowledgements."""

    name = "dev"

    def __init__(self, broker: Broker) -> None:
        self.accepted_count = 0
        self._broker = broker
        self._sent = 0

    def publish(
        self, address: str, *bodies: bytes, flags: int = 1, properties: bytes = b"", device: str = "dev"
    ) -> None:
        tokens = range(self._sent, self._sent + len(bodies))
        self._sent += len(bodies)
        self._broker.router.publish(Publication(self, Run(address, device, flags, properties, list(bodies)), tokens))

    def accepted(self, tokens: Sequence[int]) -> None:
        self.accepted_count += len(tokens)

    def refused(self, tokens: Sequence[int], why: Refusal) -> None:
        raise AssertionError(why)


class Receiver(RunConsumer):
    """Takes everything of an address, in order."""

    name = "reader"
    credit = 1_000

    def __init__(self, broker: Broker, address: str, name: str | None = None) -> None:
        self.runs: list[Run] = []
        options = SubscribeOptions(durable_name=name, all_qos=True)
        self.subscription = broker.router.subscriptions.subscribe(self, address, options)
        self.subscription.pump()

    def take(self, subscription: Subscription, stored: Stored) -> None:
        self.runs.append(stored.run)
        last = stored.position + len(stored.run) - 1
        if stored.position >= 0:
            subscription.settle(self, stored.position, last, DeliveryOutcome.ACCEPTED)


class Gateway:
    """Broker with its uplinks; `configure` may be called again."""

    def __init__(self, name: str) -> None:
        loop = asyncio.get_running_loop()
        listeners = tuple(
            Listener(protocol, ListenEndpoint("127.0.0.1", 0)) for protocol in (Protocol.AMQP, Protocol.MQTT)
        )
        self.configuration = BrokerConfiguration(
            gateway=name, addresses=ADDRESSES, listeners=listeners, limits=Limits(free_floor_bytes=0)
        )
        self.store = MemoryStore(post=loop.call_soon_threadsafe)
        self.broker = Broker(self.configuration, self.store, resident=lambda: 0)  # all that other tests hold
        self.uplinks = Uplinks(self.broker.router, self.store, NoKey())
        self.port = 0
        self.mqtt_port = 0

    async def start(self) -> None:
        bound = await self.broker.start()
        self.port, self.mqtt_port = bound["amqp"][1], bound["mqtt"][1]
        self.uplinks.start()

    async def stop(self) -> None:
        await self.uplinks.stop()
        await self.broker.stop()
        self.store.close()

    async def configure(self, peer: Connector | None, *forwarders: Forwarder, **fields: Any) -> None:
        """Configure the forwarders, and a connector if there is a peer."""
        self.configuration = msgspec.structs.replace(
            self.configuration, connectors=(peer,) if peer is not None else (), forwarders=forwarders, **fields
        )
        self.broker.reconfigure(self.configuration)
        for gone in self.uplinks.configure(self.configuration):
            await gone.dialer.close()

    def connector(self, name: str = "peer") -> PeerConnector:
        """Return the running connector."""
        (found,) = [one for one in self.uplinks if one.connector.name == name]
        assert isinstance(found, PeerConnector)
        return found


def amqp_to(*ports: int, name: str = "peer") -> Connector:
    """Build a connector to AMQP peers on these ports."""
    hosts = tuple(EndpointHost(host="127.0.0.1", port=port) for port in ports)
    return Connector(name=name, type=ConnectorType.AMQP, hosts=hosts)


def mqtt_to(port: int, **fields: object) -> Connector:
    """Build a connector to an MQTT broker."""
    hosts = (EndpointHost(host="127.0.0.1", port=port),)
    return Connector(name="peer", type=ConnectorType.MQTT, hosts=hosts, **fields)  # type: ignore[arg-type]


def out(name: str, pattern: str, remote: str, **fields: object) -> Forwarder:
    """Build a forwarder to the peer."""
    return Forwarder(name=name, filter=pattern, connector="peer", remote_address=remote, **fields)  # type: ignore[arg-type]


def into(name: str, pattern: str, remote: str, **fields: object) -> Forwarder:
    """Build a forwarder from the peer."""
    return out(name, pattern, remote, direction=Direction.IN, **fields)


def payloads(receiver: Receiver) -> list[bytes]:
    """Return the bodies that a receiver has, in order."""
    return [plain.body_of(body) for run in receiver.runs for body in run.bodies]


def scenario(run: Callable[[], Coroutine[object, object, None]]) -> Callable[[], None]:
    """Run a test on its own event loop."""

    @wraps(run)
    def test() -> None:
        asyncio.run(run())

    return test


@asynccontextmanager
async def gateways(*names: str) -> AsyncIterator[list[Gateway]]:
    """Yield running gateways and stop them at the end."""
    made = [Gateway(name) for name in names]
    for gateway in made:
        await gateway.start()
    try:
        yield made
    finally:
        for gateway in made:
            await gateway.stop()
