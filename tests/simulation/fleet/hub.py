"""Hub of a fleet: its services for configurations, certificates and commands, and its directory, as in the product.

A connection is reduced to the peer's identity and the messages over it (`wire`). Nothing is landed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any, Final, cast

import msgspec

from bridge import plain
from bridge.desired import DesiredReport, SignedDesired, read
from bridge.downlink import DownlinkSource, GatewayLink
from bridge.forwarders.outcome import ForwardOutcome
from bridge.hub_addresses import COMMANDS, DESIRED
from cloud.hub.commands.service import HubCommands
from cloud.hub.desired.service import DesiredConfigurations
from cloud.hub.enrolment.authority import Authority
from cloud.hub.enrolment.service import Enrolment
from cloud.hub.groups import Key, Presence
from cloud.hub.peers import DEFAULT_TENANT, HubPeer
from cloud.hub.registry.commands import CommandNews, CommandRecord
from cloud.hub.registry.database import Database
from cloud.hub.registry.directory import Directory
from cloud.hub.registry.gateway_admission import GatewayAdmission
from cloud.hub.registry.generations import Generations
from cloud.hub.registry.writer import RegistryWriter
from cloud.lake.faults import RegistryError
from tests.simulation.desired import AUTHORITY, mark_in
from tests.simulation.environment import wall_ns
from tests.simulation.fleet.machine import Machine
from tests.simulation.fleet.wire import SimulatedLine, Wire
from tests.simulation.history import History
from tests.simulation.loop import SimulatedLoop
from tests.simulation.scheduler import Process, Scheduler
from tests.simulation.sql import URL, SqlDatabase

NAME: Final = "hub"
PRESENCE_S: Final = 0.2
STARTS_AGAIN_S: Final = 0.3


class FleetHub:
    """Hub process over a database that survives it; it serves between `start` and `kill`."""

    def __init__(self, scheduler: Scheduler, database: SqlDatabase, history: History, random: Random) -> None:
        self.process = Process(NAME)
        self.process.alive = False
        self._serving = False
        self._scheduler = scheduler
        self._database = database
        self._history = history
        self._random = random
        self._outside = Process("outside the hub")
        self._wires: dict[Key, Wire] = {}
        self._machines: dict[Wire, Machine] = {}
        self._presence: dict[Key, Presence] = {}
        self._desired: DesiredConfigurations
        self._enrolment: Enrolment
        self._commands: HubCommands

    @property
    def up(self) -> bool:
        return self.process.alive

    def start(self) -> None:
        """Start, unless it runs already."""
        if self.up:
            return
        self.process = Process(NAME)
        loop = SimulatedLoop(self._scheduler, self.process, cast(Any, None))
        loop.work_s = lambda: 0.02 * self._random.random()
        self._history.record("start", NAME)
        loop.call_soon(lambda: loop.create_task(self._serve(loop)))

    def kill(self) -> None:
        """End the process where it is."""
        if not self.up:
            return
        self._history.record("hub kill")
        self.process.alive = self._serving = False
        self.process.loop.abandon()
        for wire in self._wires.values():
            wire.cut()
        self._wires, self._machines, self._presence = {}, {}, {}

    async def _serve(self, loop: SimulatedLoop) -> None:
        kept = cast(Database, self._database)
        writer = RegistryWriter(NAME)
        directory = Directory(kept, writer, Generations(writer, time.monotonic), GatewayAdmission(kept, time.monotonic))

        def now_s() -> float:
            return wall_ns(self._scheduler) / 1e9

        self._desired = DesiredConfigurations(AUTHORITY, URL, now=now_s)
        self._enrolment = Enrolment(cast(Authority, None), URL, life_s=0.0, revoked=self._review, now=now_s)
        self._commands = HubCommands(URL, self._tell, lambda _key: False, now=now_s)
        try:
            await loop.run_in_executor(None, directory.mark_all_disconnected)
            await self._enrolment.open()
            await self._desired.open()
            await self._commands.open()
        except RegistryError:
            self.kill()
            self._scheduler.after(STARTS_AGAIN_S, self._outside, self.start)
            return
        self._serving = True
        self._look(loop, directory)

    async def _tell(self, news: CommandNews, command: CommandRecord) -> None:
        if news.state is not None:
            self._history.record("told", command.id, news.state.value)

    def _look(self, loop: SimulatedLoop, directory: Directory) -> None:
        loop.call_later(PRESENCE_S, self._look, loop, directory)
        changes = dict(self._presence)
        if changes:
            self._presence.clear()
            loop.run_in_executor(None, directory.presence, changes).add_done_callback(partial(self._written, changes))

    def _written(self, changes: dict[Key, Presence], future: Any) -> None:
        if future.exception() is not None:
            for key, presence in changes.items():
                later = self._presence.get(key, replace(presence, connects=0))
                self._presence[key] = replace(later, connects=later.connects + presence.connects)

    # --- connections --------------------------------------------------------------------------------------------

    def reached(self, machine: Machine) -> None:
        """Accept or refuse a machine that wants to connect."""
        if not self._serving:
            return
        wire = Wire(self._scheduler, self._random, machine.process, self.process)
        self._scheduler.after(0.01, self.process, self._arrive, wire, machine)

    def _arrive(self, wire: Wire, machine: Machine) -> None:
        if machine.linked or machine.apart or not machine.up or self._refused(machine):
            return
        key = (DEFAULT_TENANT, machine.name)
        before = self._wires.get(key)
        if before is not None:
            self._gone(key, before)
            before.cut()
        self._wires[key] = wire
        self._machines[wire] = machine
        self._come(key, connected=True)
        lines = {
            DESIRED: _Offering(self._history, machine, key, wire, machine.receive_version),
            COMMANDS: SimulatedLine(key, wire, machine.receive_command),
        }
        wire.hub_lost = partial(self._lost, key, wire, lines)
        wire.to_machine(machine.connected, wire, lines)

    def _refused(self, machine: Machine) -> bool:
        peer = cast(HubPeer, SimpleNamespace(name=machine.name))
        return self._enrolment.refusal(peer, int(machine.serial or "0", 16)) is not None

    def _review(self) -> None:
        for wire, machine in list(self._machines.items()):
            if self._refused(machine):
                wire.cut()

    def _come(self, key: Key, *, connected: bool) -> None:
        before = self._presence.get(key)
        connects = (before.connects if before is not None else 0) + connected
        self._presence[key] = Presence("", connected, wall_ns(self._scheduler) // 1_000, connects)

    def _gone(self, key: Key, wire: Wire) -> None:
        self._machines.pop(wire, None)
        if self._wires.get(key) is wire:
            del self._wires[key]
            self._come(key, connected=False)

    def _lost(self, key: Key, wire: Wire, lines: dict[str, SimulatedLine]) -> None:
        self._gone(key, wire)
        for word, line in lines.items():
            line.end()
            self._source(word).ended(cast(GatewayLink, line))

    def _source(self, word: str) -> DownlinkSource:
        return self._desired if word == DESIRED else self._commands.dispatch

    # --- messages of machines -------------------------------------------------------------------------------------

    def flow(self, wire: Wire, line: SimulatedLine, limit: int) -> None:
        wire.to_hub(self._flowed, line, limit)

    def settle(self, wire: Wire, line: SimulatedLine, tag: int, outcome: ForwardOutcome, why: str) -> None:
        wire.to_hub(self._settled, line, tag, outcome, why)

    def reported(self, wire: Wire, machine: Machine, number: int, report: DesiredReport) -> None:
        self._desired.reported((DEFAULT_TENANT, machine.name), report, lambda: wire.to_machine(machine.told, number))

    def queue_news(self, wire: Wire, news: Sequence[CommandNews], kept: Callable[[bool], None]) -> None:
        self._commands.queue_news(news, lambda done: wire.to_machine(kept, done))

    def _flowed(self, line: SimulatedLine, limit: int) -> None:
        line.flow(limit)
        if line.credit > 0:
            self._word_of(line).ready(cast(GatewayLink, line))

    def _settled(self, line: SimulatedLine, tag: int, outcome: ForwardOutcome, why: str) -> None:
        self._word_of(line).settled(cast(GatewayLink, line), tag, outcome, why)

    def _word_of(self, line: SimulatedLine) -> DownlinkSource:
        return self._source(DESIRED if isinstance(line, _Offering) else COMMANDS)


class _Offering(SimulatedLine):
    """Line for configurations: records what is sent over it as offered to that machine."""

    def __init__(
        self, history: History, machine: Machine, key: Key, wire: Wire, receive: Callable[[int, bytes], None]
    ) -> None:
        super().__init__(key, wire, receive)
        self._history = history
        self._machine = machine

    def send(self, tag: int, message: bytes) -> None:
        signed = msgspec.json.decode(plain.body_of(message), type=SignedDesired)
        mark = mark_in(read(signed.content).resources)
        self._history.record("offered", self._machine.id, self._machine.name, tag, mark)
        super().send(tag, message)
