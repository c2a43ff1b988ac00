"""The number of connections of gateways that a hub accepts, and the order in which it closes them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from bridge.engine import Engine
from bridge.sasl import ANONYMOUS, SaslServer
from bridge.transport.driver import ConnectionDriver
from bridge.transport.lingering import lingering_of
from cloud.hub.connections import LIMITS, Connections
from cloud.hub.limits import CONNECTIONS_MAX, HELD_HALF_SENT_BYTES_MAX, MEMORY_BYTES_MAX, MESSAGE_BYTES_MAX
from edge.broker.limits import AMQP_CONNECTION_BYTES, Limits
from tests.support.loop_wait import until

PLACES = 20
"""Room for unidentified connections: three quarters of the bytes that open connections may hold."""
HELD_BYTES_MAX = (PLACES * AMQP_CONNECTION_BYTES + 1) * 4 // 3


class Visitor:
    """Owner of a connection without traffic; the test identifies the peer."""

    def __init__(self) -> None:
        self.sasl = SaslServer(anonymous=ANONYMOUS)

    def arrive(self, engine: Engine, driver: ConnectionDriver) -> Visitor:
        return self

    def handle(self, events: Sequence[Any]) -> None:
        """Ignore the events."""

    def writable(self) -> None:
        """Send nothing."""


class Acceptor:
    def tick(self) -> None:
        pass

    def new_connection(self) -> Visitor:
        return Visitor()

    def remove(self, driver: ConnectionDriver) -> None:
        """Ignore the end."""


class Rig:
    def __init__(self, connections: Connections, port: int) -> None:
        self.connections = connections
        self.port = port
        self.sockets: list[asyncio.StreamWriter] = []

    async def connect(self) -> ConnectionDriver:
        before = set(self.connections.listener.drivers)
        _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.sockets.append(writer)
        await until(lambda: bool(self.connections.listener.drivers.keys() - before))
        [made] = self.connections.listener.drivers.keys() - before
        return made


@contextlib.asynccontextmanager
async def rig(limits: Limits = LIMITS, resident: Callable[[], int] = lambda: 0) -> AsyncIterator[Rig]:
    connections = Connections(Acceptor(), limits=limits, held_bytes_max=HELD_BYTES_MAX, resident=resident)
    _, port = await connections.start("127.0.0.1", 0, None)
    made = Rig(connections, port)
    try:
        yield made
    finally:
        for socket in made.sockets:
            socket.close()
        await connections.stop()


def test_unidentified_peers_take_no_place_of_others() -> None:
    async def scenario() -> None:
        async with rig() as hub:
            known = await hub.connect()
            assert known.identified("gw1")
            silent = [await hub.connect() for _ in range(3 * PLACES)]
            await until(lambda: len(hub.connections.listener.drivers) <= PLACES + 1)
            assert known in hub.connections.listener.drivers
            assert silent[-1] in hub.connections.listener.drivers, "the newest has its time to say who it is"
            assert silent[0] not in hub.connections.listener.drivers
            assert silent[-1].identified("gw2")

    asyncio.run(scenario())


def test_connections_beyond_the_limit_of_the_process_are_refused() -> None:
    taken = 0

    async def scenario() -> None:
        nonlocal taken
        async with rig(Limits(memory_bytes_max=MEMORY_BYTES_MAX), lambda: taken) as hub:
            await hub.connect()
            taken = MEMORY_BYTES_MAX + 1
            await until(lambda: not hub.connections.admission.lets_in)
            reader, writer = await asyncio.open_connection("127.0.0.1", hub.port)
            assert await reader.read() == b"", "closed at once"
            writer.close()
            assert hub.connections.listener.refused == 1
            taken = 0
            await until(lambda: hub.connections.admission.lets_in)
            await hub.connect()

    asyncio.run(scenario())


def test_lingering_sockets_count_as_open_connections() -> None:
    most = 8

    async def scenario() -> None:
        async with rig(Limits(connections_max=most)) as hub:
            waiting = lingering_of(asyncio.get_running_loop())
            for _ in range(3 * most):
                _, writer = await asyncio.open_connection("127.0.0.1", hub.port)
                writer.write(b"no AMQP header")  # refused, and the client keeps its end open
                hub.sockets.append(writer)
                await until(lambda: not hub.connections.listener.drivers)
                assert len(waiting) <= most
            assert len(waiting) == most
            for connected in range(1, most + 1):
                await hub.connect()
                assert len(waiting) == most - connected, "they give way"
            waiting.keep_at_most(0)

    asyncio.run(scenario())


def test_one_gateway_may_have_two_largest_messages_in_flight() -> None:
    assert LIMITS.packet_bytes_max == MESSAGE_BYTES_MAX
    assert LIMITS.connections_max == CONNECTIONS_MAX
    assert 2 * MESSAGE_BYTES_MAX <= HELD_HALF_SENT_BYTES_MAX // 2
