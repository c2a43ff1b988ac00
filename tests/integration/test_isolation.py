"""An exception in one AMQP session ends only its connection: a broker on a real socket, and failing sessions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from bridge.engine import Attached, Closed, DeliveryState, Dispositions, Engine, Link, PeerOpened, Transfers
from bridge.resources.endpoint import ListenEndpoint
from bridge.sasl import SaslClient
from bridge.transport.driver import ConnectionDriver
from edge.broker.amqp.incoming import IncomingLink
from edge.broker.amqp.outgoing import OutgoingLink
from edge.broker.amqp.session import AmqpSession
from edge.broker.configuration import BrokerConfiguration, Listener, Protocol
from edge.broker.model.addresses import AddressType
from edge.broker.server import Broker
from tests.support.memory_store import MemoryStore
from tests.unit.amqp.wire import message

DEADLINE_S = 20.0
SECRET = b"the pressure of vessel 7"


class Fault(Exception):
    """Exception that the tests raise."""


async def eventually(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.005)


class Client:
    """Send to the queue and receive from it; accept every delivery."""

    def __init__(self, name: str, *, receives: bool = False) -> None:
        idle_timeout_s = 0.4 if name == "faulty" else 30.0  # its timer is soon; the others may be late
        self.engine = Engine(container_id=name, server=False, sasl=SaslClient(), idle_timeout_s=idle_timeout_s)
        self.receives = receives
        self.links: dict[str, Link] = {}
        self.got: list[bytes] = []
        self.accepted: list[int] = []
        self.over = False
        self.engine.open()

    async def connect(self, port: int) -> None:
        _, driver = await asyncio.get_running_loop().create_connection(
            lambda: ConnectionDriver(self.engine, lambda _: self, write_bytes_max=1 << 20), "127.0.0.1", port
        )
        self.driver = driver
        await eventually(lambda: self.over or len(self.links) == 1 + self.receives)

    def handle(self, events: Sequence[Any]) -> None:
        for event in events:
            if isinstance(event, PeerOpened):
                self.engine.attach_sender("s", "queue/a")
                if self.receives:
                    self.engine.attach_receiver("r", "queue/a")
            elif isinstance(event, Attached):
                self.links[event.link.name] = event.link
                if event.link.name == "r":
                    self.engine.grant(event.link, 1000)
            elif isinstance(event, Transfers):
                self.got += event.messages
                self.engine.settle(event.link, event.deliveries)
            elif isinstance(event, Dispositions):
                self.accepted += [tag for tag, state, *_ in event.items if state is DeliveryState.ACCEPTED]
            elif isinstance(event, Closed):
                self.over = True

    def writable(self) -> None: ...

    def send(self, tag: int) -> None:
        self.engine.send(self.links["s"], tag, message(SECRET))
        self.driver.flush_soon()


def only(name: str, wrapped: Callable[..., Any], name_of: Callable[[Any], str]) -> Callable[..., Any]:
    """Raise instead of calling a method, for one device."""

    def method(self: Any, *arguments: Any, **named: Any) -> Any:
        if name_of(self) == name:
            raise Fault(SECRET)
        return wrapped(self, *arguments, **named)

    return method


def in_accepted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(IncomingLink, "accepted", only("faulty", IncomingLink.accepted, lambda link: link.name))


def in_deliver(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OutgoingLink, "deliver", only("faulty", OutgoingLink.deliver, lambda link: link.name))


def in_handle(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(IncomingLink, "received", only("faulty", IncomingLink.received, lambda link: link.name))


def in_bytes_to_send(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Engine, "data_to_send", only("faulty", Engine.data_to_send, server_side_of("faulty")))


def on_timer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Engine, "handle_timeout", only("faulty", Engine.handle_timeout, server_side_of("faulty")))


def server_side_of(name: str) -> Callable[[Engine], str]:
    """Return a function that names the broker's engine which has a link of this client."""

    def name_of(engine: Engine) -> str:
        return name if any(getattr(link.context, "name", "") == name for link in engine.links) else ""

    return name_of


@pytest.mark.parametrize("provoke", [in_accepted, in_deliver, in_handle, in_bytes_to_send, on_timer])
def test_other_clients_are_not_affected(
    provoke: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        configuration = BrokerConfiguration(
            gateway="gw1",
            listeners=(Listener(Protocol.AMQP, ListenEndpoint("127.0.0.1", 0)),),
            default_type=AddressType.QUEUE,
        )
        store = MemoryStore(post=loop.call_soon_threadsafe)
        broker = Broker(configuration, store, resident=lambda: 0)
        port = (await broker.start())["amqp"][1]
        faulty, sender, receiver = Client("faulty", receives=True), Client("good"), Client("reader", receives=True)
        for client in (sender, receiver, faulty):
            await client.connect(port)
        provoke(monkeypatch)
        for tag in range(20):  # in one turn, so they share a commit
            faulty.send(tag)
            sender.send(tag)
        await eventually(lambda: faulty.over and broker.listeners.connections == 2)
        await eventually(lambda: len(sender.accepted) == 20)
        sender.send(20)
        await eventually(lambda: len(sender.accepted) == 21)
        await eventually(lambda: not broker.router.queues["queue/a"].backlog)
        await eventually(lambda: not broker.router.queues["queue/a"].outstanding)
        assert len(receiver.got) >= 21
        assert not receiver.over
        owners = [driver.owner for driver in broker.listeners.drivers()]
        assert not any(isinstance(owner, AmqpSession) and owner.name == "faulty" for owner in owners)
        await broker.stop()
        store.close()

    with caplog.at_level(logging.ERROR):
        asyncio.run(scenario())
    raised = [record for record in caplog.records if "Fault" in record.getMessage()]
    assert len(raised) == 1
    assert "vessel" not in caplog.text
