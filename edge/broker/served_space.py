"""One address space with what serves its clients: sessions, device API, and the drivers of their connections.

It owns no socket and no listener: `edge.broker.server` gives it connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from bridge.engine.loops import LOOPS
from bridge.transport.driver import ConnectionDriver
from edge.broker.amqp.administration import Administration
from edge.broker.amqp.arrivals import AmqpLanes
from edge.broker.amqp.interception import LinkInterception, OwnNodes
from edge.broker.amqp.session import AmqpSession
from edge.broker.configuration import BrokerConfiguration, DeviceApiConfiguration, Protocol
from edge.broker.limits import Limits
from edge.broker.listeners.amqp import AmqpDrivers
from edge.broker.listeners.listeners import Drivers
from edge.broker.listeners.mqtt import MqttDrivers
from edge.broker.message.mqtt_reason_codes import ReasonCode
from edge.broker.message.mqtt_translator import MqttTranslator
from edge.broker.model.addresses import AddressTable
from edge.broker.model.budget import SpacePool
from edge.broker.model.housekeeping import Housekeeping
from edge.broker.model.tracing import Tracer
from edge.broker.mqtt import interception as mqtt_interception
from edge.broker.mqtt.arrivals import MqttLanes
from edge.broker.mqtt.figures import NetworkFigures
from edge.broker.mqtt.handler import ConnectionHandler, router_of
from edge.broker.mqtt.overlap import merge_live
from edge.broker.mqtt.session_registry import SessionRegistry
from edge.broker.router.router import Router
from edge.broker.security.authenticator import Authenticator
from edge.broker.space import Space
from edge.broker.store.contract import SmallState, Store

if TYPE_CHECKING:
    from edge.broker.hono.service import DeviceService

ListDrivers = Callable[[], Iterable[ConnectionDriver]]
"""Returns the drivers of the connections of a space."""


class ServedSpace:
    """Made inside a running loop. The caller makes the store, and closes it after `finish`."""

    def __init__(
        self,
        configuration: BrokerConfiguration,
        store: Store,
        gate: Authenticator,
        drivers: ListDrivers,
        tracer: Tracer,
        *,
        pool: SpacePool,
        clock_good: Callable[[], bool],
        network: Callable[[], NetworkFigures],
        administration: Administration | None = None,
        certificates: bool = True,
    ) -> None:
        """`gate` authenticates the clients of this space. `drivers` returns their connections, `pool` counts their
        memory. `network` returns figures for ``$SYS``. `administration`: see `edge.broker.server.Broker`.
        `certificates`: a verified client certificate authenticates its client."""
        self._loop = loop = asyncio.get_running_loop()
        limits = configuration.limits
        self.name: Final = configuration.space
        self.hosts = configuration.hosts
        """Names of hosts by which clients choose this space."""
        self.pool: Final = pool
        self.gate = gate
        self._drivers = drivers
        self._space = Space(
            store,
            AddressTable(configuration.rules, configuration.default_rule),
            drivers,
            policies=configuration.policies,
            quota_bytes=configuration.quota_bytes,
            limits=limits,
            clock_good=clock_good,
            merge_live=merge_live,
            links_routers=not configuration.hosts,  # a tenant's space is none: a gateway has one name in its network
            tracer=tracer,
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
            network=network,
        )
        self._arrivals = MqttLanes(self.router, loop)
        self.own_nodes: Final = OwnNodes()
        """Nodes of AMQP that the gateway itself serves; clients of the device API do not get them."""
        self.amqp = self._make_amqp(configuration, tracer, administration)
        self.mqtt = self._make_mqtt(limits, tracer, gate, _mqtt_interception(self.devices), certificates=certificates)
        self._housekeeping = Housekeeping(
            (
                ("sessions", lambda: self.mqtt_sessions.tick(self._loop.time())),
                ("router", self.router.tick),
                ("credentials that expire", gate.expire),
            )
        )

    def _make_amqp(
        self, configuration: BrokerConfiguration, tracer: Tracer, administration: Administration | None
    ) -> AmqpDrivers:
        return AmqpDrivers(
            configuration.limits,
            _container_id(configuration),
            self.router,
            self.gate,
            _amqp_interception(self.devices, self.own_nodes),
            administration,
            self._loop.time,
            AmqpLanes(LOOPS, self.router),
            tracer,
        )

    def _make_mqtt(
        self,
        limits: Limits,
        tracer: Tracer,
        gate: Authenticator,
        interception: mqtt_interception.Interception,
        *,
        certificates: bool,
    ) -> MqttDrivers:
        return MqttDrivers(
            limits,
            self.router,
            self.mqtt_sessions,
            gate,
            interception,
            self._loop.time,
            self._arrivals,
            tracer,
            gate.refusals,
            certificates=certificates,
        )

    def refusing_mqtt(self, limits: Limits, tracer: Tracer, gate: Authenticator) -> MqttDrivers:
        """Make the drivers of connections that this gate refuses, as it knows no user."""
        return self._make_mqtt(limits, tracer, gate, mqtt_interception.NO_INTERCEPTION, certificates=False)

    def serves(self, driver: ConnectionDriver) -> bool:
        """Return True for a connection of this space."""
        owner = driver.owner
        if isinstance(owner, ConnectionHandler):
            return router_of(owner) is self.router
        return isinstance(owner, AmqpSession) and owner.router is self.router

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return sum(1 for _ in self._drivers())

    @property
    def protocols(self) -> Mapping[Protocol, Drivers]:
        """Drivers of connections by protocol."""
        return {Protocol.MQTT: self.mqtt, Protocol.AMQP: self.amqp}

    def reconfigure(self, configuration: BrokerConfiguration) -> None:
        """Apply the `Live` settings of a new configuration."""
        self.hosts = configuration.hosts
        self.mqtt_sessions.match_dollar_topics(legacy=configuration.legacy_dollar_topics)
        self.amqp.rename(_container_id(configuration))
        self.router.quotas.bound_space(configuration.quota_bytes)
        if self.gate.mode is not configuration.authentication:
            self.gate.change_mode(configuration.authentication)
            for driver in list(self._drivers()):
                driver.abort()  # clients authenticate again, by the new rules
        api = configuration.device_api
        if self.devices is not None and api is not None and api.tenant == self.devices.tenant.name:
            self.devices.update(api)
        self.router.reconfigure(AddressTable(configuration.rules, configuration.default_rule), configuration.policies)

    def tick(self) -> None:
        """Do the housekeeping that is due; called by the owner's timer. A failing part does not stop the others."""
        self._housekeeping.run()

    @property
    def failing(self) -> Mapping[str, str]:
        """Parts of the housekeeping that fail, with the type of their exception."""
        return {**self._housekeeping.failing, **self.router.housekeeping.failing}

    def disconnect_clients(self) -> None:
        """Stop commits of its own, and send each client the end of its connection, in this turn of the loop."""
        self._space.stop()
        for session in self.mqtt_sessions.attached():
            session.connection.disconnect(ReasonCode.SERVER_SHUTTING_DOWN)
            session.flush_soon()
        self.amqp.shut_down(self._drivers())

    def finish(self) -> None:
        """Store the last wills, after the end of all connections."""
        self.router.wills.finish()
        self._arrivals.close()


def _container_id(configuration: BrokerConfiguration) -> str:
    return configuration.gateway or "waypost"


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


def _amqp_interception(devices: DeviceService | None, own_nodes: OwnNodes) -> LinkInterception:
    """Return the interception of AMQP links, likewise."""
    if devices is None:
        return own_nodes
    from edge.broker.hono.amqp import DeviceLinkInterception  # noqa: PLC0415

    return DeviceLinkInterception(devices)
