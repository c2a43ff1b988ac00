"""The gateway: the real broker (listeners, drivers, sessions, router, uplinks) over the store on a simulated medium."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from bridge.proxy import Way
from bridge.resources.endpoint import Endpoint
from edge.appliance.identity.renewal import Renewal
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
    TlsFiles,
)
from edge.broker.limits import Limits
from edge.broker.model.address_policy import AddressPolicy, WhenFull
from edge.broker.model.addresses import AddressRule, AddressType
from edge.broker.retention.manifests import Manifests
from edge.broker.router.commands.addresses import PLAIN, with_commands
from edge.broker.router.uplinks import ConnectorUplink, Uplinks
from edge.broker.server import Broker
from edge.broker.store.engine import StoreEngine
from tests.simulation.environment import wall_ns
from tests.simulation.history import History
from tests.simulation.loop import SimulatedLoop
from tests.simulation.medium import Card, CardMedium, open_store
from tests.simulation.network import Network
from tests.simulation.scheduler import Process, Scheduler

NAME = "gw"
LOOK_S = 0.5
"""How often the connectors look whether an hour of manifests is over."""
MQTT = Endpoint(NAME, 1883)
HUB = Endpoint("hub", 5672)
WAYS = [Way(HUB)]
STANDBY = Endpoint("standby", 5672)
HOSTS = tuple(EndpointHost(host=each.host, port=each.port) for each in (HUB, STANDBY))
"""Where the hub is after every other start: it has moved to another machine."""

FAR_SIDE = Endpoint("far", 5672)
"""A broker of somebody else's."""
INCOMING = {"orders": "plant/b/2", "jobs": "work/3"}
"""Its queues, and where the gateway puts what is in them."""

DEVICE = "valve"
"""It is sent commands."""

TOPICS = ("plant/a/1", "plant/a/2", "plant/b/1")
QUEUES = ("work/1", "work/2")
BURST = "burst/1"
"""A topic that keeps little, and gives up its oldest messages for new ones."""
SMALL = AddressPolicy(quota_bytes=60, when_full=WhenFull.DROP_OLDEST)
TAKING = Connector(
    name="far",
    type=ConnectorType.AMQP,
    hosts=(EndpointHost(host=FAR_SIDE.host, port=FAR_SIDE.port),),
    idle_timeout_s=4.0,
)
CERTIFIED = TlsFiles(ca="authority", certificate="gateway", key="gateway")
"""Towards the hub; what it has is `enrolment`'s."""
ALWAYS = {"plant": "plant/#", "burst": "burst/#"}
"""Forwarders that are always there: name -> filter."""

ANSWERS = {"command receipts": "command-receipt/#", "command responses": "command-response/#"}
"""Forwarders that nobody configures, of what becomes of commands."""

FORWARDERS = {"a": "plant/a/#", "b": "plant/b/1"}
"""Those that come and go: name -> filter."""


def configuration(
    rules: tuple[tuple[str, AddressType], ...] = (), forwarders: tuple[tuple[str, str], ...] = ()
) -> BrokerConfiguration:
    """What every gateway has, with more rules and forwarders (name, filter)."""
    base = (("plant/#", AddressType.TOPIC), ("work/#", AddressType.QUEUE))
    types = dict((*base, *rules))
    small = AddressConfiguration(AddressRule("burst/#", AddressType.TOPIC), SMALL)
    made = BrokerConfiguration(
        gateway=NAME,
        addresses=(*(AddressConfiguration(AddressRule(pattern, kind)) for pattern, kind in types.items()), small),
        listeners=(Listener(Protocol.MQTT, MQTT),),
        connectors=(Connector(name="hub", hosts=HOSTS, idle_timeout_s=4.0, tls=CERTIFIED), TAKING),
        forwarders=(
            *(
                Forwarder(name=name, filter=pattern, connector="hub", remote_address=pattern)
                for name, pattern in (*ALWAYS.items(), *forwarders)
            ),
            *(
                Forwarder(name=name, filter=address, connector="far", remote_address=name, direction=Direction.IN)
                for name, address in INCOMING.items()
            ),
        ),
        limits=Limits(free_floor_bytes=0),
    )
    return with_commands(made, PLAIN)


class NoKey:
    """Signs manifests: what they say is looked at elsewhere."""

    public_key = "ed25519:"

    def sign(self, digest: str) -> str:
        return digest


class Gateway:
    """One data directory, and the process that serves it while there is one."""

    def __init__(
        self, scheduler: Scheduler, network: Network, medium: Card, history: History, draw: Callable[[], float]
    ) -> None:
        self.configuration = configuration()
        self.medium = medium
        self.process = Process(NAME)
        self.process.alive = False
        self.started: list[Callable[[], None]] = []
        """Called in its process when it serves."""
        self.broker: Broker
        self.store: StoreEngine[CardMedium]
        self.uplinks: Uplinks
        self._scheduler = scheduler
        self._network = network
        self._history = history
        self._draw = draw
        self._clock_offset_ns = 0

    @property
    def up(self) -> bool:
        """It serves."""
        return self.process.alive

    def start(self) -> None:
        """Open the store and serve; nothing happens when it does already."""
        if self.up:
            return
        self.process = process = Process(NAME)
        process.clock_offset_ns = self._clock_offset_ns
        loop = SimulatedLoop(self._scheduler, process, self._network)
        loop.call_soon(self._serve, loop)

    def _serve(self, loop: SimulatedLoop) -> None:
        self._history.record("start", NAME)
        self.store = open_store(self.medium, self.process, loop.call_soon_threadsafe)
        self.broker = Broker(self.configuration, self.store, resident=lambda: 0)
        self.uplinks = Uplinks(self.broker.router, self.store, NoKey())
        self.uplinks.configure(self.configuration)
        loop.create_task(self.broker.start())
        self.uplinks.start()
        self._look(loop)
        Renewal(
            Path(NAME), lambda: WAYS, now=lambda: wall_ns(self._scheduler) / 1e9, clock=loop.time, draw=self._draw
        ).start()
        for tell in self.started:
            tell()

    def _look(self, loop: SimulatedLoop) -> None:
        """As the appliance does every few seconds."""
        self.manifests.look(wall_ns(self._scheduler), clock_good=True)
        loop.call_later(LOOK_S, self._look, loop)

    def state(self) -> None:
        """Somebody wants a manifest of what was accepted, now."""
        if self.up:
            self._scheduler.enter(self.process)
            self.manifests.ask()
            self.manifests.look(wall_ns(self._scheduler), clock_good=True)

    @property
    def manifests(self) -> Manifests:
        """Those of the hub."""
        (found,) = [uplink.manifests for uplink in self.uplinks if isinstance(uplink, ConnectorUplink)]
        return found

    def kill(self, *, power: bool) -> None:
        """End the process where it is. With the power, its clock may be wrong afterwards."""
        if not self.up:
            return
        self._history.record("power cut" if power else "kill", NAME)
        self.process.alive = False
        self.process.loop.abandon()
        self.medium.power_cut()
        self._network.died(self.process)

    def stop(self) -> None:
        """End it in good order, at once."""
        if not self.up:
            return
        self._history.record("stop", NAME)
        self._scheduler.enter(self.process)
        self.store.close()
        self.process.alive = False
        self.process.loop.abandon()
        self._network.died(self.process)

    def reconfigure(self, wanted: BrokerConfiguration) -> None:
        """What `waypost apply` does to a running gateway, or writes for one that is down."""
        self.configuration = wanted = msgspec.structs.replace(wanted)
        if not self.up:
            return
        self._scheduler.enter(self.process)
        self.broker.reconfigure(wanted)
        for uplink in self.uplinks.configure(wanted):
            self.process.loop.create_task(uplink.dialer.close())

    def jump(self, offset_ns: int) -> None:
        """Its wall clock is set."""
        self._clock_offset_ns = self.process.clock_offset_ns = offset_ns
