"""The broker: store, router, sessions and listeners put together on one event loop.

It owns what crosses them: when a commit is started (once a turn of the loop), when sockets stop being read because
the store has too much under way, and the housekeeping tick. It knows no file and no command line.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

import msgspec

from bridge.driver import Driver
from bridge.engine import Engine
from edge.broker.addresses import AddressTable
from edge.broker.amqp.session import AmqpSession
from edge.broker.amqp.translate import mqtt_runs
from edge.broker.configuration import BrokerConfiguration
from edge.broker.limits import PENDING_BYTES_LOW, PENDING_BYTES_MAX, TICK_S, WRITE_BUFFER_BYTES_MAX
from edge.broker.listeners.tcp import TcpListener
from edge.broker.mqtt.clients import Client, Clients
from edge.broker.mqtt.connection import Connection as MqttConnection
from edge.broker.mqtt.events import Will
from edge.broker.mqtt.session import MqttSession, publish_will
from edge.broker.router import Router
from edge.broker.store.contract import Committed, Store

STORE_BUSY = "the store has too much under way"


class Broker:
    """One broker engine. The caller made the store (``post=loop.call_soon_threadsafe``) and closes it after `stop`."""

    def __init__(
        self, configuration: BrokerConfiguration, store: Store, *, clock_good: Callable[[], bool] = lambda: False
    ) -> None:
        self.configuration = configuration
        self.store = store
        self._loop = asyncio.get_running_loop()
        self.store_problem: str | None = None
        """Why the last commit failed; None when it did not."""
        self._flush_scheduled = False
        self._paused = False
        self._ticker: asyncio.TimerHandle | None = None
        self.router = Router(
            store,
            AddressTable(configuration.rules, configuration.default_rule),
            clock_ns=time.time_ns,
            clock_good=clock_good,
            flush_soon=self._flush_soon,
        )
        store.on_commit = self._committed
        self.clients = Clients(self.router, store, mqtt_runs)
        self.mqtt = TcpListener("mqtt", self._mqtt_driver)
        self.amqp = TcpListener("amqp", self._amqp_driver)

    # --- life -------------------------------------------------------------------------------------------------

    async def start(self) -> dict[str, tuple[str, int]]:
        """Listen where the configuration says; returns name -> (host, port). Raises ListenError."""
        bound = {}
        for listener, endpoint in ((self.mqtt, self.configuration.mqtt), (self.amqp, self.configuration.amqp)):
            if endpoint is not None:
                bound[listener.name] = await listener.start(endpoint.host, endpoint.port)
        self._ticker = self._loop.call_later(TICK_S, self._tick)
        return bound

    async def stop(self) -> None:
        """Close the listeners and every connection; what was acknowledged is on disk already."""
        if self._ticker is not None:
            self._ticker.cancel()
        await self.mqtt.stop()
        await self.amqp.stop()

    def reconfigure(self, configuration: BrokerConfiguration) -> None:
        """Follow the addresses of a new configuration; its listeners and limits count from the next start."""
        self.configuration = msgspec.structs.replace(
            self.configuration, addresses=configuration.addresses, default_type=configuration.default_type
        )
        self.router.reconfigure(AddressTable(configuration.rules, configuration.default_rule))

    @property
    def connections(self) -> int:
        """Open sockets of devices."""
        return len(self.mqtt.drivers) + len(self.amqp.drivers)

    # --- commits and pressure ---------------------------------------------------------------------------------

    def _flush_soon(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        self.router.flush()
        if not self._paused and self.store.pending_bytes > PENDING_BYTES_MAX:
            self._paused = True
            for driver in self._drivers():
                driver.pause_reading(STORE_BUSY)

    def _committed(self, commit: Committed) -> None:
        self.store_problem = None if commit.error is None else str(commit.error)
        self.router.committed(commit)
        if self._paused and self.store.pending_bytes < PENDING_BYTES_LOW:
            self._paused = False
            for driver in self._drivers():
                driver.resume_reading(STORE_BUSY)

    def _drivers(self) -> Iterator[Driver]:
        yield from self.mqtt.drivers
        yield from self.amqp.drivers

    def _tick(self) -> None:
        self._ticker = self._loop.call_later(TICK_S, self._tick)
        self.clients.tick(self._loop.time(), self._publish_will)
        self.router.tick()

    def _publish_will(self, client: Client, will: Will) -> None:
        publish_will(self.router, client.client_id, will)

    # --- connections ------------------------------------------------------------------------------------------

    def _mqtt_driver(self, gone: Callable[[Driver], None]) -> Driver | None:
        limits = self.configuration.limits
        if self.connections >= limits.connections_max:
            return None
        connection = MqttConnection(limits, self._loop.time())
        return Driver(
            connection,
            lambda driver: MqttSession(driver, connection, self.router, self.clients, self._loop.time),
            write_bytes_max=WRITE_BUFFER_BYTES_MAX,
            gone=gone,
        )

    def _amqp_driver(self, gone: Callable[[Driver], None]) -> Driver | None:
        limits = self.configuration.limits
        if self.connections >= limits.connections_max:
            return None
        engine = Engine(
            container_id=self.configuration.gateway or "waypost",
            server=True,
            idle_timeout_s=limits.idle_timeout_s,
            handshake_timeout_s=limits.handshake_s,
            max_message_size=limits.packet_bytes_max,
            now=self._loop.time(),
        )
        return Driver(
            engine,
            lambda driver: AmqpSession(driver, engine, self.router),
            write_bytes_max=WRITE_BUFFER_BYTES_MAX,
            gone=gone,
        )
