"""The hub: the real listener, intake, service, committer and landing over a simulated registry and lake."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any, cast

from bridge.downlink import Downlink
from bridge.engine import Engine
from bridge.hub_addresses import COMMANDS, DESIRED
from bridge.intake import Intake
from bridge.resources.endpoint import ListenEndpoint
from bridge.transport.driver import ConnectionDriver
from cloud.hub.acceptor import Acceptor
from cloud.hub.commands.service import HubCommands
from cloud.hub.committer import Committer
from cloud.hub.desired.service import DesiredConfigurations
from cloud.hub.enrolment.authority import Authority
from cloud.hub.enrolment.service import Enrolment
from cloud.hub.fleet import FleetState
from cloud.hub.lander import Lander
from cloud.hub.metrics import Metrics
from cloud.hub.peers import HubPeer, PeerKind
from cloud.hub.registry.registry import Registry
from cloud.hub.service import HubService
from cloud.lake.faults import RegistryError
from cloud.lake.lake import LandingLake
from cloud.lake.landing import Landing
from edge.broker.listeners.tcp import TcpListener
from edge.broker.security.authenticator import Authenticator
from tests.simulation.commands import CommandTable, commands_of_a_hub
from tests.simulation.desired import desired_of_a_hub
from tests.simulation.environment import wall_ns
from tests.simulation.gateway import HUB, STANDBY
from tests.simulation.history import History
from tests.simulation.lake import Killed, SimulatedLake
from tests.simulation.loop import SimulatedLoop
from tests.simulation.network import Network
from tests.simulation.registry import Database, SimulatedRegistry
from tests.simulation.scheduler import Process, Scheduler

GATHER_MS = 60
WRITE_BYTES_MAX = 1 << 20


class Hub:
    """Registry and lake, and the process that serves them while one exists."""

    def __init__(
        self,
        scheduler: Scheduler,
        network: Network,
        lake: SimulatedLake,
        database: Database,
        commands: CommandTable,
        history: History,
        random: Random,
    ) -> None:
        self.process = Process(HUB.host)
        self.process.alive = False
        self.committer: Committer
        self.work_s = 0.01
        """Mean duration of a landing."""
        self.killed_at: str | None = None
        """Step of the next landing after which the process is killed."""
        self.lake = lake
        self.database = database
        self._commands = commands
        self._scheduler = scheduler
        self._network = network
        self._history = history
        self._random = random
        self._starts = 0
        self._acceptor: Acceptor | None = None

    @property
    def up(self) -> bool:
        """Return whether the hub serves."""
        return self.process.alive

    def start(self) -> None:
        """Open registry and lake, and serve, unless the hub serves already."""
        if not self.up:
            self.process = Process(HUB.host)
            loop = SimulatedLoop(self._scheduler, self.process, self._network)
            loop.work_s = lambda: self.work_s * (0.5 + self._random.random())
            loop.call_soon(self._serve, loop)

    def _serve(self, loop: SimulatedLoop) -> None:
        endpoint = (HUB, STANDBY)[self._starts % 2]
        self._starts += 1
        self._history.record("start", endpoint.host)
        registry = SimulatedRegistry(self.database)
        try:
            self.lake.failpoint = self._failpoint
            landing = Landing(cast(LandingLake, self.lake), registry.commits, failpoint=self._failpoint)
        except Exception as error:
            self._cannot_start(error)
            return
        self.committer = Committer(
            Lander(cast(Registry, registry), landing, clock=loop.time),
            loop=cast(asyncio.AbstractEventLoop, loop),
            executor=cast(Executor, None),
            now_us=lambda: wall_ns(self._scheduler) // 1_000,
            gather_ms=GATHER_MS,
        )
        metrics = cast(Metrics, SimpleNamespace(landing_seconds=SimpleNamespace(observe=lambda _s: None)))
        commands = commands_of_a_hub(self._scheduler, self._commands)
        desired = desired_of_a_hub(self._scheduler)
        service = HubService(
            FleetState(versions=landing.versions),
            self.committer,
            metrics,
            now_us=lambda: wall_ns(self._scheduler) // 1_000,
            clock=loop.time,
            hear=commands.handle_batch,
            configured=desired.reported,
        )
        loop.create_task(self._listen(service, commands, desired, endpoint))

    async def _listen(
        self, service: HubService, commands: HubCommands, desired: DesiredConfigurations, endpoint: ListenEndpoint
    ) -> None:
        """Serve accepted connections, as `cloud.hub.server` does."""

        def serve(peer: HubPeer, engine: Engine, driver: ConnectionDriver, _credentials: object) -> Intake:
            downlink = Downlink((peer.tenant, peer.name), {COMMANDS: commands.dispatch, DESIRED: desired})
            made = Intake(engine, service, driver, gateway=peer.name, downlink=downlink)
            service.register_peer(made, peer.tenant, driver.peername)
            return made

        gate = cast(Authenticator, SimpleNamespace(passwords=False, tokens=False))
        self._acceptor = acceptor = Acceptor(gate, {PeerKind.GATEWAY: serve}, dev=False)
        acceptor.authority = enrolment = Enrolment(
            cast(Authority, None),
            cast(Any, self.database),
            life_s=0.0,
            revoked=acceptor.review,
            now=lambda: wall_ns(self._scheduler) / 1e9,
        )
        try:
            await enrolment.open()
            await desired.open()
            await commands.open()
        except RegistryError as error:
            self._cannot_start(error)
            return
        await TcpListener("amqp", lambda gone, _: _driver(acceptor, gone)).start(endpoint.host, endpoint.port)

    def _cannot_start(self, error: Exception) -> None:
        """End the process, as the program does, and start it again."""
        self._history.record("cannot start", HUB.host, repr(error))
        self.process.alive = False
        self.process.loop.abandon()
        self._scheduler.after(0.3, Process("outside"), self.start)

    @property
    def let_in(self) -> list[str]:
        """Return the serial numbers of the certificates of connected gateways."""
        if not self.up or self._acceptor is None:
            return []
        shown = [visitor._certified for visitor in self._acceptor.admitted.values() if not visitor._leaving]
        return [f"{one.serial:x}" for one in shown if one is not None]

    def kill(self, *, power: bool) -> None:
        """End the process where it is."""
        if self.up:
            self._history.record("hub power cut" if power else "hub kill", HUB.host)
            self.process.alive = False
            self.process.loop.abandon()
            self._network.died(self.process)
            self.lake.power_cut(keep=not power or self._random.random() < 0.5)

    def _failpoint(self, step: str) -> None:
        if step == self.killed_at:
            self.killed_at = None
            self.kill(power=self._random.random() < 0.5)
            self._scheduler.after(0.2, Process("outside"), self.start)
            raise Killed(step)


def _driver(acceptor: Acceptor, gone: Callable[[ConnectionDriver], None]) -> ConnectionDriver:
    """Return a driver like that of `cloud.hub.connections`."""
    visitor = acceptor.new_connection()

    def over(driver: ConnectionDriver) -> None:
        acceptor.remove(driver)
        gone(driver)

    engine = Engine(
        container_id="waypost-hub",
        server=True,
        sasl=visitor.sasl,
        idle_timeout_s=4.0,
        now=asyncio.get_running_loop().time(),
    )

    return ConnectionDriver(engine, partial(visitor.arrive, engine), write_bytes_max=WRITE_BYTES_MAX, gone=over)
