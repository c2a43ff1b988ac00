"""Broker: store, router, sessions and listeners on one event loop.

It owns the connections between them, and the housekeeping tick. It knows no file and no command line.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from bridge.engine.loops import LOOPS
from bridge.transport.driver import ConnectionDriver
from bridge.transport.ready import sockets_of
from edge.broker.amqp.administration import Administration
from edge.broker.amqp.arrivals import AmqpLanes
from edge.broker.amqp.containers import ObservedConnection
from edge.broker.amqp.interception import NO_INTERCEPTION, LinkInterception
from edge.broker.configuration import BrokerConfiguration, DeviceApiConfiguration, Protocol
from edge.broker.limits import TICK_S
from edge.broker.listeners.admission import Admission
from edge.broker.listeners.amqp import AmqpDrivers
from edge.broker.listeners.listeners import BrokerListeners
from edge.broker.listeners.mqtt import MqttDrivers
from edge.broker.listeners.resident_memory import resident_bytes
from edge.broker.message.mqtt_reason_codes import ReasonCode
from edge.broker.message.mqtt_translator import MqttTranslator
from edge.broker.model.addresses import AddressTable
from edge.broker.model.budget import Budget
from edge.broker.model.housekeeping import Housekeeping
from edge.broker.model.refusals import RefusalJournal
from edge.broker.mqtt import interception as mqtt_interception
from edge.broker.mqtt.arrivals import MqttLanes
from edge.broker.mqtt.figures import NetworkFigures
from edge.broker.mqtt.overlap import merge_live
from edge.broker.mqtt.session_registry import SessionRegistry
from edge.broker.router.router import Router
from edge.broker.security.authenticator import Authenticator
from edge.broker.security.site import Site
from edge.broker.security.verification_threads import VerificationThreads
from edge.broker.space import Space
from edge.broker.store.contract import SmallState, Store
from edge.broker.tracing.tracer import PacketTracer

if TYPE_CHECKING:
    from edge.broker.hono.service import DeviceService


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
        self._space = Space(
            store,
            AddressTable(configuration.rules, configuration.default_rule),
            self._drivers,
            policies=configuration.policies,
            quota_bytes=configuration.quota_bytes,
            limits=configuration.limits,
            clock_good=clock_good,
            merge_live=merge_live,
        )
        self.router = self._space.router
        api = configuration.device_api
        self.devices = _device_service(api, self.router, store.state) if api is not None else None
        """Device API; None if the space has none."""
        self.mqtt_sessions = SessionRegistry(
            self.router,
            store,
            MqttTranslator(),
            legacy_dollar_topics=configuration.legacy_dollar_topics,
            network=self._network,
        )
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
        self._arrivals = MqttLanes(self.router, self._loop)
        self.tracer = PacketTracer(self._drivers, self.gate, loop=self._loop)
        """Shows packets of connections to operators who trace them."""
        self.listeners = self._make_listeners(administration)
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
        self._space.stop()
        for session in self.mqtt_sessions.attached():
            session.connection.disconnect(ReasonCode.SERVER_SHUTTING_DOWN)
            session.flush_soon()
        self._amqp.shut_down(self.listeners.drivers())
        await asyncio.sleep(0)  # DISCONNECT and close are written at the end of this turn of the loop
        await self.listeners.stop()
        self.router.wills.finish()
        self._arrivals.close()
        self.tracer.close()
        self._threads.stop()

    def reconfigure(self, configuration: BrokerConfiguration) -> None:
        """Apply the `Live` settings of a new configuration; all others have to be unchanged."""
        self.configuration = configuration
        self.mqtt_sessions.match_dollar_topics(legacy=configuration.legacy_dollar_topics)
        self._amqp.rename(_container_id(configuration))
        self.router.quotas.bound_space(configuration.quota_bytes)
        self.listeners.follow(configuration)
        if self.gate.mode is not configuration.authentication:
            self.gate.change_mode(configuration.authentication)
            for driver in list(self.listeners.drivers()):
                driver.abort()  # clients authenticate again, by the new rules
        api = configuration.device_api
        if self.devices is not None and api is not None and api.tenant == self.devices.tenant.name:
            self.devices.update(api)
        self.router.reconfigure(AddressTable(configuration.rules, configuration.default_rule), configuration.policies)

    @property
    def amqp_connections(self) -> Mapping[int, ObservedConnection]:
        """Open AMQP connections by number, the oldest first."""
        return self._amqp.connections

    def serve_own_topics(self, own: mqtt_interception.OwnTopics | None) -> None:
        """Answer these topics of MQTT from now on; None: none. Clients of the device API do not get them."""
        self._mqtt.serve_own_topics(own)

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

    # --- connections ------------------------------------------------------------------------------------------

    def _make_listeners(self, administration: Administration | None) -> BrokerListeners:
        limits, gate, clock = self.configuration.limits, self.gate, self._loop.time
        for_mqtt = _mqtt_interception(self.devices)
        self._amqp = AmqpDrivers(
            limits,
            _container_id(self.configuration),
            self.router,
            gate,
            _amqp_interception(self.devices),
            administration,
            clock,
            AmqpLanes(LOOPS, self.router),
            self.tracer,
        )
        self._mqtt = MqttDrivers(
            limits,
            self.router,
            self.mqtt_sessions,
            gate,
            for_mqtt,
            clock,
            self._arrivals,
            self.tracer,
            self.refusals,
        )
        return BrokerListeners(
            self.configuration,
            {
                Protocol.MQTT: self._mqtt,
                Protocol.AMQP: self._amqp,
            },
            self.site,
            lambda: not gate.open,
            self.admission,
            self.tracer,
            self.refusals,
        )


def _container_id(configuration: BrokerConfiguration) -> str:
    return configuration.gateway or "waypost"


def _site(configuration: BrokerConfiguration) -> Site:
    endpoints = [listener.endpoint for listener in configuration.listeners if listener.web]
    return Site(
        [endpoint.host for endpoint in endpoints],
        exposed=not all(endpoint.loopback for endpoint in endpoints),
        machine=socket.gethostname(),
        listed=configuration.host_names,
    )


def _device_service(api: DeviceApiConfiguration, router: Router, state: SmallState) -> DeviceService:
    """Load the device API, for a space that has it."""
    from edge.broker.hono.service import DeviceService  # noqa: PLC0415

    return DeviceService(api, router, state)


def _mqtt_interception(devices: DeviceService | None) -> mqtt_interception.Interception:
    """Return the interception of MQTT clients by the device API, which is loaded only for a space that has it."""
    if devices is None:
        return mqtt_interception.NO_INTERCEPTION
    from edge.broker.hono.mqtt import DeviceInterception  # noqa: PLC0415

    return DeviceInterception(devices)


def _amqp_interception(devices: DeviceService | None) -> LinkInterception:
    """Return the interception of AMQP links, likewise."""
    if devices is None:
        return NO_INTERCEPTION
    from edge.broker.hono.amqp import DeviceLinkInterception  # noqa: PLC0415

    return DeviceLinkInterception(devices)
