"""Broker: store, router, sessions and listeners on one event loop.

It owns the connections between them, and the housekeeping tick. It knows no command line, and no file but those of TLS.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from bridge.transport.driver import ConnectionDriver
from bridge.transport.ready import sockets_of
from edge.broker.amqp.administration import Administration
from edge.broker.amqp.containers import ObservedConnection
from edge.broker.amqp.interception import LinkInterception
from edge.broker.configuration import AuthenticationMode, BrokerConfiguration, Protocol
from edge.broker.limits import TICK_S
from edge.broker.listeners.admission import Admission
from edge.broker.listeners.listeners import BrokerListeners
from edge.broker.listeners.resident_memory import resident_bytes
from edge.broker.listeners.tcp import STOP_S
from edge.broker.model.budget import Budget
from edge.broker.model.housekeeping import Housekeeping
from edge.broker.model.refusals import RefusalJournal
from edge.broker.mqtt import interception as mqtt_interception
from edge.broker.mqtt.figures import NetworkFigures
from edge.broker.security.authenticator import Authenticator
from edge.broker.security.site import Site
from edge.broker.security.verification_threads import VerificationThreads
from edge.broker.served_space import ServedSpace
from edge.broker.spaces.amqp import AmqpSpaceDrivers
from edge.broker.spaces.closed_space import ClosedSpace
from edge.broker.spaces.fair_verification import FairVerification
from edge.broker.spaces.mqtt import MqttSpaceDrivers
from edge.broker.spaces.virtual_hosts import VirtualHosts
from edge.broker.store.contract import Store
from edge.broker.tracing.tracer import PacketTracer

_CLOSED: Final = ""
"""Name of the queue of passwords for all spaces that are not served; no `TenantSpace` has it."""


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
        data: Path | None = None,
    ) -> None:
        """`data`: folder for answers about client certificates. `administration` changes addresses when an AMQP client
        requests it; None: such requests are refused.
        `resident` returns the memory of the process in bytes."""
        self.configuration = configuration
        self.store = store
        self._loop = asyncio.get_running_loop()
        self._ticker: asyncio.TimerHandle | None = None
        self._byte_counter = sockets_of(self._loop).counter
        self._threads = VerificationThreads()
        self.refusals = RefusalJournal()
        """Refused clients, for operators."""
        self.further: dict[str, ServedSpace] = {}
        """Further address spaces, by name."""
        self._verification = FairVerification(self._threads, shared=lambda: self._hosts.shared)
        self.gate = self._make_gate(configuration.space, configuration.authentication)
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
            lambda: self._drivers_of(self.space),
            self.tracer,
            pool=self.admission.budget.space,
            clock_good=clock_good,
            network=self._network,
            administration=administration,
        )
        self.router = self.space.router
        self.devices = self.space.devices
        """Device API; None if the space has none."""
        self.mqtt_sessions = self.space.mqtt_sessions
        self._clock_good = clock_good
        self._subscribers_bytes_max = self.router.pool.bytes_max
        self._hosts = VirtualHosts(self.space, self._make_closed_space(), self._count_for)
        self.listeners = BrokerListeners(
            configuration,
            {Protocol.MQTT: MqttSpaceDrivers(self._hosts), Protocol.AMQP: AmqpSpaceDrivers(self._hosts)},
            self.site,
            lambda: not self.gate.open,
            self.admission,
            self.tracer,
            self.refusals,
            data,
        )
        self._follow_spaces()
        self._housekeeping = Housekeeping(
            (
                ("address spaces", self._tick_spaces),
                ("admission of connections", lambda: self.admission.tick(self.listeners.drivers)),
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
        for space in self.spaces:
            space.disconnect_clients()
        await asyncio.sleep(0)  # DISCONNECT and close are written at the end of this turn of the loop
        await self.listeners.stop()
        for space in self.spaces:
            space.finish()
        self.tracer.close()
        self._threads.stop()

    def reconfigure(self, configuration: BrokerConfiguration) -> None:
        """Apply the `Live` settings of a new configuration; all others have to be unchanged. Further spaces have a
        `reconfigure` of their own."""
        self.configuration = configuration
        self.listeners.follow(configuration)
        self.space.reconfigure(configuration)
        self._follow_spaces()

    @property
    def spaces(self) -> tuple[ServedSpace, ...]:
        """All address spaces, the gateway's own first."""
        return (self.space, *self.further.values())

    @property
    def amqp_connections(self) -> Mapping[int, ObservedConnection]:
        """Open AMQP connections by number, the oldest first."""
        return self.space.amqp.connections

    def serve_own_addresses(self, topics: mqtt_interception.OwnTopics | None, nodes: LinkInterception | None) -> None:
        """Answer these topics of MQTT and nodes of AMQP from now on; None: none. Clients of the device API do not get
        them."""
        self.space.mqtt.serve_own_topics(topics)
        self.space.own_nodes.serve(nodes)

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
        found = {**self._housekeeping.failing, **self.space.failing}
        for name, space in self.further.items():
            found.update({f"{part} of space {name}": kind for part, kind in space.failing.items()})
        return found

    # --- address spaces ---------------------------------------------------------------------------------------

    def _make_gate(self, space: str, mode: AuthenticationMode) -> Authenticator:
        """Make the authenticator of one space."""
        worker = self._verification.worker_of(space)
        return Authenticator(mode, worker=worker, clock=self._loop.time, refusals=self.refusals)

    def _make_closed_space(self) -> ClosedSpace:
        """Make what refuses the clients of spaces that are not served."""
        gate = self._make_gate(_CLOSED, AuthenticationMode.STANDARD)
        return ClosedSpace(gate, self.space.refusing_mqtt(self.configuration.limits, self.tracer, gate))

    def make_space(self, configuration: BrokerConfiguration, store: Store) -> ServedSpace:
        """Make a further address space, which no client can choose before `admit_space`. The caller makes the store,
        and closes it after `remove_space` or `stop`."""
        space: ServedSpace
        pool = self.admission.add_space(configuration.space)
        try:
            space = ServedSpace(
                configuration,
                store,
                self._make_gate(configuration.space, configuration.authentication),
                lambda: self._drivers_of(space),
                self.tracer,
                pool=pool,
                clock_good=self._clock_good,
                network=NetworkFigures,  # those of the process would tell about other spaces
                certificates=False,
            )
        except BaseException:
            self.admission.remove_space(pool)
            raise
        return space

    def admit_space(self, space: ServedSpace) -> None:
        """Let clients choose a further address space. Its users must be loaded."""
        self.further[space.name] = space
        self._follow_spaces()

    async def remove_space(self, space: ServedSpace) -> None:
        """End the connections of a further space, and no longer serve it. Its messages are on disk."""
        if self.further.get(space.name) is space:
            del self.further[space.name]
            self._follow_spaces()
        space.disconnect_clients()
        await asyncio.sleep(0)  # DISCONNECT and close are written at the end of this turn of the loop
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                while open_drivers := list(self._drivers_of(space)):
                    for driver in open_drivers:
                        driver.abort()
                    await asyncio.sleep(0)
        space.finish()
        self.admission.remove_space(space.pool)

    def reconfigure_space(self, space: ServedSpace, configuration: BrokerConfiguration) -> None:
        """Apply a changed configuration of a further space."""
        space.reconfigure(configuration)
        self._follow_spaces()

    def _follow_spaces(self) -> None:
        """Let new connections choose among the present spaces, which share the memory for slow subscribers equally.
        Server names are read only while one can name a space: Python fails a handshake with a name beyond ASCII."""
        configured = (host for each in self.configuration.spaces for host in each.hosts)
        self._hosts.follow(self.further.values(), configured)
        self.listeners.note_server_names(self._hosts.note_server_name if self._hosts.shared else None)
        for space in self.spaces:
            space.router.pool.bytes_max = self._subscribers_bytes_max // len(self.spaces)

    def _tick_spaces(self) -> None:
        for space in self.spaces:
            space.tick()
        self._hosts.tick()

    def _count_for(self, driver: ConnectionDriver, space: ServedSpace) -> None:
        self.admission.choose(driver, space.pool)

    def _drivers_of(self, space: ServedSpace) -> Iterator[ConnectionDriver]:
        """Return the connections of a space; all of them while there is only one."""
        drivers = self.listeners.drivers()
        return drivers if space is self.space and not self.further else filter(space.serves, drivers)


def _site(configuration: BrokerConfiguration) -> Site:
    endpoints = [listener.endpoint for listener in configuration.listeners if listener.web]
    return Site(
        [endpoint.host for endpoint in endpoints],
        exposed=not all(endpoint.loopback for endpoint in endpoints),
        machine=socket.gethostname(),
        listed=configuration.host_names,
    )
