"""Gateway of the fleet: its disk, and the process that follows its hub (`edge.configuration.trials`).

A version only decides whether the gateway reaches its hub; `tests.simulation.gateway` covers the rest of a gateway.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import msgspec

from bridge.command import read as read_command
from bridge.desired import DesiredReport
from bridge.forwarders.inbox import Incoming
from bridge.forwarders.outcome import ForwardOutcome
from bridge.hub_addresses import COMMANDS, DESIRED
from bridge.message import Run
from bridge.resources.resource import Resource
from cloud.hub.peers import DEFAULT_TENANT
from cloud.hub.registry.commands import CommandNews, CommandState
from edge.appliance.identity.location import identity_file
from edge.appliance.update.following import SystemFollower
from edge.broker.router.connector_uplink import ConnectorUplink
from edge.configuration.document_inbox import DocumentInbox
from edge.configuration.effective import build_configuration
from edge.configuration.following import AppliedConfiguration, ConfigurationFollower
from edge.configuration.options import OptionsRefused, RunOptions
from edge.configuration.trials import Trials, count_start
from tests.simulation.desired import verified
from tests.simulation.environment import wall_ns
from tests.simulation.gateway import OWN
from tests.simulation.history import History
from tests.simulation.loop import SimulatedLoop
from tests.simulation.scheduler import Process, Scheduler

if TYPE_CHECKING:
    from tests.simulation.fleet.hub import FleetHub
    from tests.simulation.fleet.wire import SimulatedLine, Wire

CONNECTS_S: Final = 0.25
"""Interval between attempts to reach the hub."""
WORKS_S: Final = 0.5
"""Time in which a device executes a command."""
COMMANDS_AT_ONCE: Final = 3
START_AGAIN_S: Final = 0.1


class Effective(NamedTuple):
    """Effect of resources on a machine."""

    mark: int
    cut_off: bool
    """The endpoint of the hub is wrong."""


class Disk:
    """State that survives; serves as a card for `tests.simulation.desired.CardFile`."""

    def __init__(self, machine: str, history: History) -> None:
        own = msgspec.json.encode({"format": 1, "version": 1, "resources": OWN})
        self.contents = SimpleNamespace(files={"resources.json": (0, own)})
        self.failure: Exception | None = None
        self.history = SimpleNamespace(record=lambda what, *fields: history.record(what, machine, *fields))
        self.commands: dict[str, bool] = {}
        """Commands in the device's queue, or done."""
        self.receipts: list[str] = []
        """Receipts of executed commands, until the hub has them."""


class Machine:
    """Gateway. The `key_id` of its certificates is its id."""

    def __init__(
        self, scheduler: Scheduler, hub: FleetHub, history: History, random: Random, life: str, *, delicate: bool
    ) -> None:
        """Create a machine. A `delicate` one refuses some versions that others accept."""
        self.id = life
        self.name = life.partition("#")[0]
        self.disk = Disk(life, history)
        self.serial = ""
        """Serial number of its certificate."""
        self.delicate = delicate
        self.apart = False
        """The network does not reach it."""
        self.in_force = Effective(0, cut_off=False)
        self.process = Process(life)
        self.process.alive = False
        self.options = RunOptions(data=Path(life))
        self._scheduler = scheduler
        self._hub = hub
        self._history = history
        self._random = random
        self._outside = Process(f"outside {life}")
        self._wire: Wire | None = None
        self._trials: Trials
        self._inbox: DocumentInbox
        self._reports: _Reports
        self._lines: dict[str, SimulatedLine] = {}
        self._received: dict[str, int] = {}

    @property
    def up(self) -> bool:
        return self.process.alive

    @property
    def linked(self) -> bool:
        return self.up and self._wire is not None

    def start(self) -> None:
        """Start, unless it runs already."""
        if self.up:
            return
        self.process = Process(self.id)
        loop = SimulatedLoop(self._scheduler, self.process, cast(Any, None))
        loop.work_s = lambda: 0.02 * self._random.random()
        loop.call_soon(self._serve, loop)

    def kill(self) -> None:
        if self.up:
            self.process.alive = False
            self.process.loop.abandon()
            self.cut()

    def cut(self) -> None:
        """Break the connection."""
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.cut()

    def judge(self, resources: Sequence[Resource]) -> Effective:
        """Stand in for `configuration_of`. Raise `OptionsRefused`."""
        if self.delicate and any(resource.name == "rough" for resource in resources):
            raise OptionsRefused("this machine does not take it")
        found = build_configuration(resources)
        marks = [each.rule.pattern for each in found.addresses if each.rule.pattern.startswith("unused/")]
        hubs = [host.host for each in found.connectors if each.name == "hub" for host in each.hosts]
        return Effective(int(marks[0].removeprefix("unused/")) if marks else 0, cut_off="nowhere" in hubs)

    # --- inside -------------------------------------------------------------------------------------------------

    def _serve(self, loop: SimulatedLoop) -> None:
        count_start(self.options)
        applied = AppliedConfiguration.read(self.options)
        self.in_force = self.judge(applied.resources)
        self._followed()
        following = ConfigurationFollower(self.options, applied)
        self._trials = Trials(
            self.options.data,
            following,
            certificate=identity_file(self.options.data),
            verify=verified,
            system=SystemFollower(self.options.data),
            restart=partial(loop.call_soon, self._again),
        )
        self._reports = _Reports(self)
        uplink = SimpleNamespace(
            connector=SimpleNamespace(
                name="hub", tls=SimpleNamespace(certificate=str(identity_file(self.options.data)))
            ),
            inboxes=[],
            reports=self._reports,
            dialer=SimpleNamespace(state=SimpleNamespace(last_error="")),
        )
        self._trials.bind(cast(ConnectorUplink, uplink))
        [self._inbox] = uplink.inboxes
        self._trials.start(_Followed(self))
        loop.call_soon(self._look, loop)

    def _again(self) -> None:
        """Restart the process in good order."""
        self.kill()
        self._scheduler.after(START_AGAIN_S, self._outside, self.start)

    async def follow(self, wanted: Effective) -> None:
        """Apply another version of its hub."""
        self.in_force = wanted
        self._followed()
        if wanted.cut_off:
            self._leave()

    def _followed(self) -> None:
        self._history.record("followed", self.id, self.in_force.mark)

    def _leave(self) -> None:
        """Close the gateway's end of the connection at once."""
        wire = self._wire
        if wire is not None:
            self.cut()
            self._lost(wire)

    def _look(self, loop: SimulatedLoop) -> None:
        """Connect if the machine is disconnected, and report the commands that devices have executed."""
        loop.call_later(CONNECTS_S * (0.5 + self._random.random()), self._look, loop)
        if self._wire is None and not self.apart and not self.in_force.cut_off:
            self._hub.reached(self)
        elif self._wire is not None and self.disk.receipts:
            told = list(self.disk.receipts)
            now_us = wall_ns(self._scheduler) // 1_000
            news = [
                CommandNews(each, DEFAULT_TENANT, self.name, "valve", now_us, CommandState.DELIVERED, "")
                for each in told
            ]
            self._wire.to_hub(self._hub.queue_news, self._wire, news, partial(self._kept, told))

    def _kept(self, told: Sequence[str], kept: bool) -> None:
        if kept:
            self.disk.receipts = [each for each in self.disk.receipts if each not in told]

    # --- calls from the hub ---------------------------------------------------------------------------------------

    def connected(self, wire: Wire, lines: dict[str, SimulatedLine]) -> None:
        """Start to use a connection that the hub has accepted, with these lines down."""
        self._wire, self._lines = wire, lines
        wire.machine_lost = partial(self._lost, wire)
        self._received = dict.fromkeys(lines, 0)
        self._inbox.attached(self._settle, lambda: self._flow(DESIRED))
        self._reports.attached()
        for word in lines:
            self._flow(word)

    def receive_version(self, tag: int, message: bytes) -> None:
        self._received[DESIRED] += 1
        run = cast(Run, SimpleNamespace(bodies=[message]))
        self._inbox.receive([Incoming(tag, (), b"", (), run)])

    def receive_command(self, tag: int, message: bytes) -> None:
        self._received[COMMANDS] += 1
        command = read_command(message).id
        if command not in self.disk.commands:
            self.disk.commands[command] = False
            self._history.record("got", self.id, command)
            self._scheduler.after(WORKS_S * self._random.random(), self._outside, self._do, command)
        if self._wire is not None:
            self._hub.settle(self._wire, self._lines[COMMANDS], tag, ForwardOutcome.ACCEPTED, "")
        self._flow(COMMANDS)

    def told(self, number: int) -> None:
        """Handle the confirmation of a report by the hub."""
        self._reports.told(number)

    # --- towards it -------------------------------------------------------------------------------------------------

    def report(self, number: int, document: DesiredReport) -> None:
        if self._wire is not None:
            self._wire.to_hub(self._hub.reported, self._wire, self, number, document)

    def _settle(self, tokens: Sequence[int], outcome: ForwardOutcome, why: str) -> None:
        for token in tokens:
            if self._wire is not None:
                self._hub.settle(self._wire, self._lines[DESIRED], token, outcome, why)

    def _flow(self, word: str) -> None:
        credit = self._inbox.credit if word == DESIRED else COMMANDS_AT_ONCE
        if self._wire is not None:
            self._hub.flow(self._wire, self._lines[word], self._received[word] + credit)

    def _lost(self, wire: Wire) -> None:
        if self._wire in (wire, None):
            self._wire = None
            self._inbox.detached()

    def _do(self, command: str) -> None:
        if not self.disk.commands[command]:
            self.disk.commands[command] = True
            self.disk.receipts.append(command)
            self._history.record("done", self.id, command)


class _Reports:
    """Substitute for `bridge.reports.Reports` of the configuration: only the newest report counts."""

    def __init__(self, machine: Machine) -> None:
        self._tell: Callable[[], None] = lambda: None
        self._machine = machine
        self._number = 0
        self._done: Callable[[bool], None] | None = None

    def begin_configuration(self, tell: Callable[[], None]) -> None:
        self._tell = tell

    def attached(self) -> None:
        """Note that the hub takes reports of the configuration."""
        self._tell()

    def send_configuration(self, document: dict[str, Any], done: Callable[[bool], None]) -> None:
        self._number += 1
        self._done = done
        self._machine.report(self._number, msgspec.convert(document, DesiredReport))

    def told(self, number: int) -> None:
        done = self._done
        if number == self._number and done is not None:
            self._done = None
            done(True)


class _Followed:
    """The machine in the form that `edge.configuration.following` uses."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    async def reconfigure(self, wanted: Any) -> None:
        await self._machine.follow(wanted)
