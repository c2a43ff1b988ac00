"""Hubs, each with its own thread, registry connection and view of the lake; gateways that move between them; faults.

Real are landing, lander and registry with its SQL (SQLite), and the rows of the lake. Simulated are the lake's tables,
the network and the hubs' processes: each transaction of the registry, and each read and write of the lake, is a step
after which any other hub may run, this hub may be killed, or stand still for good. At each of them a hub may lose what
it caches of a gateway.

The registry may become an older copy of itself: restored while no hub runs, or by a standby that lacks the last
transactions, while hubs run. A commit that is open then is lost with its fence, so the standby takes over only while
none is (``cloud/decisions/0020-registry-older-than-its-lake.md``, "What is left").
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar
from unittest import mock
from weakref import WeakKeyDictionary

import sqlalchemy as sa

from cloud.hub.groups import GatewaySession, Key, LandingGroup, LandingOutcome, Presence, QueueEntry
from cloud.hub.lander import Lander
from cloud.hub.registry import gateway_admission
from cloud.hub.registry.database import Database
from cloud.hub.registry.location import sqlite_url
from cloud.hub.registry.registry import Registry
from cloud.hub.registry.schema import gateways
from cloud.hub.registry.unfolded import UnfoldedCommits
from cloud.lake.faults import CannotLand, RegistryError
from cloud.lake.landing import Landing
from tests.simulation.replicas.gateways import SimulatedGateway
from tests.simulation.replicas.lake import ReplicaLake, SharedTables
from tests.simulation.replicas.turns import Turn

T = TypeVar("T")

HUBS: Final = 3
GATEWAYS: Final = 4
EVENTS: Final = 220
"""Random events before all faults end."""
FINAL_TURNS: Final = 4_000
"""Turns within which everything is answered once the faults have ended."""
AWAY_SHARE: Final = 0.7
"""Share of operations on the lake that fail while it is away."""
FOLDING_SHARE: Final = 0.3
"""Share of landings after which a hub folds its log of commits; it may be killed, or lose a gateway, around that."""
FAILURE_SHARE: Final = 0.05
"""Share of operations on lake and registry that fail."""
DROP_SHARE: Final = 0.05
"""Share of transactions after which a hub loses the cached marks of a gateway, and of landings before which it loses
the generation of one, also of a connected one: more than the product drops."""
EVENT_S_MAX: Final = 40.0
"""Longest time between two events: a gateway that left is dropped from memory after some of them."""
GROWTH_SHARE: Final = 0.02
"""Share of events after which the limit of gateways grows by one, where it begins low."""
COPY_SHARE: Final = 0.08
"""Share of events after which the registry is copied, or becomes its copy."""


class Replica:
    """One hub: its process while it has one, and the queue of that process."""

    def __init__(self, number: int, world: World) -> None:
        self.number = number
        self.still = False
        """True if it is suspended, and never chosen."""
        self.turn: Turn | None = None
        self._world = world
        self.registry: Registry | None = None
        """Registry of the last process."""
        self._starts = 0
        self._queue: list[QueueEntry] = []
        self._presence: dict[Key, Presence] = {}
        self._sessions: dict[Key, GatewaySession] = {}
        """Connections that it takes for open."""

    @property
    def up(self) -> bool:
        return self.turn is not None and not self.turn.ended

    def start(self) -> None:
        """Start a process: with the writer id of the last one, or with a new one, as after the loss of its file."""
        self._queue, self._presence, self._sessions = [], {}, {}
        if self._starts == 0 or self._world.random.random() < 0.3:
            self._starts += 1
        self.turn = Turn(self._serve)

    def kill(self) -> None:
        """End the process between two steps."""
        if self.turn is not None:
            self.turn.kill()

    def connect(self, session: GatewaySession) -> None:
        self._sessions[session.key] = session
        found = self._presence.setdefault(session.key, Presence(session.remote, connected=True, at_us=1))
        found.connected, found.connects = True, found.connects + 1

    def disconnect(self, session: GatewaySession) -> None:
        """Notice the end of a connection."""
        session.gone = True
        self._presence.setdefault(session.key, Presence(session.remote, connected=False, at_us=1)).connected = False
        self._queue = [entry for entry in self._queue if entry.session is not session]

    def repeat_presence(self) -> None:
        """Write again which gateways are connected, as a hub does that was counted as gone."""
        for key, session in self._sessions.items():
            if not session.gone:
                self._presence.setdefault(key, Presence(session.remote, connected=True, at_us=1)).connected = True

    def receive(self, entries: list[QueueEntry]) -> None:
        self._queue += entries

    def _serve(self, turn: Turn) -> None:
        """Work as a hub's process does, until it is killed; an error of registry or lake at the start ends it."""
        world = self._world
        with contextlib.suppress(CannotLand):
            registry = Registry(world.url, f"{self.number}{self._starts:031}", clock=lambda: world.now_s)
            self.registry = registry
            try:
                lake = ReplicaLake(world.tables, turn.step, world.random, world.lake_fails)
                registry.commits.write_to(lake)
                registry.directory.mark_all_disconnected()
                registry.directory.admission.limit_to(lambda _: world.gateways_max)
                lander = Lander(registry, Landing(lake, registry.commits), clock=lambda: 0.0)
                while True:
                    turn.step()
                    self._land(lander)
            finally:
                registry.close()

    def _land(self, lander: Lander) -> None:
        group = LandingGroup(self._queue, self._presence)
        if not (group.entries or group.presence):
            return
        self._queue, self._presence = [], {}
        if self._world.random.random() < DROP_SHARE:
            lander.registry.directory._generations.drop({self._world.random.choice(self._world.gateways).key})
        lander.land(group, 1)
        lander.registry.directory.drop_left()
        if self._world.random.random() < FOLDING_SHARE:
            lander.fold()
        for entry in group.entries:
            if entry.verdict is LandingOutcome.LANDED:
                self._world.check_known(entry.session.key)
            if entry.verdict is not None:
                entry.answer(entry.verdict, entry.words)
            elif not entry.session.gone:
                self._queue.append(entry)
        for key, presence in group.presence.items():
            self._presence.setdefault(key, presence)


class World:
    """One run of one seed."""

    def __init__(self, seed: int, folder: Path, template: Path, *, copies: bool = False, limited: bool = False) -> None:
        """`copies`: the registry may become an older copy of itself. `limited`: at first the tenant has room for one
        gateway only."""
        self.random = Random(seed)
        self.restored = 0
        """Number of times that the registry became an older copy."""
        self._copies = copies
        self._file = folder / f"{seed}.db"
        self._copy = folder / f"{seed}.copy"
        self._copy.unlink(missing_ok=True)  # another run of the seed may have made it
        self._connected: WeakKeyDictionary[Database, int] = WeakKeyDictionary()
        """Value of `restored` when each connection was made."""
        self.tables = SharedTables()
        shutil.copy(template, self._file)
        self.url = sqlite_url(self._file)
        self.failing = FAILURE_SHARE
        self.lake_away = False
        self.hubs = [Replica(number, self) for number in range(HUBS)]
        self.gateways = [SimulatedGateway(f"gw{number}", self.random) for number in range(GATEWAYS)]
        self._limited = limited
        self._strangers: list[str] = []
        self.gateways_max = 1 if limited else GATEWAYS
        self.now_s = 0.0
        """Monotonic time, which passes between two events."""
        self._connections = 0

    def fails(self) -> bool:
        """Return whether this operation fails."""
        return self.random.random() < self.failing

    def lake_fails(self) -> bool:
        """Return whether this operation on the lake fails."""
        return self.fails() or (self.lake_away and self.random.random() < AWAY_SHARE)

    def check_known(self, key: Key) -> None:
        """Check that a gateway of which something has landed has a place in its tenant."""
        with contextlib.closing(sqlite3.connect(self._file)) as database:
            found = database.execute("SELECT 1 FROM gateways WHERE tenant = ? AND name = ?", key).fetchone()
        if found is None and not self.restored:
            self._strangers.append(f"{key[1]}: something has landed, and its tenant has no room for it")

    def run(self) -> list[str]:
        """Run from the start until everything is answered; return what is wrong."""
        remembered = mock.patch.object(gateway_admission, "REFUSED_MAX", 1 if self._limited else 10)
        with remembered, self._stepwise_transactions():
            try:
                for hub in self.hubs:
                    hub.start()
                for _ in range(EVENTS):
                    self._event()
                    if self._copies and self.random.random() < COPY_SHARE:
                        self._change_copy()
                self.tables.arrive()
                self.failing, self.lake_away, self.gateways_max = 0.0, False, GATEWAYS
                self._end()
                errors = [repr(hub.turn.error) for hub in self.hubs if hub.turn is not None and hub.turn.error]
                return errors + self._violations()
            finally:
                for hub in self.hubs:
                    hub.kill()

    def _event(self) -> None:
        random = self.random
        self.now_s += random.uniform(0, EVENT_S_MAX)
        if self.gateways_max < GATEWAYS and random.random() < GROWTH_SHARE:
            self.gateways_max += 1
        hub = random.choice(self.hubs)
        choice = random.random()
        if choice < 0.62:
            self._advance(hub, random.randint(1, 12))
        elif choice < 0.77:
            gateway = random.choice(self.gateways)
            gateway.make()
            self._send(gateway)
        elif choice < 0.89:
            self._move(random.choice(self.gateways))
        elif choice < 0.90:
            hub.repeat_presence()
        elif choice < 0.92:
            self.tables.arrive()
        elif choice < 0.94:
            self.lake_away = not self.lake_away
        elif choice < 0.96:
            hub.still = not hub.still
        elif choice < 0.98:
            self._kill(hub)
        elif not hub.up:
            self._start(hub)

    def _change_copy(self) -> None:
        """Copy the registry, or put the copy in its place: while no hub runs, or while no commit is open."""
        choice = self.random.random()
        if choice < 0.6 or not self._copy.exists():
            _copy_database(self._file, self._copy)
        elif choice < 0.8:
            for hub in self.hubs:
                self._kill(hub)
            self.tables.arrive()
            self._restore()
            for hub in self.hubs:
                hub.start()
        elif not self._open_commits():
            self._restore()

    def _restore(self) -> None:
        _copy_database(self._copy, self._file)
        self.restored += 1

    def _open_commits(self) -> bool:
        with contextlib.closing(sqlite3.connect(self._file)) as database:
            return (
                database.execute("SELECT 1 FROM commits WHERE state = 'prepared' AND version IS NULL").fetchone()
                is not None
            )

    def _end(self) -> None:
        """Let the hubs that are not standing still land everything; one may stand still for good."""
        serving = [hub for hub in self.hubs if not hub.still] or self.hubs[:1]
        for hub in self.hubs:
            hub.still = hub not in serving
        for turn in range(FINAL_TURNS):
            self.now_s += 1.0
            if not any(gateway.unanswered for gateway in self.gateways):
                break
            hub = self.random.choice(serving)
            if not hub.up:
                self._start(hub)
            self._advance(hub, 1)
            for gateway in self.gateways:
                served = gateway.hub is not None and self.hubs[gateway.hub] in serving
                if gateway.unanswered and (not served or gateway.session is None or turn % 400 == 0):
                    self._move(gateway, serving)
        for hub in self.hubs:  # a hub that stood still continues: an unfinished landing of it must change nothing
            self._advance(hub, 200)

    def _start(self, hub: Replica) -> None:
        """Start a hub again, without the connections of its last process."""
        self._kill(hub)
        hub.start()

    def _kill(self, hub: Replica) -> None:
        """End the process of a hub, and with it its connections."""
        hub.kill()
        for gateway in self.gateways:
            if gateway.hub == hub.number:
                gateway.disconnect()

    def _advance(self, hub: Replica, steps: int) -> None:
        for _ in range(steps):
            if hub.up and not hub.still and hub.turn is not None:
                hub.turn.advance()

    def _move(self, gateway: SimulatedGateway, among: list[Replica] | None = None) -> None:
        """Connect a gateway again, to any hub that runs. The old hub may notice the end of the connection, or not."""
        hubs = [hub for hub in among or self.hubs if hub.up]
        if not hubs:
            return
        if gateway.session is not None and gateway.hub is not None and self.random.random() < 0.6:
            self.hubs[gateway.hub].disconnect(gateway.session)
        hub = self.random.choice(hubs)
        self._connections += 1
        gateway.connect(hub.number, f"connection {self._connections}")
        assert gateway.session is not None
        hub.connect(gateway.session)
        self._send(gateway)

    def _drop_marks(self, turn: Turn) -> None:
        """Let the hub of this turn lose the marks of a gateway."""
        registry = next((hub.registry for hub in self.hubs if hub.turn is turn), None)
        if registry is not None:
            registry.commits._marks.drop({self.random.choice(self.gateways).key})

    def _send(self, gateway: SimulatedGateway) -> None:
        if gateway.hub is not None and self.hubs[gateway.hub].up:
            self.hubs[gateway.hub].receive(gateway.send())

    def _violations(self) -> list[str]:
        wrong = self._strangers.copy()
        landed: Counter[tuple[str, int]] = Counter()
        for rows in self.tables.rows("telemetry"):
            landed.update(zip(rows.column("gateway").to_pylist(), rows.column("sequence").to_pylist(), strict=True))
        explained: Counter[tuple[str, int]] = Counter()
        for rows in self.tables.rows("ledger"):
            first = rows.column("first_sequence").to_pylist()
            explained.update(zip(rows.column("gateway").to_pylist(), first, strict=True))
        if not self.restored:
            wrong += self._wrong_totals(Counter(name for name, _ in landed.elements()))
        for gateway in self.gateways:
            if gateway.unanswered:
                wrong.append(f"{gateway.name}: {gateway.unanswered} of {gateway.made} have no answer")
            for name, found, numbers in (
                ("lake", landed, gateway.stored & gateway.answered),
                ("ledger", explained, gateway.dropped & gateway.answered),
            ):
                lost = [number for number in numbers if not found[gateway.name, number]]
                twice = [number for (name_of, number), times in found.items() if name_of == gateway.name and times > 1]
                wrong += [f"{gateway.name}: {lost} acknowledged and not in the {name}"] if lost else []
                wrong += [f"{gateway.name}: {sorted(twice)} in the {name} twice"] if twice else []
        return wrong

    def _wrong_totals(self, landed: Counter[str]) -> list[str]:
        """Compare the registry's totals with the lake, after everything that is known to have landed is folded."""
        database = Database(self.url)
        unfolded, keys = UnfoldedCommits(database), [gateway.key for gateway in self.gateways]

        def work(tx: sa.Connection) -> tuple[dict[str, int], Counter[str]]:
            unfolded.fold(tx, [each for each in unfolded.naming(tx, keys) if each.version is not None])
            unknown: Counter[str] = Counter()
            for prepared in unfolded.prepared(tx, unfolded.naming(tx, keys)):
                for moved in prepared.ranges:
                    unknown[moved.gateway] += moved.last - moved.first + 1
            return dict(tuple(row) for row in tx.execute(sa.select(gateways.c.name, gateways.c.landed))), unknown

        try:
            totals, unknown = database.transaction(work)
        finally:
            database.close()
        return [
            f"{name}: the registry counts {total} messages, the lake has {landed[name]}"
            for name, total in totals.items()
            if not total <= landed[name] <= total + unknown[name]
        ]

    @contextlib.contextmanager
    def _stepwise_transactions(self) -> Iterator[None]:
        """Make each transaction a step, which may fail before it happens or after it."""
        run, open_ = Database.transaction, Database.open
        turn_of = self._turn_of

        def first_transaction(database: Database, work: Callable[[Any], T]) -> T:
            self._connected[database] = self.restored
            return open_(database, work)

        def transaction(database: Database, work: Callable[[Any], T]) -> T:
            turn = turn_of()
            if turn is None:
                return run(database, work)
            turn.step()
            if self._connected.setdefault(database, self.restored) != self.restored:
                self._connected[database] = self.restored
                database.connections += 1
                _forget_cached(database)
                raise RegistryError("the connection to the registry was lost")
            fails, after = self.fails(), self.random.random() < 0.5
            if fails and not after:
                _forget_cached(database)
                raise RegistryError("the registry does not answer")
            result = run(database, work)
            turn.step()
            if self.random.random() < DROP_SHARE:
                self._drop_marks(turn)
            if fails:
                _forget_cached(database)
                raise RegistryError("the registry's answer was lost")
            return result

        with (
            mock.patch.object(Database, "transaction", transaction),
            mock.patch.object(Database, "open", first_transaction),
        ):
            yield

    def _turn_of(self) -> Turn | None:
        """Return the turn of the calling thread."""
        return next((hub.turn for hub in self.hubs if hub.turn is not None and hub.turn.is_mine()), None)


def _forget_cached(database: Database) -> None:
    """Do what a transaction with an unknown result does."""
    for forget in database.in_doubt:
        forget()


def _copy_database(source: Path, target: Path) -> None:
    """Copy a database, also over one that is open."""
    with contextlib.closing(sqlite3.connect(source)) as read, contextlib.closing(sqlite3.connect(target)) as written:
        read.backup(written)


def make_template(file: Path) -> None:
    """Make an empty registry, to be copied for each run."""
    Registry(sqlite_url(file), "f" * 32).close()


def violations(seeds: range, folder: Path, *, copies: bool = False, limited: bool = False) -> dict[int, list[str]]:
    """Run seeds; return what is wrong with those that failed. `copies`, `limited`: as for `World`."""
    template = folder / "template.db"
    if not template.exists():
        make_template(template)
    found = {seed: World(seed, folder, template, copies=copies, limited=limited).run() for seed in seeds}
    return {seed: wrong for seed, wrong in found.items() if wrong}
