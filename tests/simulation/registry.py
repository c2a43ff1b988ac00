"""Simulated registry: the methods of `cloud.hub.registry` that landing and committer use, durable at once.

Each method is one transaction. It may fail before it happens, or after it (a database with a lost answer).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from random import Random

from cloud.hub.groups import GatewayLineage, Key, Presence, StoredState
from cloud.hub.registry.directory import GatewayRecord
from cloud.hub.registry.enrolments import CertificateRecord
from cloud.hub.registry.lineages import is_earlier_copy
from cloud.lake.commits import GatewayStore, Prepared
from cloud.lake.faults import RegistryError
from cloud.lake.limits import HOLES_MAX
from cloud.lake.sequences import SequenceRange, SequenceSet, SequenceStream, Span

WRITER = "hub"


class Database:
    """State that survives the hubs that use it."""

    def __init__(self, random: Random) -> None:
        self.generations: dict[Key, int] = {}
        self.landed: dict[SequenceStream, SequenceSet] = {}
        self.ledgered: set[SequenceRange] = set()
        self.lineages: dict[GatewayStore, list[str]] = {}
        self.reached: dict[GatewayStore, dict[int, int]] = {}
        """Lower bounds of the ends of logs, by store."""
        self.commits: dict[tuple[str, int], tuple[bool, Sequence[SequenceRange], int]] = {}
        """(confirmed, ranges, version) by (table, commit)."""
        self.last: dict[str, int] = {}
        self.certificates: dict[str, CertificateRecord] = {}
        """Certificates by serial number, in the order of creation."""
        self.fails = 0.0
        """Share of transactions that fail."""
        self.random = random

    def transaction(self) -> bool:
        """Begin a transaction.

        Raise RegistryError when it does not happen; return True when it happens but fails afterwards.
        """
        if self.fails and self.random.random() < self.fails:
            if self.random.random() < 0.5:
                raise RegistryError("the registry cannot be used")
            return True
        return False

    def end(self, fails: bool) -> None:
        """End a transaction."""
        if fails:
            raise RegistryError("the registry's answer was lost")


class SimulatedRegistry:
    """Connection of one hub to the database."""

    def __init__(self, database: Database) -> None:
        self.directory = SimulatedDirectory(database)
        self.lineages = SimulatedLineages(database)
        self.commits = SimulatedCommits(database)


class SimulatedDirectory:
    """Substitute for `cloud.hub.registry.directory.Directory`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._given: dict[Key, int] = {}

    def presence(self, changes: Mapping[Key, Presence]) -> dict[Key, StoredState]:
        if not changes:
            return {}
        database = self._database
        fails = database.transaction()
        for key, presence in changes.items():
            database.generations[key] = database.generations.get(key, 0) + presence.connects
        database.end(fails)
        for key, presence in changes.items():
            if presence.connects:
                self._given[key] = database.generations[key]
        return {key: StoredState(0, None) for key, presence in changes.items() if presence.connects}

    def seen(self, when: Mapping[Key, int]) -> None:
        self._database.end(self._database.transaction())

    def mark_all_disconnected(self) -> None:
        """Do nothing: no caller here reads the connection state."""

    def gateways(self) -> list[GatewayRecord]:
        return []

    undecided: frozenset[Key] = frozenset()
    """Always empty: nothing limits the gateways."""

    def refused(self, who: Iterable[Key]) -> set[Key]:
        return set()

    def drop_left(self) -> Sequence[Key]:
        """Drop nothing: no run connects many gateways."""
        return []

    def fenced(self, who: Iterable[Key]) -> set[Key]:
        self._database.end(self._database.transaction())
        generations = self._database.generations
        return {key for key in who if key in generations and self._given.get(key) not in (None, generations[key])}


class SimulatedLineages:
    """Substitute for `cloud.hub.registry.lineages.Lineages`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def compare(self, store: GatewayStore, told: GatewayLineage) -> str | None:
        database = self._database
        fails = database.transaction()
        known = database.lineages.get(store, [])
        if known and known[-1] not in told.openings:
            return next((opening for opening in reversed(told.openings) if opening in known), "")
        if known and is_earlier_copy(known[-1], database.reached.get(store, {}), told):
            return known[-1]
        database.lineages[store] = list(told.openings)
        database.end(fails)
        return None


class SimulatedCommits:
    """Substitute for `cloud.hub.registry.commits.RegistryCommits`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._last = dict(database.last)

    def application(self, prepared: Prepared) -> str:
        return f"waypost/simulated/{prepared.writer}/{prepared.table}"

    def unresolved(self) -> Sequence[Prepared]:
        self._database.end(self._database.transaction())
        found = sorted(self._database.commits.items())
        return [Prepared(WRITER, table, commit, ranges) for (table, commit), (done, ranges, _) in found if not done]

    landed_since_fold = 0
    """Zero: each confirmed commit is in the marks at once."""

    def fold(self) -> None:
        """Do nothing."""

    def take_over(self, gateways: Iterable[Key]) -> Sequence[Prepared]:
        """Return nothing: one hub at a time uses this database."""
        return []

    def landed(self, stream: SequenceStream) -> SequenceSet:
        return self._database.landed.get(stream) or SequenceSet()

    def ledgered(self, ranges: Iterable[SequenceRange]) -> set[SequenceRange]:
        self._database.end(self._database.transaction())
        return {each for each in ranges if each in self._database.ledgered}

    def dropped(self, stream: SequenceStream, first: int, last: int, limit: int | None = None) -> Sequence[Span]:
        self._database.end(self._database.transaction())
        known = sorted(self._database.ledgered)
        return [(n.first, n.last) for n in known if n.stream == stream and n.first <= last and n.last >= first][:limit]

    def prepare(
        self,
        table: str,
        ranges: Sequence[SequenceRange],
        rows: int,
        reached: Mapping[GatewayStore, Mapping[int, int]] | None = None,
    ) -> Prepared:
        database = self._database
        fails = database.transaction()
        for store, ends in (reached or {}).items():
            known = database.reached.setdefault(store, {})
            known.update((log, max(end, known.get(log, 0))) for log, end in ends.items())
        commit = self._last.get(table, 0) + 1
        if (table, commit) in database.commits:
            raise RegistryError(f"commit {commit} of {table} is there already")
        database.commits[table, commit] = (False, list(ranges), -1)
        database.last[table] = commit
        database.end(fails)
        self._last[table] = commit
        return Prepared(WRITER, table, commit, ranges)

    def confirm(self, prepared: Prepared, version: int) -> None:
        database = self._database
        fails = database.transaction()
        done, ranges, _ = database.commits[prepared.table, prepared.commit]
        if not done:
            for each in ranges:
                if prepared.table == "ledger":
                    database.ledgered.add(each)
                else:
                    landed = database.landed.get(each.stream, SequenceSet()).copy()
                    landed.add(each.first, each.last, HOLES_MAX)
                    database.landed[each.stream] = landed
        database.commits[prepared.table, prepared.commit] = (True, (), version)
        database.end(fails)

    def forget(self, prepared: Prepared) -> None:
        database = self._database
        fails = database.transaction()
        database.commits.pop((prepared.table, prepared.commit), None)
        database.end(fails)
