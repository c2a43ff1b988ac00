"""Medium of the lake: tables that commit versions atomically, and lose unsynced data at a power cut.

`cloud.lake.landing` is real; this module replaces the Delta table under it, and the Arrow rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

from cloud.lake import landing
from cloud.lake.commits import Failpoint, no_failpoint
from cloud.lake.contract import contract
from cloud.lake.faults import LakeError
from cloud.lake.lake import TableRefusal, TransactionId
from cloud.lake.rows import BatchSlice
from cloud.lake.sequences import SequenceRange
from tests.simulation.history import History
from tests.simulation.medium import ids

STATED = ("epoch", "address", "first_sequence", "last_sequence", "given_up", "previous", "digest")
"""Columns of `manifests` that the checker reads."""


class Killed(BaseException):
    """Process end between two steps of a landing."""


class Row(NamedTuple):
    """Columns of a row of `telemetry` that the checker reads."""

    epoch: str
    address: str
    sequence: int
    message: str
    lane: str


class Rows(list[Any]):
    """Replaces an Arrow table."""

    @property
    def num_rows(self) -> int:
        return len(self)


class Version(NamedTuple):
    """One commit to a table."""

    rows: Rows
    transaction: TransactionId | None


class SimulatedLake:
    """Substitute for `cloud.lake.lake.LandingLake`, for all hubs."""

    def __init__(self, history: History) -> None:
        self.failure: Exception | None = None
        """Error that appending raises, if set."""
        self.uncertain = False
        """Make a failing append take effect nevertheless."""
        self.failpoint: Failpoint = no_failpoint
        self._tables: dict[str, list[Version]] = {name: [] for name in contract().tables}
        self._synced: Counter[str] = Counter()
        """Number of versions that survive a power cut, by table."""
        self._history = history

    @property
    def identity(self) -> str:
        return "simulated"

    @property
    def versions(self) -> Mapping[str, int]:
        return {name: len(versions) - 1 for name, versions in self._tables.items()}

    def ranges_of(self, table: str, transaction: TransactionId, version: int) -> list[SequenceRange] | None:
        """Raise NotImplementedError: no run damages a row of the registry."""
        raise NotImplementedError

    @property
    def refusals(self) -> Mapping[str, TableRefusal]:
        return {}

    def require_writable(self, table: str) -> None:
        pass

    def compact(self) -> int:
        return 0

    def committed(self, table: str, application: str) -> int | None:
        if isinstance(self.failure, LakeError):
            raise self.failure
        self._sync(table)
        names = [version.transaction for version in self._tables[table] if version.transaction is not None]
        return max((name.commit for name in names if name.application == application), default=None)

    def settled(self, table: str, transaction: TransactionId) -> bool:
        return (self.committed(table, transaction.application) or 0) >= transaction.commit

    def append(self, table: str, rows: Rows, transaction: TransactionId | None = None) -> int:
        failure = self.failure
        if failure is not None and not self.uncertain:
            raise failure
        self.failpoint("written")
        self._tables[table].append(Version(rows, transaction))
        self.failpoint("committed")
        if failure is not None:
            raise failure
        self._sync(table)
        self.failpoint("synced")
        return len(self._tables[table]) - 1

    def gateways(self) -> set[tuple[str, str]]:
        """Raise NotImplementedError: only a registry that is an older copy needs this, and no run has one."""
        raise NotImplementedError

    def landed(self, tenant: str, gateway: str) -> Iterator[Sequence[SequenceRange]]:
        for version in self._tables["telemetry"]:
            yield [SequenceRange(tenant, gateway, *row[:3], row.sequence) for row in version.rows]

    def power_cut(self, *, keep: bool) -> None:
        """Make unsynced data durable if `keep`, else discard it."""
        for table, versions in self._tables.items():
            if not keep:
                del versions[self._synced[table] :]
            self._sync(table)

    def _sync(self, table: str) -> None:
        """Make the present versions durable and record them in the history."""
        for version in self._tables[table][self._synced[table] :]:
            for row in version.rows:
                if table == "telemetry":
                    self._history.record("landed", *row)
                elif table == "ledger":
                    first, last = row["first_sequence"], row["last_sequence"]
                    self._history.record("hub ledger", row["epoch"], row["address"], first, last, row["reason"])
                elif table == "manifests":
                    said = [row[name] for name in STATED]
                    self._history.record("stated", *said)
                elif table == "quarantine":
                    self._history.record("quarantined", row["reason"])
        self._synced[table] = len(self._tables[table])


def telemetry(slices: Sequence[BatchSlice], _ingested_at_us: int) -> Rows:
    """Stand in for `cloud.lake.rows.telemetry_rows`."""
    rows = Rows()
    for received, address, sequence, start, stop in slices:
        batch = received.batch
        names = ids(batch.bodies[start:stop])
        lane = batch.lane.name.lower()
        rows += [Row(batch.epoch, address, sequence + i, name, lane) for i, name in enumerate(names)]
    return rows


def joined(tables: Sequence[Rows]) -> Rows:
    """Stand in for `cloud.lake.rows.join_tables`."""
    return Rows(row for table in tables for row in table)


def records(_table: str, rows: Sequence[Mapping[str, Any]], _ingested_at_us: int) -> Rows:
    """Stand in for `cloud.lake.rows.record_rows`."""
    return Rows(rows)


@contextmanager
def simulated_rows() -> Iterator[None]:
    """Make landings build rows for a `SimulatedLake`."""
    with (
        mock.patch.object(landing, "telemetry_rows", telemetry),
        mock.patch.object(landing, "join_tables", joined),
        mock.patch.object(landing, "record_rows", records),
    ):
        yield
