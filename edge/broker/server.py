"""Broker: store, router, sessions and listeners on one event loop.

It owns the connections between them, and the housekeeping tick. It knows no file and no command line.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator, Mapping

from bridge.transport.driver import ConnectionDriver
from bridge.transport.ready import sockets_of
from edge.broker.amqp.administration import Administration
from edge.broker.amqp.containers import ObservedConnection
from edge.broker.configuration import BrokerConfiguration
from edge.broker.limits import TICK_S
from edge.broker.listeners.admission import Admission
from edge.broker.listeners.listeners import BrokerListeners
from edge.broker.listeners.resident_memory import resident_bytes
from edge.broker.model.budget import Budget
from edge.broker.model.housekeeping import Housekeeping
from edge.broker.model.refusals import RefusalJournal
from edge.broker.mqtt import interception as mqtt_interception
from edge.broker.mqtt.figures import NetworkFigures
from edge.broker.security.authenticator import Authenticator
from edge.broker.security.site import Site
from edge.broker.security.verification_threads import VerificationThreads
from edge.broker.served_space import ServedSpace
from edge.broker.store.contract import Store
from edge.broker.tracing.tracer import PacketTracer


class Broker:
    """One running broker. The caller makes the store (``post=loop.call_soon_threadsafe``) and closes it after
    `stop`."""

    def __init__(
        self,
        configuration: BrokerConfiguration,
        store: Store,
        *,
        clock_good: Callable[[], bool] = lambda: False,
        administration: Administration | None = None,
        resident: Callable[[], int] = resident_bytes,
    ) -> None:
        """`administration` changes addresses when an AMQP client requests it; None: such requests are refused.
        `resident` returns the memory of the process in bytes."""
        self.configuration = configuration
        self.store = store
        self._loop = asyncio.get_running_loop()
        self._ticker: asyncio.TimerHandle | None = None
        self._byte_counter = sockets_of(self._loop).counter
        self._threads = VerificationThreads()
        self.refusals = RefusalJournal()
        """Refused clients, for operators."""
        self.gate = Authenticator(
            configuration.authentication, worker=self._threads, clock=self._loop.time, refusals=self.refusals
        )
        self.site = _site(configuration)
        """Host names under which HTTP and WebSocket are served."""
        limits = configuration.limits
        self.admission = Admission(limits, Budget(limits.memory_bytes_max, configuration.space), resident)
        self.tracer = PacketTracer(self._drivers, self.gate, loop=self._loop)
        """Shows packets of connections to operators who trace them."""
        self.space = ServedSpace(
            configuration,
            store,
            self.gate,
            self._drivers,
            self.tracer,
            clock_good=clock_good,
            network=self._network,
            administration=administration,
        )
        self.router = self.space.router
        self.devices = self.space.devices
        """Device API; None if the space has none."""
        self.mqtt_sessions = self.space.mqtt_sessions
        self.listeners = BrokerListeners(
            configuration,
            self.space.protocols,
            self.site,
            lambda: not self.gate.open,
            self.admission,
            self.tracer,
            self.refusals,
        )
        self._housekeeping = Housekeeping(
            (
                ("sessions", lambda: self.mqtt_sessions.tick(self._loop.time())),
                ("router", self.router.tick),
                ("admission of connections", lambda: self.admission.tick(self.listeners.drivers)),
                ("credentials that expire", self.gate.expire),
                ("certificates", lambda: self.listeners.check_certificates(self._loop.time())),
            )
        )

    # --- start and stop ---------------------------------------------------------------------------------------

    async def start(self) -> dict[str, tuple[str, int]]:
        """Open the listeners of the configuration. Return name -> (host, port). Raises ListenError."""
        self.tracer.follow_log()
        bound = await self.listeners.start()
        self._ticker = self._loop.call_later(TICK_S, self._tick)
        return bound

    async def stop(self) -> None:
        """Close the listeners and every connection; acknowledged messages are already on disk."""
        if self._ticker is not None:
            self._ticker.cancel()
        self.space.disconnect_clients()
        await asyncio.sleep(0)  # DISCONNECT and close are written at the end of this turn of the loop
        await self.listeners.stop()
        self.space.finish()
        self.tracer.close()
        self._threads.stop()

    def reconfigure(self, configuration: BrokerConfiguration) -> None:
        """Apply the `Live` settings of a new configuration; all others have to be unchanged."""
        self.configuration = configuration
        self.listeners.follow(configuration)
        self.space.reconfigure(configuration)

    @property
    def amqp_connections(self) -> Mapping[int, ObservedConnection]:
        """Open AMQP connections by number, the oldest first."""
        return self.space.amqp.connections

    def serve_own_topics(self, own: mqtt_interception.OwnTopics | None) -> None:
        """Answer these topics of MQTT from now on; None: none. Clients of the device API do not get them."""
        self.space.mqtt.serve_own_topics(own)

    # --- inside -----------------------------------------------------------------------------------------------

    def _drivers(self) -> Iterator[ConnectionDriver]:
        return self.listeners.drivers()

    def _network(self) -> NetworkFigures:
        return NetworkFigures(self.admission.identified, self._byte_counter.received, self._byte_counter.sent)

    def _tick(self) -> None:
        self._ticker = self._loop.call_later(TICK_S, self._tick)
        self._housekeeping.run()

    @property
    def failing(self) -> Mapping[str, str]:
        """Parts of the housekeeping that fail, with the type of their exception."""
        return {**self._housekeeping.failing, **self.router.housekeeping.failing}


def _site(configuration: BrokerConfiguration) -> Site:
    endpoints = [listener.endpoint for listener in configuration.listeners if listener.web]
    return Site(
        [endpoint.host for endpoint in endpoints],
        exposed=not all(endpoint.loopback for endpoint in endpoints),
        machine=socket.gethostname(),
        listed=configuration.host_names,
    )
