"""Operator of the fleet, at the command line: requests configurations for gateways, and forgets gateways.

Each request has its own *mark*. The registry alone shows what became of it (`seen`): a program may be killed between
two statements, and the answer of a registry may be lost.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from bridge.desired import DesiredError
from cloud.hub.desired.making import (
    ConfigurationTables,
    RolloutTarget,
    make_context,
    set_wanted_for_selector,
    start_rollout,
)
from cloud.hub.desired.service import make_signer
from cloud.hub.labels import LabelError, parse_selector
from cloud.hub.peers import DEFAULT_TENANT
from cloud.hub.registry.commands import CommandRecord, CommandRefused, Commands, CommandState
from cloud.hub.registry.configurations import UnknownGateway, WantedConfiguration
from cloud.hub.registry.database import Database
from cloud.hub.registry.enrolments import (
    CertificateRecord,
    EnrolmentRefused,
    Enrolments,
    NotForgotten,
    TokenClaim,
    TokenRecord,
)
from cloud.hub.registry.rollouts import RolloutError, RolloutRecord
from cloud.hub.registry.selectors import VersionContext
from cloud.hub.rollout import RolloutPace, RolloutState, WavesError
from cloud.lake.faults import RegistryError
from tests.simulation.desired import AUTHORITY, CLOCK_NS, CONFIRM_S, resources_of
from tests.simulation.environment import wall_ns
from tests.simulation.history import History
from tests.simulation.lake import Killed
from tests.simulation.scheduler import Process, Scheduler
from tests.simulation.sql import URL, SqlDatabase

if TYPE_CHECKING:
    from tests.simulation.fleet.machine import Machine

NAME: Final = "person"
KINDS: Final = ("nothing", "nothing", "a forwarder", "no connector", "no uplink", "rough")
"""Kinds of requests, repeated by their weight; not every machine can apply the last three."""
SELECTORS: Final = ("ring=a", "ring=b", "site=x", "ring!=a", "site=x,ring=b")
LABELS: Final[tuple[dict[str, str | None], ...]] = (
    {"ring": "a"},
    {"ring": "b"},
    {"ring": None},
    {"site": "x"},
    {"site": None},
)
WAVES: Final = ("1,100%", "50%,100%", "ring=a,100%", "1,2,100%")
PACE: Final = RolloutPace(soak_s=0.3, away_s=1.0, failures_max=0)
LIFE_US: Final = 10**15
TTL_US: Final = 10**12
WHAT: Final = (
    RegistryError,
    CommandRefused,
    DesiredError,
    UnknownGateway,
    LabelError,
    RolloutError,
    WavesError,
    NotForgotten,
)
"""Error messages in place of a result."""


class Person:
    """Operator who acts on the calls of a test."""

    def __init__(self, scheduler: Scheduler, database: SqlDatabase, history: History, random: Random) -> None:
        self.process = Process(NAME)
        self.process.clock_offset_ns = CLOCK_NS
        self.kinds: dict[int, str] = {}
        """Kind of each request, by mark."""
        kept = cast(Database, database)
        self._tables = ConfigurationTables.of(kept)
        self._enrolments = Enrolments(URL)
        self._commands = Commands(URL)
        self._scheduler = scheduler
        self._database = database
        self._history = history
        self._random = random
        self._count = 0

    @property
    def now_us(self) -> int:
        return wall_ns(self._scheduler) // 1_000

    def do(self, what: str, work: Callable[[], object]) -> bool:
        """Act; return False when the action failed or its result is unknown."""
        self._scheduler.enter(self.process)
        try:
            work()
        except WHAT as error:
            self._history.record("refused", what, str(error))
            return False
        except Killed:
            self._history.record("person killed", what)
            return False
        self._history.record("person", what)
        return True

    # --- configurations -------------------------------------------------------------------------------------------

    def say_by_name(self, gateway: str) -> None:
        wanted = self._wanted("name", gateway)._replace(gateway=gateway)
        self.do(
            f"config apply {gateway}",
            lambda: self._tables.configurations.set_wanted([wanted], self.now_us, make_signer(AUTHORITY)),
        )

    def say_for_selector(self) -> None:
        text = self._random.choice(SELECTORS)
        wanted = self._wanted("selector", text)._replace(selector=text)
        self.do(
            f"config apply -l {text}",
            lambda: set_wanted_for_selector(self._tables.selectors, wanted, self.now_us, make_signer(AUTHORITY)),
        )

    def delete_selector(self) -> None:
        text = self._random.choice(SELECTORS)
        self.do(f"config delete {text}", lambda: self._tables.selectors.delete(DEFAULT_TENANT, text, self._making))

    def label(self, gateway: str) -> None:
        changes = self._random.choice(LABELS)
        self.do(
            f"label {gateway} {changes}",
            lambda: self._tables.selectors.label(DEFAULT_TENANT, (gateway,), changes, self._making),
        )

    def begin_rollout(self) -> None:
        whom = (
            RolloutTarget((), parse_selector(self._random.choice(SELECTORS)))
            if self._random.random() < 0.5
            else RolloutTarget(("*",), None)
        )
        wanted = self._wanted("rollout", str(whom.selector) if whom.selector is not None else "*")
        waves = self._random.choice(WAVES)
        self.do(
            f"rollout start {whom.selector or '*'} {waves}",
            lambda: start_rollout(self._tables, wanted, whom, waves, PACE, self.now_us),
        )

    def step_rollout(self) -> None:
        """Apply a possible step to the newest roll-out."""
        step = self._random.choice(("pause", "resume", "resume", "abort", "take back"))
        self.do(f"rollout {step}", lambda: self._step(step))

    def end_rollouts(self) -> None:
        """Continue roll-outs that have started, so that each comes to an end."""
        self.do("rollout resume all", self._resume_all)

    def _resume_all(self) -> None:
        for each in self._tables.rollouts.all():
            if each.state in (RolloutState.PAUSED, RolloutState.HALTED):
                self._tables.rollouts.abort(each.id)

    def _step(self, step: str) -> None:
        newest: RolloutRecord | None = next(iter(self._tables.rollouts.all()), None)
        if newest is None:
            return
        self._history.record("step", step, newest.id)
        if step == "pause":
            self._tables.rollouts.pause(newest.id)
        elif step == "resume":
            self._tables.rollouts.resume(newest.id, self.now_us)
        elif step == "abort":
            self._tables.rollouts.abort(newest.id)
        else:
            self._tables.rollouts.take_back(newest.id, "anna", self.now_us, make_signer(AUTHORITY))

    # --- gateways -------------------------------------------------------------------------------------------------

    def enrol(self, machine: Machine, *, replace: bool) -> bool:
        """Enrol with a token for any name, or with one for the holder's name if it is to `replace` the holder."""
        return self.do(f"enrol {machine.id}", lambda: self._enrol(machine, replace=replace))

    def revoke(self, gateway: str) -> None:
        self.do(f"revoke {gateway}", lambda: self._enrolments.revoke(DEFAULT_TENANT, gateway, self.now_us))

    def forget(self, gateway: str) -> bool:
        return self.do(f"forget {gateway}", lambda: self._enrolments.forget(DEFAULT_TENANT, gateway, self.now_us))

    def good(self, machine: Machine) -> bool:
        """Return whether the registry knows the machine's certificate as valid."""
        found = self._database.look(
            lambda tx: tx.exec_driver_sql(
                "SELECT count(*) FROM certificates WHERE serial = ? AND revoked_at IS NULL", (machine.serial,)
            ).scalar()
        )
        return bool(found)

    def _enrol(self, machine: Machine, *, replace: bool) -> None:
        self._count += 1
        now, number = self.now_us, str(self._count)
        name, key_id = machine.name, machine.id.encode()
        labels = self._random.choice((None, '{"ring":"a"}', '{"site":"x"}'))
        only = name if replace else None
        self._enrolments.add([TokenRecord(number, b"secret", DEFAULT_TENANT, only, now, now + LIFE_US, labels=labels)])
        serial = f"{self._random.getrandbits(64) | 1 << 63:x}"
        made = CertificateRecord(serial, DEFAULT_TENANT, name, key_id, now, now + LIFE_US, None, "")
        machine.serial = serial
        try:
            self._enrolments.enrol(TokenClaim(number, b"secret", name, key_id), now, lambda *_: made)
        except EnrolmentRefused as error:
            raise RegistryError(str(error)) from None

    # --- commands -------------------------------------------------------------------------------------------------

    def send(self, gateway: str) -> None:
        self._count += 1
        command = self._command(f"c{self._count}", gateway)
        self.do(f"command {command.id} to {gateway}", lambda: self._send(command))

    def _send(self, command: CommandRecord) -> None:
        self._commands.add(command, gateway_max=1_000, tenant_max=1_000)

    def _command(self, name: str, gateway: str) -> CommandRecord:
        now = self.now_us - CLOCK_NS // 1_000
        return CommandRecord(
            number=0,
            id=name,
            tenant=DEFAULT_TENANT,
            gateway=gateway,
            device="valve",
            name="set",
            content_type=None,
            payload=b"",
            correlation_id=None,
            reply_to=None,
            wants_response=False,
            sent_by="",
            created_at=now,
            expires_at=now + TTL_US,
            state=CommandState.WAITING.value,
            reason="",
            changed_at=now,
        )

    # --- inside -----------------------------------------------------------------------------------------------------

    @property
    def _making(self) -> VersionContext:
        return make_context(self.now_us, make_signer(AUTHORITY))

    def _wanted(self, how: str, target: str) -> WantedConfiguration:
        mark = len(self.kinds) + 1
        kind = self.kinds[mark] = self._random.choice(KINDS)
        self._history.record("said", mark, kind, how, target)
        return WantedConfiguration(DEFAULT_TENANT, "", _resources(kind, mark), CONFIRM_S, True, "anna", "")


def _resources(kind: str, mark: int) -> list[dict[str, Any]]:
    found = resources_of(kind, mark)
    if kind == "rough":
        spec = {"address": f"rough/{mark}", "type": "topic", "forwarders": []}
        found.append({"apiVersion": "waypost/v1", "kind": "Address", "metadata": {"name": "rough"}, "spec": spec})
    return found


class HasDatabase(Protocol):
    """World with a database."""

    database: SqlDatabase


def opened(world: HasDatabase) -> Callable[[object], Any]:
    """Stand in for `cloud.hub.registry.opening.open_registry`."""
    return lambda _url: SimpleNamespace(database=world.database)
