"""Lake in memory: the interface of the landing, without a disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from cloud.lake.contract import contract
from cloud.lake.delta import gateways_of, ledger_ranges_of, ranges_in_order, ranges_of
from cloud.lake.lake import TableRefusal, TransactionId
from cloud.lake.sequences import SequenceRange


class MemoryLake:
    """Implements `cloud.lake.lake.LandingLake`."""

    def __init__(self, identity: str = "memory") -> None:
        self.identity = identity
        self.appended: dict[str, list[pa.Table]] = {name: [] for name in contract().tables}
        """Rows of each append, by table."""
        self._committed: dict[tuple[str, str], int] = {}
        self._added: dict[tuple[str, TransactionId], pa.Table] = {}
        self._fenced: dict[tuple[str, str], int] = {}

    @property
    def versions(self) -> Mapping[str, int]:
        return {table: len(parts) for table, parts in self.appended.items()}

    @property
    def refusals(self) -> Mapping[str, TableRefusal]:
        return {}

    def require_writable(self, table: str) -> None:
        pass

    def append(self, table: str, rows: pa.Table, transaction: TransactionId | None = None) -> int:
        self.appended[table].append(rows)
        if transaction is not None:
            self._committed[table, transaction.application] = transaction.commit
            self._added[table, transaction] = rows
        return len(self.appended[table])

    def compact(self) -> int:
        return 0

    def committed(self, table: str, application: str) -> int | None:
        return self._committed.get((table, application))

    def settled(self, table: str, transaction: TransactionId) -> bool:
        return (self.committed(table, transaction.application) or 0) >= transaction.commit

    def transactions(self, table: str) -> Mapping[str, int]:
        found = self._committed.copy()
        for key, commit in self._fenced.items():
            found[key] = max(commit, found.get(key, commit))
        return {name: commit for (where, name), commit in found.items() if where == table}

    def fence(self, table: str, commits: Mapping[str, int]) -> None:
        """Keep the fence: one hub at a time writes into this lake, so it refuses nothing."""
        self._fenced |= {(table, name): commit for name, commit in commits.items()}

    def ranges_of(self, table: str, transaction: TransactionId, version: int) -> list[SequenceRange] | None:
        rows = self._added.get((table, transaction))
        if rows is None:
            return None
        if table == "ledger":
            return ledger_ranges_of(rows)
        return ranges_in_order(rows)

    def lose(self, table: str) -> None:
        """Forget which rows each transaction added, as after a deletion of old files."""
        for key in [key for key in self._added if key[0] == table]:
            del self._added[key]

    def ledgered(self) -> Iterator[Sequence[SequenceRange]]:
        names = ("tenant", "gateway", "epoch", "address", "first_sequence", "last_sequence")
        for rows in self.appended["ledger"]:
            yield [SequenceRange(*(row[name] for name in names)) for row in rows.to_pylist()]

    def gateways(self) -> set[tuple[str, str]]:
        return set().union(*map(gateways_of, self.appended["telemetry"]))

    def landed(self, tenant: str, gateway: str) -> Iterator[Sequence[SequenceRange]]:
        for rows in list(self.appended["telemetry"]):
            yield ranges_of(tenant, gateway, _of_gateway(rows, (tenant, gateway)))


def _of_gateway(rows: pa.Table, key: tuple[str, str]) -> pa.Table:
    whose = zip(rows.column("tenant").to_pylist(), rows.column("gateway").to_pylist(), strict=True)
    return rows.filter(pa.array([who == key for who in whose]))
