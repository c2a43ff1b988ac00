"""The gateway: the real broker (listeners, drivers, sessions, router, uplinks) over the store on a simulated medium."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from bridge.desired import SignedDesired, VerifiedDesired
from bridge.proxy import PeerRoute
from bridge.resources.endpoint import ListenEndpoint
from bridge.resources.resource import Resource
from edge.appliance.identity.location import identity_file
from edge.appliance.identity.renewal import Renewal
from edge.appliance.update.following import SystemFollower
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
from edge.broker.router.connector_uplink import ConnectorUplink
from edge.broker.router.uplinks import AnyConnector, Uplinks
from edge.broker.server import Broker
from edge.broker.store.engine import StoreEngine
from edge.configuration.effective import build_configuration
from edge.configuration.file import RepositoryError
from edge.configuration.following import AppliedConfiguration, ConfigurationFollower
from edge.configuration.options import RunOptions
from edge.configuration.trials import Trials, count_start, roll_back_start
from tests.simulation.environment import wall_ns
from tests.simulation.history import History
from tests.simulation.loop import SimulatedLoop
from tests.simulation.medium import Card, CardMedium, open_store
from tests.simulation.network import Network
from tests.simulation.scheduler import Process, Scheduler

NAME = "gw"
LOOK_S = 0.5
"""Interval in which the connectors check whether an hour of manifests is over."""
MQTT = ListenEndpoint(NAME, 1883)
HUB = ListenEndpoint("hub", 5672)
WAYS = [PeerRoute(HUB)]
STANDBY = ListenEndpoint("standby", 5672)
HOSTS = tuple(EndpointHost(host=each.host, port=each.port) for each in (HUB, STANDBY))
"""Endpoints of the hub after every other start: it has moved to another machine."""

FAR_SIDE = ListenEndpoint("far", 5672)
"""Address of another vendor's broker."""
INCOMING = {"orders": "plant/b/2", "jobs": "work/3"}
"""Queues of that broker, and the addresses of the gateway for their messages."""

DEVICE = "valve"
"""Device that receives commands."""

TOPICS = ("plant/a/1", "plant/a/2", "plant/b/1")
QUEUES = ("work/1", "work/2")
BURST = "burst/1"
"""Topic with a small quota, which drops its oldest messages for new ones."""
SMALL = AddressPolicy(quota_bytes=60, when_full=WhenFull.DROP_OLDEST)
TAKING = Connector(
    name="far",
    type=ConnectorType.AMQP,
    hosts=(EndpointHost(host=FAR_SIDE.host, port=FAR_SIDE.port),),
    idle_timeout_s=4.0,
)
CERTIFIED = TlsFiles(ca="authority", certificate=str(identity_file(Path(NAME))), key="gateway")
"""TLS files towards the hub; `enrolment` provides the certificate."""
OPTIONS: Final = RunOptions(data=Path(NAME))
OWN: Final[list[dict[str, Any]]] = [
    {
        "apiVersion": "waypost/v1",
        "kind": "Gateway",
        "metadata": {"name": NAME},
        "spec": {"listeners": {"mqtt": str(MQTT)}, "hub": {"url": f"amqp://{HUB}"}},
    }
]
"""Configuration that the gateway has itself, within the part that its hub may decide."""
START_AGAIN_S: Final = 0.05
ALWAYS = {"plant": "plant/#", "burst": "burst/#"}
"""Filter of each forwarder that always exists, by name."""

ANSWERS = {"command receipts": "command-receipt/#", "command responses": "command-response/#"}
"""Forwarders of command outcomes, which need no configuration."""

FORWARDERS = {"a": "plant/a/#", "b": "plant/b/1"}
"""Filter of each forwarder that is added and removed, by name."""

OTHER_FILTERS = {"plant": "plant/+/#", "burst": "burst/+/#"}
"""Alternative filters that match the same messages: a forwarder with a changed filter keeps its pending messages."""


def configuration(
    rules: tuple[tuple[str, AddressType], ...] = (), forwarders: tuple[tuple[str, str], ...] = tuple(ALWAYS.items())
) -> BrokerConfiguration:
    """Return the configuration of every gateway with additional rules and these forwarders (name, filter)."""
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
                for name, pattern in forwarders
            ),
            *(
                Forwarder(name=name, filter=address, connector="far", remote_address=name, direction=Direction.IN)
                for name, address in INCOMING.items()
            ),
        ),
        limits=Limits(free_floor_bytes=0),
    )
    return with_commands(made, PLAIN)


def managed(resources: Sequence[Resource]) -> BrokerConfiguration:
    """Return the effect of these resources on a gateway, within the part that a version of its hub may decide."""
    return build_configuration(resources)


def with_managed(own: BrokerConfiguration, over: BrokerConfiguration) -> BrokerConfiguration:
    """Return the configuration in force: the hub's decisions over the gateway's own."""
    addresses = {each.rule.pattern: each for each in (*over.addresses, *own.addresses)}
    short = (msgspec.structs.replace(each, name=each.name.rpartition("/")[2]) for each in over.forwarders)
    forwarders = {each.name: each for each in (*short, *own.forwarders)}
    hosts = next(each.hosts for each in over.connectors if each.name == "hub")
    moved = [
        msgspec.structs.replace(each, hosts=hosts) if each.name == "hub" and hosts[0].host != HUB.host else each
        for each in own.connectors
    ]
    return msgspec.structs.replace(
        own, addresses=tuple(addresses.values()), forwarders=tuple(forwarders.values()), connectors=tuple(moved)
    )


class NoKey:
    """Signs manifests without a key: other tests check signatures."""

    public_key = "ed25519:"

    def sign(self, digest: str) -> str:
        return digest


class Gateway:
    """Data directory, and the process that serves it while one exists."""

    def __init__(
        self,
        scheduler: Scheduler,
        network: Network,
        medium: Card,
        history: History,
        draw: Callable[[], float],
        verify: Callable[[SignedDesired], VerifiedDesired],
    ) -> None:
        """Create the gateway. `verify` checks documents from the hub."""
        self.configuration = configuration()
        """Configuration of its own."""
        self.medium = medium
        self.process = Process(NAME)
        self.process.alive = False
        self.started: list[Callable[[], None]] = []
        """Called in the gateway's process when it serves."""
        self.broker: Broker
        self.store: StoreEngine[CardMedium]
        self.uplinks: Uplinks
        self._scheduler = scheduler
        self._network = network
        self._history = history
        self._draw = draw
        self._verify = verify
        self._clock_offset_ns = 0
        self._managed = BrokerConfiguration()
        """The hub's decisions, as they were last applied."""

    @property
    def up(self) -> bool:
        """Return whether the gateway serves."""
        return self.process.alive

    def start(self) -> None:
        """Open the store and serve, unless the gateway serves already."""
        if self.up:
            return
        self.process = process = Process(NAME)
        process.clock_offset_ns = self._clock_offset_ns
        loop = SimulatedLoop(self._scheduler, process, self._network)
        loop.work_s = lambda: self.medium.commit_s * 2 * self._draw()
        loop.call_soon(self._serve, loop)

    def _serve(self, loop: SimulatedLoop) -> None:
        self._history.record("start", NAME)
        try:
            count_start(OPTIONS)
            applied = AppliedConfiguration.read(OPTIONS)
            resources = applied.resources
            self._managed = managed(resources)
            if self._managed.endpoint("http") is not None and roll_back_start(OPTIONS, "the port is in use"):
                self._end_process()
                return
        except RepositoryError as error:
            self._history.record("cannot start", NAME, str(error))
            self._end_process()
            return
        self._history.record("followed", self.mark)
        self.store = open_store(self.medium, self.process, loop.call_soon_threadsafe)
        self.broker = Broker(self._in_force, self.store, resident=lambda: 0)
        following = ConfigurationFollower(OPTIONS, applied)
        trials = Trials(
            OPTIONS.data,
            following,
            certificate=identity_file(OPTIONS.data),
            verify=self._verify,
            system=SystemFollower(OPTIONS.data),
            restart=partial(loop.call_soon, self._again),
        )
        self.uplinks = Uplinks(self.broker.router, self.store, NoKey(), made=trials.bind)
        self.uplinks.configure(self._in_force)
        loop.create_task(self.broker.start())
        self.uplinks.start()
        appliance = _Followed(self)
        loop.create_task(following.watch(appliance, trials.send_report))
        trials.start(appliance)
        self._look(loop)
        Renewal(
            Path(NAME), lambda: WAYS, now=lambda: wall_ns(self._scheduler) / 1e9, clock=loop.time, draw=self._draw
        ).start()
        for tell in self.started:
            tell()

    @property
    def _in_force(self) -> BrokerConfiguration:
        return with_managed(self.configuration, self._managed)

    @property
    def mark(self) -> int:
        """Return the mark of the hub's version that the process applies, or 0 for none."""
        marks = [each.rule.pattern for each in self._managed.addresses if each.rule.pattern.startswith("unused/")]
        return int(marks[0].removeprefix("unused/")) if marks else 0

    def _again(self) -> None:
        """Restart the process in good order."""
        self._history.record("stop", NAME)
        self.store.close()
        self._end_process()

    def _end_process(self) -> None:
        """End the process; its supervisor starts it again."""
        self.process.alive = False
        self.process.loop.abandon()
        self._network.died(self.process)
        self._scheduler.after(START_AGAIN_S, Process("outside"), self.start)

    def _look(self, loop: SimulatedLoop) -> None:
        """Run the periodic work that the appliance does every few seconds."""
        self.manifests.poll(wall_ns(self._scheduler), clock_good=True)
        loop.call_later(LOOK_S, self._look, loop)

    def state(self) -> None:
        """Request a manifest of the accepted messages now."""
        if self.up:
            self._scheduler.enter(self.process)
            self.manifests.request_close()
            self.manifests.poll(wall_ns(self._scheduler), clock_good=True)

    @property
    def manifests(self) -> Manifests:
        """Return the manifests for the hub."""
        (found,) = [uplink.manifests for uplink in self.uplinks if isinstance(uplink, ConnectorUplink)]
        return found

    def kill(self, *, power: bool) -> None:
        """End the process where it is. With `power`, its clock may be wrong afterwards."""
        if not self.up:
            return
        self._history.record("power cut" if power else "kill", NAME)
        self.process.alive = False
        self.process.loop.abandon()
        self.medium.power_cut()
        self._network.died(self.process)

    def stop(self) -> None:
        """End the process in good order, at once."""
        if not self.up:
            return
        self._history.record("stop", NAME)
        self._scheduler.enter(self.process)
        self.store.close()
        self.process.alive = False
        self.process.loop.abandon()
        self._network.died(self.process)

    def reconfigure(self, wanted: BrokerConfiguration) -> None:
        """Apply a configuration as `waypost apply` does to a running gateway, or write it for a stopped one."""
        self.configuration = msgspec.structs.replace(wanted)
        if not self.up:
            return
        self._scheduler.enter(self.process)
        for uplink in self._configure():
            self.process.loop.create_task(uplink.dialer.close())

    async def follow(self, wanted: BrokerConfiguration) -> None:
        """Apply a new decision of the hub, as `edge.appliance.gateway` does."""
        self._managed = wanted
        self._history.record("followed", self.mark)
        for uplink in self._configure():
            await uplink.dialer.close()

    def _configure(self) -> list[AnyConnector]:
        """Apply the configuration; return the connectors that it no longer contains."""
        wanted = self._in_force
        self.broker.reconfigure(wanted)
        return self.uplinks.configure(wanted)

    def jump(self, offset_ns: int) -> None:
        """Set the wall clock."""
        self._clock_offset_ns = self.process.clock_offset_ns = offset_ns


class _Followed:
    """The gateway in the form that `edge.configuration.following` uses."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def reconfigure(self, wanted: BrokerConfiguration) -> None:
        await self._gateway.follow(wanted)
