"""World of one run and its phases: work under faults, healing, becoming idle."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random

import msgspec

from edge.broker.router.commands.addresses import PLAIN
from tests.simulation.clients import Fault as ClientFault
from tests.simulation.clients import LiveConsumer, RouterConsumer, RouterOrigin
from tests.simulation.commands import Application, CommandTable, simulated_commands
from tests.simulation.desired import Operator, VersionsDatabase, simulated_configurations, verified
from tests.simulation.devices import Device
from tests.simulation.enrolment import Admission, simulated_certificates
from tests.simulation.environment import simulated
from tests.simulation.far_side import FarSide
from tests.simulation.gateway import ALWAYS, ANSWERS, BURST, DEVICE, FORWARDERS, QUEUES, TOPICS, Gateway
from tests.simulation.history import History
from tests.simulation.hub import Hub
from tests.simulation.lake import SimulatedLake, simulated_rows
from tests.simulation.medium import Card
from tests.simulation.nemesis import KNOWN, WEIGHTS, Fault, Nemesis, schedule
from tests.simulation.network import Network
from tests.simulation.registry import Database
from tests.simulation.scheduler import Process, Scheduler

REST_S = 60.0
"""Virtual time within which everything has to become idle after the last fault."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a run; together with the seed they determine it."""

    span_s: float = 0.7
    """Time during which clients send and the nemesis strikes."""
    faults: int = 4
    steps_max: int = 200_000
    kinds: tuple[str, ...] = tuple(kind for kind in WEIGHTS if kind not in KNOWN)


class World:
    """World of one run. Create and run it inside `environment.simulated`."""

    def __init__(self, seed: int, options: Options) -> None:
        self.scheduler = Scheduler()
        self.history = History(self.scheduler)
        self.scheduler.switched = self._switched
        self.scheduler.raised = self._raised
        self.options = options
        self.outside = Process("outside")
        self.errors: list[BaseException] = []
        """Exceptions that callbacks raised, other than those of faulty clients."""
        self._seed = seed
        self._served: set[str] = set()
        """Names of cursors that have a consumer to the end."""
        self.network = Network(self.scheduler, self._random("network"))
        self.medium = Card(self.scheduler, self.history, self._random("medium"))
        draw = self._random("renewal").random
        self.gateway = Gateway(self.scheduler, self.network, self.medium, self.history, draw, verified)
        self.lake = SimulatedLake(self.history)
        self.database = Database(self._random("registry"))
        self.versions = VersionsDatabase(self.database)
        self.operator = Operator(self.scheduler, self.versions, self.history)
        self.commands = CommandTable(self.database, self.history)
        self.hub = Hub(
            self.scheduler, self.network, self.lake, self.database, self.commands, self.history, self._random("hub")
        )
        self.origins = [
            RouterOrigin(name, self.gateway, self.history, self._random(name), (*TOPICS, *QUEUES))
            for name in ("o1", "o2")
        ]
        self.origins.append(RouterOrigin("o3", self.gateway, self.history, self._random("o3"), [BURST]))
        self.consumers = [
            self._consumer("q1", "work/#", None),
            self._consumer("q2", "work/#", None),
            self._consumer("valve", PLAIN.queue(DEVICE), None),
            self._consumer("d1", "plant/#", "durable"),
            self._consumer("d2", "burst/#", "slow"),
        ]
        self.consumers[-1].settle_s = 0.2
        self.live = LiveConsumer(self.gateway, self.history)
        self.devices = [
            self._device("m1", version=5, qos=1, publishes=TOPICS),
            self._device("m2", version=4, qos=2, publishes=(*TOPICS, *QUEUES)),
            self._device("s1", version=5, qos=1, subscribes="plant/a/#"),
            self._device("s2", version=4, qos=2, subscribes="plant/#"),
        ]
        self.admission = Admission(
            self.scheduler, self.network, self.database, self.hub, self.history, self._random("enrolment")
        )
        self.far = FarSide(self.scheduler, self.network, self.history, self._random("far"))
        self.application = Application(self.scheduler, self.commands, self._random("application"))
        self.nemesis = Nemesis(self)

    @property
    def producers(self) -> list[RouterOrigin | Device | FarSide | Application]:
        """Return all senders of messages."""
        return [*self.origins, *self.devices, self.far, self.application]

    @property
    def fallible(self) -> list[RouterOrigin | RouterConsumer | LiveConsumer]:
        """Return the clients that raise on request."""
        return [*self.origins, *self.consumers, self.live]

    def faults(self) -> list[Fault]:
        """Return the faults of this seed."""
        options = self.options
        return schedule(self._random("nemesis"), span_s=options.span_s, count=options.faults, kinds=options.kinds)

    def run(self, schedule: Sequence[Fault]) -> None:
        """Run from the first start until everything is idle."""
        self._name_subscriptions()
        self.hub.start()
        self.gateway.start()
        self.nemesis.begin(schedule)
        self._go_on(self.options.span_s)
        self.nemesis.heal()
        for producer in self.producers:
            producer.sending = False
        for consumer in self.consumers:
            consumer.accepts_all = True
        if self._come_to_rest(self._unrest):
            self.history.record("configured at last", self.operator.newest(), self.gateway.mark)
            self.gateway.state()
            self._come_to_rest(self._unstated)
            self.history.record("all stated")

    def _come_to_rest(self, unrest: Callable[[], str]) -> bool:
        """Continue until nothing is pending; return False when that takes too long."""
        rest_s = self.scheduler.now_s + REST_S
        quiet = 0
        while quiet < 2:
            if self.scheduler.now_s > rest_s:
                self.history.record("stuck", f"after {REST_S:g} s: {unrest()}")
                return False
            self._go_on(0.5)
            quiet = 0 if unrest() else quiet + 1
        return True

    def _unstated(self) -> str:
        """Describe the accepted messages that the hub does not know of; empty when it knows all."""
        manifests = self.gateway.manifests
        if manifests.stated_until is None:
            return "the hub takes no manifests"
        return f"{manifests.waiting} statements wait" if manifests.close_requested or manifests.waiting else ""

    def _name_subscriptions(self) -> None:
        names: dict[str, str | None] = {"queue": None, "durable": "plant/#", "slow": "burst/#"}
        names.update(
            (f"forwarder/hub/{name}", pattern) for name, pattern in {**ALWAYS, **FORWARDERS, **ANSWERS}.items()
        )
        for device in self.devices:
            if device.subscribes is not None:
                names[device.subscription] = device.subscribes
        self._served = {name for name in names if name.removeprefix("forwarder/hub/") not in FORWARDERS}
        for name, pattern in names.items():
            exactly_once = any(device.subscription == name and device.qos == 2 for device in self.devices)
            self.history.record("subscription", name, pattern, exactly_once)

    def _go_on(self, seconds: float) -> None:
        self.scheduler.run(self.scheduler.now_s + seconds, self.options.steps_max)

    def _unrest(self) -> str:
        """Describe what is pending; empty when nothing is."""
        waiting = [f"{p.name} waits for {p.waiting} answers" for p in self.producers if p.waiting]
        if not self.gateway.up:
            return "the gateway is down"
        store = self.gateway.store
        info = store.info()
        ends = {log.log: log.next for log in info.logs if not log.name.startswith("queue plant/")}
        behind = [
            f"{cursor.name} has {cursor.backlog} of log {cursor.log} to come"
            for cursor in info.cursors
            if cursor.log in ends and cursor.backlog and cursor.name in self._served
        ]
        return "; ".join([*waiting, *behind, *filter(None, [self.operator.unsettled])])

    def _consumer(self, name: str, address: str, durable: str | None) -> RouterConsumer:
        return RouterConsumer(name, self.gateway, self.history, self._random(name), address, durable)

    def _device(
        self, name: str, *, version: int, qos: int, publishes: Sequence[str] = (), subscribes: str | None = None
    ) -> Device:
        return Device(
            name,
            self.scheduler,
            self.network,
            self.history,
            self._random(name),
            version=version,
            qos=qos,
            publishes=publishes,
            subscribes=subscribes,
        )

    def _random(self, whose: str) -> Random:
        """Return a random stream for one part, so that a change to one part leaves the others unchanged."""
        return Random(f"{self._seed}/{whose}")

    def _switched(self, process: Process) -> None:
        asyncio._set_running_loop(process.loop)

    def _raised(self, process: Process, error: BaseException) -> None:
        if not isinstance(error, ClientFault):
            self.history.record("raised", process.name, repr(error))
            self.errors.append(error)


@contextmanager
def quiet() -> Iterator[None]:
    """Disable log lines and garbage collection, which would not depend on the seed."""
    logging.disable(logging.CRITICAL)
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        if collecting:
            gc.enable()


def simulate(seed: int, options: Options, schedule: Sequence[Fault] | None = None) -> World:
    """Simulate one run of one seed; a `schedule` replaces the faults of the seed."""
    running = asyncio._get_running_loop()
    with quiet():
        world = World(seed, options)
        with (
            simulated(world.scheduler, Random(f"{seed}/system")),
            simulated_rows(),
            simulated_certificates(world.admission),
            simulated_commands(),
            simulated_configurations(world.medium, world.versions, world.history),
        ):
            try:
                world.run(world.faults() if schedule is None else schedule)
            finally:
                for process in (world.gateway.process, world.hub.process, world.far.process):
                    if process.loop is not None:
                        process.loop.abandon()
                asyncio._set_running_loop(running)
    return world
