"""A broker session over the real router and the in-memory store, driven byte by byte by a client engine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from bridge.engine import (
    Attached,
    Condition,
    Dispositions,
    Engine,
    Event,
    Link,
    Transfers,
)
from bridge.message import Run
from bridge.sasl import SaslClient
from bridge.sections import bare_message
from edge.broker.amqp.containers import ContainerRegistry
from edge.broker.amqp.session import AmqpSession
from edge.broker.message.translation import payload_of
from edge.broker.model import interfaces
from edge.broker.model.addresses import AddressRule, AddressTable, AddressType
from edge.broker.model.interfaces import Refusal
from edge.broker.model.tracing import ConnectionTrace
from edge.broker.router.router import Router
from tests.support.machines import take_all
from tests.support.memory_store import MemoryStore
from tests.support.run_consumer import RunConsumer
from tests.unit.amqp.wire import NOW, message, of_kind

CLOCK_NS = 1_700_000_000_000_000_000


class StubDriver:
    """Driver as an AMQP session sees it."""

    def __init__(self) -> None:
        self.congested = False
        self.flushes = 0
        self.trace: ConnectionTrace | None = None
        self.peername = "192.0.2.7:50000"
        self.cipher: tuple[str, str] | None = None

    def flush_soon(self) -> None:
        self.flushes += 1

    def identified(self, user: str) -> bool:
        return True

    def run(self, step: Callable[[], None]) -> None:
        step()


class Site:
    """One router with clients. `commit` runs the pending commits of the store."""

    def __init__(self, *, clock_good: bool = False) -> None:
        self.posted: deque[Callable[[], None]] = deque()
        self.clock = NOW
        self.now_ns = CLOCK_NS
        self.store = MemoryStore(post=self.posted.append, clock=lambda: self.clock)
        rules = [AddressRule(f"{kind.value}/#", kind) for kind in AddressType]
        self.turns: deque[Callable[[], None]] = deque()
        """Callbacks for the next turn of the loop."""
        self.router = Router(
            self.store,
            AddressTable(rules),
            clock_ns=lambda: self.now_ns,
            clock_good=lambda: clock_good,
            flush_soon=lambda: None,
            soon=self.turns.append,
        )
        self.clients: list[Client] = []
        self.containers = ContainerRegistry()

    def client(self, container_id: str = "device-1", *desired_capabilities: str) -> Client:
        client = Client(self, container_id, desired_capabilities)
        self.clients.append(client)
        self.settle_down()
        return client

    def turn(self) -> None:
        """Carry bytes between each client and its session until no side has any left; no commit."""
        while sum(client.carry() for client in self.clients):  # a list, as `any` would stop at the first
            pass

    def commit(self) -> None:
        self.router.flush()
        while self.posted:
            self.posted.popleft()()

    def settle_down(self) -> None:
        for _ in range(20):
            self.turn()
            self.commit()
        self.turn()


class Client:
    """A client engine connected to a session of the broker."""

    def __init__(self, site: Site, container_id: str, desired_capabilities: Sequence[str] = ()) -> None:
        self.site = site
        self.engine = Engine(
            container_id=container_id, server=False, sasl=SaslClient(), desired_capabilities=desired_capabilities
        )
        self.server = Engine(container_id="broker", server=True)
        self.driver = StubDriver()
        self.ended: list[Condition | None] = []
        self.session = AmqpSession(
            self.driver,
            self.server,
            site.router,
            clock_ns=lambda: CLOCK_NS,
            on_closed=self.ended.append,
            containers=site.containers,
        )
        self.events: list[Event] = []
        self.engine.open()

    def carry(self) -> bool:
        turns = len(self.site.turns)
        for _ in range(turns):
            self.site.turns.popleft()()
        up, down = self.engine.data_to_send(), self.server.data_to_send()
        if up:
            self.session.handle(take_all(self.server, up, NOW))
        if down:
            self.events += take_all(self.engine, down, NOW)
        return bool(up or down or turns)

    def cut(self) -> None:
        self.session.handle(self.server.receive_eof(NOW))
        self.engine.receive_eof(NOW)

    def sender(self, address: Any, name: str = "s", **attach: Any) -> Link:
        link = self.engine.attach_sender(name, address, **attach)
        self.site.settle_down()
        return link

    def receiver(self, address: Any, name: str = "r", *, credit: int = 100, **attach: Any) -> Link:
        link = self.engine.attach_receiver(name, address, **attach)
        self.site.settle_down()
        self.engine.grant(link, credit)
        self.site.settle_down()
        return link

    def received(self, link: Link) -> list[bytes]:
        return [m for event in of_kind(self.events, Transfers) if event.link is link for m in event.messages]

    def deliveries(self, link: Link) -> list[int]:
        return [d for event in of_kind(self.events, Transfers) if event.link is link for d in event.deliveries]

    def outcomes(self, link: Link) -> list[tuple[int, Any, Condition | None]]:
        items = [i for event in of_kind(self.events, Dispositions) if event.link is link for i in event.items]
        return sorted((tag, state, condition) for tag, state, _, condition in items)

    def attached(self, link: Link) -> bool:
        return any(event.link is link for event in of_kind(self.events, Attached))


class MqttDevice(interfaces.Origin, RunConsumer):
    """Origin of MQTT runs, and a consumer that keeps its deliveries."""

    credit = 100

    def __init__(self, name: str = "mqtt-device") -> None:
        self.name = name
        self.answers: list[tuple[str, int]] = []
        self.runs: list[Run] = []

    def accepted(self, tokens: Any) -> None:
        self.answers += [("accepted", token) for token in tokens]

    def refused(self, tokens: Any, why: Refusal) -> None:
        self.answers += [(why.name, token) for token in tokens]

    def take(self, subscription: Any, stored: Any) -> None:
        self.runs.append(stored.run)


def received_payloads(client: Client, link: object) -> list[bytes]:
    return [payload_of(m[bare_message(m)[1] :])[2] for m in client.received(link)]  # type: ignore[arg-type]


def send_texts(client: Client, link: object, *texts: str, first: int = 0, settled: bool = False) -> None:
    messages = [message(text.encode(), durable=True) for text in texts]
    client.engine.send_all(link, first, messages, settled=settled)  # type: ignore[arg-type]
