"""Lake of Delta tables at a place: every table of the contract, for one writing thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa

from cloud.lake.checkpoints import StartWork, run_at_once
from cloud.lake.commits import Failpoint, no_failpoint
from cloud.lake.contract import contract
from cloud.lake.lake import TableRefusal, TransactionId
from cloud.lake.sequences import SequenceRange
from cloud.lake.tables import LakeTable, lake_errors
from cloud.place.place import LakeLocation, place_of


class DeltaLake:
    """Lake of Delta tables, implements `cloud.lake.lake.LandingLake`."""

    def __init__(
        self,
        lake: LakeLocation,
        *,
        durable_versions: Mapping[str, int] | None = None,
        failpoint: Failpoint = no_failpoint,
        start: StartWork = run_at_once,
    ) -> None:
        """Open the tables; create missing ones.

        `durable_versions`: newest version of each table known to be on disk. `start` starts checkpoints, for which no
        landing waits. Raises `LakeError`.
        """
        place, known = place_of(lake), durable_versions or {}
        with lake_errors(f"{place.uri} cannot be used as a lake"):
            place.check()
        self._tables = {
            name: LakeTable.open(place, name, durable_version=known.get(name, -1), failpoint=failpoint, start=start)
            for name in contract().tables
        }

    @property
    def identity(self) -> str:
        return self._tables["telemetry"].identity

    @property
    def versions(self) -> dict[str, int]:
        return {name: table.version for name, table in self._tables.items()}

    @property
    def refusals(self) -> dict[str, TableRefusal]:
        found = {name: table.refusal for name, table in self._tables.items()}
        return {name: refusal for name, refusal in found.items() if refusal is not None}

    def require_writable(self, table: str) -> None:
        self._tables[table].require_writable()

    def append(self, table: str, rows: pa.Table, transaction: TransactionId | None = None) -> int:
        return self._tables[table].append(rows, transaction)

    def compact(self) -> int:
        for table in self._tables.values():
            count = table.compact()
            if count:
                return count
        return 0

    def committed(self, table: str, application: str) -> int | None:
        return self._tables[table].committed(application)

    def settled(self, table: str, transaction: TransactionId) -> bool:
        return self._tables[table].settled(transaction)

    def transactions(self, table: str) -> Mapping[str, int]:
        return self._tables[table].transactions()

    def fence(self, table: str, commits: Mapping[str, int]) -> None:
        self._tables[table].fence(commits)

    def ranges_of(self, table: str, transaction: TransactionId, version: int) -> list[SequenceRange] | None:
        columns = _LEDGER if table == "ledger" else _TELEMETRY
        rows = self._tables[table].added_by(transaction, version, columns)
        if rows is None:
            return None
        return ledger_ranges_of(rows) if table == "ledger" else ranges_in_order(rows)

    def ledgered(self) -> Iterator[Sequence[SequenceRange]]:
        for rows in self._tables["ledger"].read(_LEDGER, {}):
            yield ledger_ranges_of(rows)

    def gateways(self) -> set[tuple[str, str]]:
        found: set[tuple[str, str]] = set()
        for rows in self._tables["telemetry"].read(["tenant", "gateway"], {}):
            found |= gateways_of(rows)
        return found

    def landed(self, tenant: str, gateway: str) -> Iterator[Sequence[SequenceRange]]:
        for rows in self._tables["telemetry"].read(
            ["epoch", "address", "sequence"], {"tenant": tenant, "gateway": gateway}
        ):
            yield ranges_of(tenant, gateway, rows)


_LEDGER: Final = ("tenant", "gateway", "epoch", "address", "first_sequence", "last_sequence")


_TELEMETRY: Final = ("tenant", "gateway", "epoch", "address", "sequence")


def ranges_in_order(rows: pa.Table) -> list[SequenceRange]:
    """Return the sequences of rows as ranges, in the order of the rows: that in which they were planned."""
    ranges: list[SequenceRange] = []
    columns = (rows.column(name).to_pylist() for name in _TELEMETRY)
    for tenant, gateway, epoch, address, sequence in zip(*columns, strict=True):
        last = ranges[-1] if ranges else None
        if last is not None and last[:4] == (tenant, gateway, epoch, address) and sequence == last.last + 1:
            ranges[-1] = last._replace(last=sequence)
        else:
            ranges.append(SequenceRange(tenant, gateway, epoch, address, sequence, sequence))
    return ranges


def ledger_ranges_of(rows: pa.Table) -> list[SequenceRange]:
    """Return the ranges in rows of the ledger."""
    columns = (rows.column(name).to_pylist() for name in _LEDGER)
    return [SequenceRange(*values) for values in zip(*columns, strict=True)]


def gateways_of(rows: pa.Table) -> set[tuple[str, str]]:
    """Return the (tenant, gateway) pairs in these rows."""
    pairs = rows.select(["tenant", "gateway"]).group_by(["tenant", "gateway"]).aggregate([])
    return set(zip(pairs["tenant"].to_pylist(), pairs["gateway"].to_pylist(), strict=True))


def ranges_of(tenant: str, gateway: str, rows: pa.Table) -> list[SequenceRange]:
    """Return the sequences of rows (columns epoch, address and sequence) as dense ranges."""
    ranges: list[SequenceRange] = []
    ordered = rows.sort_by([("epoch", "ascending"), ("address", "ascending"), ("sequence", "ascending")])
    columns = (ordered.column(name).to_pylist() for name in ("epoch", "address", "sequence"))
    for epoch, address, sequence in zip(*columns, strict=True):
        last = ranges[-1] if ranges else None
        if last is not None and last[2:4] == (epoch, address) and sequence in (last.last, last.last + 1):
            ranges[-1] = last._replace(last=sequence)
        else:
            ranges.append(SequenceRange(tenant, gateway, epoch, address, sequence, sequence))
    return ranges
