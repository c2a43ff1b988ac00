"""World of a fleet, its hub and its operators: they act under faults, and then everything becomes idle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from random import Random
from typing import Any, Final
from unittest import mock

import msgspec
import sqlalchemy as sa

from cloud.hub.commands import service as commands_service
from cloud.hub.desired import service as desired_service
from cloud.hub.desired.making import ConfigurationTables
from cloud.hub.enrolment import service as enrolment_service
from cloud.hub.registry import commands as command_table
from cloud.hub.registry import enrolments
from cloud.hub.registry.schema import open_schema
from edge.configuration import following, repository, trials
from tests.simulation.desired import CardFile
from tests.simulation.environment import simulated
from tests.simulation.fleet import hub as hub_module
from tests.simulation.fleet.checker import FINAL
from tests.simulation.fleet.hub import FleetHub
from tests.simulation.fleet.machine import Machine
from tests.simulation.fleet.person import Person, opened
from tests.simulation.fleet.seen import Seen, see
from tests.simulation.history import History
from tests.simulation.registry import Database
from tests.simulation.scheduler import Process, Scheduler
from tests.simulation.sql import SqlDatabase, empty
from tests.simulation.world import quiet

NAMES: Final = ("g1", "g2", "g3", "g4")
LOOKED_AT_S: Final = 0.3
"""Polling interval of a hub: shorter than the product's, so that more happens in the time of a run."""
REST_S: Final = 60.0
ACTS: Final = {
    "say by name": 4,
    "say for selector": 4,
    "delete selector": 1,
    "label": 4,
    "begin roll-out": 4,
    "step roll-out": 3,
    "send": 4,
    "forget": 3,
    "replace": 1,
    "kill machine": 2,
    "cut": 2,
    "part": 2,
    "kill hub": 2,
    "kill hub at a statement": 3,
    "kill person at a statement": 3,
    "registry fails": 2,
    "back up": 2,
    "put back": 1,
}
"""Actions and their weights."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a run; together with the seed they determine it."""

    span_s: float = 8.0
    period_s: float = 0.25
    """Mean time between two actions."""
    steps_max: int = 300_000
    acts: tuple[str, ...] = tuple(ACTS)


class FleetWorld:
    """World of one run. Create and run it inside `simulated_fleet`."""

    def __init__(self, seed: int, options: Options) -> None:
        self.scheduler = Scheduler()
        self.history = History(self.scheduler)
        self.errors: list[BaseException] = []
        self.scheduler.switched = self._switched
        self.scheduler.raised = self._raised
        self.options = options
        self.machines: dict[str, Machine] = {}
        """Every machine that ever existed, by id."""
        self.holders: dict[str, Machine] = {}
        """Machine that has each name, in the operators' view."""
        self.database: SqlDatabase
        self.person: Person
        self.hub: FleetHub
        self._seed = seed
        self._random = self._stream("acts")
        self._failing = Database(self._stream("registry"))
        self._outside = Process("outside")
        self._fuses: dict[str, int] = {}
        self._last: Seen | None = None
        self._lives = 0
        self._older = False
        """The registry was an older copy: it may wait for reports that it had already received."""

    def open(self) -> None:
        """Open the world, inside `simulated_fleet`."""
        self.database = SqlDatabase(self._failing, empty(open_schema))
        self.database.fuse = self._burn
        self.database.changed = self._look

    def begin(self) -> None:
        self.hub = FleetHub(self.scheduler, self.database, self.history, self._stream("hub"))
        self.person = Person(self.scheduler, self.database, self.history, self._stream("person"))
        self.hub.start()
        for name in NAMES:
            self._new(name, replace=False)

    def run(self) -> None:
        """Run from the first start until everything is idle."""
        self.begin()
        self._later()
        self._go_on(self.options.span_s)
        self._heal()
        self._come_to_rest()
        for name, machine in self.holders.items():
            self.history.record(
                "at last", name, machine.id, machine.delicate, machine.in_force.mark, *self._stand(name)
            )

    # --- actions ------------------------------------------------------------------------------------------------------

    def _later(self) -> None:
        delay_s = self.options.period_s * 2 * self._random.random()
        self.scheduler.after(delay_s, self._outside, self._act)

    def _act(self) -> None:
        if self.scheduler.now_s > 1_000.0 + self.options.span_s:
            return
        self._later()
        acts = self.options.acts
        act = self._random.choices(acts, [ACTS[each] for each in acts])[0]
        name = self._random.choice(NAMES)
        self.history.record("act", act)
        getattr(self, f"_{act.replace(' ', '_').replace('-', '_')}")(name)

    def _say_by_name(self, name: str) -> None:
        self.person.say_by_name(name)

    def _say_for_selector(self, _name: str) -> None:
        self.person.say_for_selector()

    def _delete_selector(self, _name: str) -> None:
        self.person.delete_selector()

    def _label(self, name: str) -> None:
        self.person.label(name)

    def _begin_roll_out(self, _name: str) -> None:
        self.person.begin_rollout()

    def _step_roll_out(self, _name: str) -> None:
        self.person.step_rollout()

    def _send(self, name: str) -> None:
        self.person.send(name)

    def _forget(self, name: str) -> None:
        """Lock the gateway of a name out and forget it; another machine, or the same one, takes the name later."""
        self.person.revoke(name)
        self.scheduler.after(0.9 + self._random.random(), self._outside, self._forget_now, name)

    def _forget_now(self, name: str) -> None:
        if self.person.forget(name):
            self.scheduler.after(self._random.random(), self._outside, self._come_again, name)

    def _come_again(self, name: str) -> None:
        if self._random.random() < 0.3:
            machine = self.holders[name]
            machine.cut()
            self.person.enrol(machine, replace=False)
        else:
            self._new(name, replace=False)

    def _replace(self, name: str) -> None:
        """Replace the machine of a name by another one, which inherits all requests."""
        self._new(name, replace=True)

    def _new(self, name: str, *, replace: bool) -> None:
        self._lives += 1
        life = f"{name}#{self._lives}"
        delicate = self._random.random() < 0.3
        machine = Machine(self.scheduler, self.hub, self.history, self._stream(life), life, delicate=delicate)
        self.machines[life] = machine
        if self.person.enrol(machine, replace=replace) or name not in self.holders:
            self.holders[name] = machine
        machine.start()

    def _kill_machine(self, name: str) -> None:
        machine = self.holders[name]
        machine.kill()
        self.scheduler.after(self._random.random() ** 2 * 2, self._outside, machine.start)

    def _cut(self, name: str) -> None:
        self.holders[name].cut()

    def _part(self, name: str) -> None:
        machine = self.holders[name]
        machine.apart = True
        machine.cut()
        self.scheduler.after(self._random.random() * 3, self._outside, self._join, machine)

    def _join(self, machine: Machine) -> None:
        machine.apart = False

    def _kill_hub(self, _name: str) -> None:
        self.hub.kill()
        self.scheduler.after(self._random.random(), self._outside, self.hub.start)

    def _kill_hub_at_a_statement(self, _name: str) -> None:
        self._fuses[hub_module.NAME] = 1 + self._random.randrange(60)

    def _kill_person_at_a_statement(self, _name: str) -> None:
        self._fuses[self.person.process.name] = 1 + self._random.randrange(20)

    def _registry_fails(self, _name: str) -> None:
        self._failing.fails = 0.5
        self.history.record("registry fails")
        self.scheduler.after(self._random.random(), self._outside, self._registry_works)

    def _registry_works(self) -> None:
        self._failing.fails = 0.0
        self.history.record("registry works")

    def _back_up(self, _name: str) -> None:
        self.database.back_up()
        self.history.record("backed up", len(self.database.copies) - 1)

    def _put_back(self, _name: str) -> None:
        if not self.database.copies:
            return
        self.hub.kill()
        self._older = True
        choice = self._random.randrange(len(self.database.copies))
        self.database.put_back(choice)
        self.history.record("put back", choice)
        self._look()
        self.scheduler.after(self._random.random() * 0.3, self._outside, self.hub.start)

    # --- coming to rest -----------------------------------------------------------------------------------------------

    def _heal(self) -> None:
        self._fuses.clear()
        self._registry_works()
        self.hub.start()
        self.history.record("healed")
        self.scheduler.after(2.0, self._outside, self._heal_machines)

    def _heal_machines(self) -> None:
        """Start every machine that has a name, and enrol it if its certificate is not valid."""
        for name, machine in self.holders.items():
            machine.apart = False
            machine.start()
            if not self.person.good(machine):
                machine.cut()
                self.person.enrol(machine, replace=True)
            for other in self.machines.values():
                if other.name == name and other is not machine:
                    other.kill()
        self.person.end_rollouts()

    def _come_to_rest(self) -> None:
        until_s = self.scheduler.now_s + REST_S
        self._go_on(3.0)
        quiet_for = 0
        while quiet_for < 4:
            if self.scheduler.now_s > until_s:
                self.history.record("stuck", self._unrest())
                return
            self._go_on(0.5)
            quiet_for = 0 if self._unrest() else quiet_for + 1

    def _unrest(self) -> str:
        seen = self.database.look(see)
        open_ = [each for each in seen.commands if each[2] not in FINAL and not self._older]
        running = [name for name, each in seen.rollouts if each.state == "running"]
        away = [name for name, machine in self.holders.items() if not machine.linked]
        trying = [name for name in self.holders if self._stand(name)[1] == "trying"]
        waiting = [
            name for name in self.holders if self._stand(name)[1] == "waiting" and not self._withheld(seen, name)
        ]
        found = {"commands": open_, "roll-outs": running, "away": away, "trying": trying, "waiting": waiting}
        return "; ".join(f"{what}: {which}" for what, which in found.items() if which)

    def _withheld(self, seen: Seen, name: str) -> bool:
        wanted = dict(seen.wanted).get(name)
        states = {rollout: each.state for rollout, each in seen.rollouts}
        return wanted is not None and wanted.rollout is not None and states.get(wanted.rollout, "done") != "done"

    def _stand(self, name: str) -> tuple[int, str]:
        """Return (requested version, its state in the registry)."""
        kept: Any = _Looking(self.database)
        found = {each.gateway: each for each in ConfigurationTables.of(kept).configurations.gateways()}
        return (found[name].wanted, found[name].state) if name in found else (0, "none")

    # --- inside -------------------------------------------------------------------------------------------------------

    def _go_on(self, seconds: float) -> None:
        self.scheduler.run(self.scheduler.now_s + seconds, self.options.steps_max)

    def _look(self) -> None:
        seen = self.database.look(see)
        if seen != self._last:
            self._last = seen
            self.history.record("seen", seen)

    def _burn(self) -> bool:
        name = self.scheduler.process.name
        left = self._fuses.get(name)
        if left is None:
            return False
        self._fuses[name] = left - 1
        if left > 1:
            return False
        del self._fuses[name]
        if name == hub_module.NAME:
            self.scheduler.after(0.2, self._outside, self.hub.start)
            self.hub.kill()
        return True

    def _stream(self, whose: str) -> Random:
        return Random(f"fleet/{self._seed}/{whose}")

    def _switched(self, process: Process) -> None:
        asyncio._set_running_loop(process.loop)

    def _raised(self, process: Process, error: BaseException) -> None:
        self.history.record("raised", process.name, repr(error))
        self.errors.append(error)


class _Looking:
    """Database for the checker: it does not fail, and kills no process."""

    def __init__(self, database: SqlDatabase) -> None:
        self._database = database

    def transaction(self, work: Callable[[sa.Connection], Any]) -> Any:
        return self._database.look(work)


@contextmanager
def simulated_fleet(world: FleetWorld) -> Iterator[None]:
    """Give hubs and operators this world's registry, and machines its files."""

    def opened_tables(_url: object) -> Any:
        database: Any = world.database
        database.transaction(lambda _tx: None)
        return desired_service._Registry(database, ConfigurationTables.of(database))

    def file(path: Path, content: type[Any], layout: int, *, damaged: str) -> CardFile:
        card: Any = world.machines[path.parts[0]].disk
        return CardFile(card, path, content, layout, damaged=damaged)

    def judge(options: Any, resources: Any) -> Any:
        return world.machines[options.data.name].judge(resources)

    with ExitStack() as patches:
        for owner, attribute, replacement in (
            (desired_service, "_open", opened_tables),
            (desired_service, "CONFIGURATIONS_CHECK_INTERVAL_S", LOOKED_AT_S),
            (enrolment_service, "REVOCATIONS_CHECK_INTERVAL_S", LOOKED_AT_S),
            (commands_service, "POLL_INTERVAL_S", LOOKED_AT_S),
            (enrolments, "open_registry", opened(world)),
            (command_table, "open_registry", opened(world)),
            (command_table, "Database", lambda _url, *, reading: world.database),
            (repository, "ConfigurationFile", file),
            (repository.Repository, "_locked", lambda _self: nullcontext()),
            (trials, "is_held", lambda _data: False),
            (following, "configuration_of", judge),
        ):
            patches.enter_context(mock.patch.object(owner, attribute, replacement))
        yield


def simulate(seed: int, options: Options) -> FleetWorld:
    """Simulate one run of one seed."""
    running = asyncio._get_running_loop()
    with quiet():
        world = FleetWorld(seed, options)
        with simulated(world.scheduler, Random(f"fleet/{seed}/system")), simulated_fleet(world):
            world.open()
            try:
                world.run()
            finally:
                for process in (world.hub.process, *(each.process for each in world.machines.values())):
                    if process.loop is not None:
                        process.loop.abandon()
                asyncio._set_running_loop(running)
    return world
