"""Lake that several hubs share: a log of versions for each table. A version is taken once, by whoever is first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from types import MappingProxyType
from typing import NamedTuple

import pyarrow as pa

from cloud.lake.contract import contract
from cloud.lake.delta import gateways_of, ranges_of
from cloud.lake.faults import LakeError
from cloud.lake.lake import TableRefusal, TransactionId
from cloud.lake.sequences import SequenceRange


class Entry(NamedTuple):
    """One version of a table: rows, or a fence of one application or of several."""

    rows: pa.Table | None
    transaction: TransactionId | None
    fence: bool = False
    fences: Mapping[str, int] = MappingProxyType({})
    """Last fenced commit by application."""


class SharedTables:
    """Versions of all tables, and entries on their way to the store."""

    def __init__(self) -> None:
        self.logs: dict[str, list[Entry]] = {name: [] for name in contract().tables}
        self._delayed: list[tuple[str, int, Entry]] = []

    def put(self, table: str, version: int, entry: Entry) -> bool:
        """Take a version; return False if it is taken."""
        log = self.logs[table]
        if len(log) != version:
            return False
        log.append(entry)
        return True

    def delay(self, table: str, version: int, entry: Entry) -> None:
        """Send an entry that arrives later."""
        self._delayed.append((table, version, entry))

    def arrive(self) -> None:
        """Deliver the delayed entries, each to its version."""
        for table, version, entry in self._delayed:
            self.put(table, version, entry)
        self._delayed.clear()

    def rows(self, table: str) -> list[pa.Table]:
        """Return the rows of each version."""
        return [entry.rows for entry in self.logs[table] if entry.rows is not None]


class ReplicaLake:
    """One hub's view: implements `cloud.lake.lake.LandingLake`. Each read and each write is a step of its own."""

    def __init__(
        self, tables: SharedTables, step: Callable[[], None], random: Random, fails: Callable[[], bool]
    ) -> None:
        self._tables = tables
        self._step = step
        self._random = random
        self._fails = fails

    @property
    def identity(self) -> str:
        return "shared"

    @property
    def versions(self) -> Mapping[str, int]:
        return {name: len(log) - 1 for name, log in self._tables.logs.items()}

    def ranges_of(self, table: str, transaction: TransactionId, version: int) -> list[SequenceRange] | None:
        """Raise NotImplementedError: no run damages a row of the registry."""
        raise NotImplementedError

    @property
    def refusals(self) -> Mapping[str, TableRefusal]:
        return {}

    def require_writable(self, table: str) -> None:
        pass

    def append(self, table: str, rows: pa.Table, transaction: TransactionId | None = None) -> int:
        while True:
            self._step()
            version = len(self._tables.logs[table])
            if transaction is not None and self._is_fenced(table, transaction):
                raise LakeError(f"commit {transaction.commit} rejected: another writer fenced it")
            self._step()
            entry = Entry(rows, transaction)
            if self._fails():
                arrives = self._random.random()
                if arrives < 0.5:
                    self._tables.delay(table, version, entry)
                elif arrives < 0.7:
                    self._tables.put(table, version, entry)
                raise LakeError("no answer from the store")
            if self._tables.put(table, version, entry):
                return version

    def compact(self) -> int:
        return 0

    def committed(self, table: str, application: str) -> int | None:
        self._step()
        return self._committed(table, application)

    def settled(self, table: str, transaction: TransactionId) -> bool:
        while True:
            self._step()
            if self._fails():
                raise LakeError("no answer from the store")
            version = len(self._tables.logs[table])
            if (self._committed(table, transaction.application) or 0) >= transaction.commit:
                return True
            self._step()
            if self._tables.put(table, version, Entry(None, transaction, fence=True)):
                return False

    def transactions(self, table: str) -> Mapping[str, int]:
        self._step()
        if self._fails():
            raise LakeError("no answer from the store")
        log = self._tables.logs[table]
        applications = {entry.transaction.application for entry in log if entry.transaction is not None}
        return {
            name: max(self._last(table, name, fence=fence) or 0 for fence in (False, True)) for name in applications
        }

    def fence(self, table: str, commits: Mapping[str, int]) -> None:
        while True:
            self._step()
            if self._fails():
                raise LakeError("no answer from the store")
            version = len(self._tables.logs[table])
            self._step()
            if self._tables.put(table, version, Entry(None, None, fences=commits)):
                return

    def ledgered(self) -> Iterator[Sequence[SequenceRange]]:
        self._step()
        names = ("tenant", "gateway", "epoch", "address", "first_sequence", "last_sequence")
        for rows in self._tables.rows("ledger"):
            yield [SequenceRange(*(row[name] for name in names)) for row in rows.to_pylist()]

    def gateways(self) -> set[tuple[str, str]]:
        self._step()
        return set().union(*map(gateways_of, self._tables.rows("telemetry")))

    def landed(self, tenant: str, gateway: str) -> Iterator[Sequence[SequenceRange]]:
        for rows in self._tables.rows("telemetry"):
            mine = [name == gateway for name in rows.column("gateway").to_pylist()]
            yield ranges_of(tenant, gateway, rows.filter(pa.array(mine)))

    def _committed(self, table: str, application: str) -> int | None:
        return self._last(table, application, fence=False)

    def _is_fenced(self, table: str, transaction: TransactionId) -> bool:
        return (self._last(table, transaction.application, fence=True) or 0) >= transaction.commit

    def _last(self, table: str, application: str, *, fence: bool) -> int | None:
        found = [
            entry.transaction.commit
            for entry in self._tables.logs[table]
            if entry.fence is fence and entry.transaction is not None and entry.transaction.application == application
        ]
        if fence:
            found += [entry.fences[application] for entry in self._tables.logs[table] if application in entry.fences]
        return max(found, default=None)
