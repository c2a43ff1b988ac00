"""The landing: batches into Delta, each message once, whatever happens in between.

A landing is four steps, and each is durable before the next begins:

1. *prepare*: the registry records the sequences about to move, under a commit id;
2. *commit*: the rows are appended to the table, with that id as the transaction version of the registry's
   application id;
3. *confirm*: the registry ranges the marks;
4. the caller acknowledges.

After a crash, or an error whose outcome is not known, `resolve` asks the table for the id: it is there, then the commit
is confirmed, or it is not and never will be (there is one committer), then it is forgotten. What arrives again after a
confirmed commit is trimmed by the marks; what arrives again after a forgotten one lands.

This module has no thread, clock, socket or database of its own: `cloud.hub.committer` calls it from one thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from cloud.lake.commits import CommitLog, Failpoint, Prepared, SequenceRange, Stream, no_failpoint
from cloud.lake.contract import contract
from cloud.lake.limits import HOLES_MAX
from cloud.lake.rows import Piece, ReceivedBatch, pieces_of, records, telemetry
from cloud.lake.sequences import SequenceSet, Span
from cloud.lake.tables import LakeError, Table


class Landed(NamedTuple):
    """What one landing did."""

    rows: int = 0
    duplicates: int = 0
    """Messages that had landed before."""
    gaps: int = 0
    """Ranges that began later than the sequence expected; what is missing is in the ledger, on its way, or lost."""
    holes_closed: int = 0
    """Holes given up to keep `HOLES_MAX`; what would have filled them is taken for a duplicate from now on."""
    by_gateway: Mapping[tuple[str, str], int] = {}
    """New messages of each (tenant, gateway)."""

    def plus(self, other: Landed) -> Landed:
        """Both together."""
        return Landed(
            self.rows + other.rows,
            self.duplicates + other.duplicates,
            self.gaps + other.gaps,
            self.holes_closed + other.holes_closed,
            Counter(self.by_gateway) + Counter(other.by_gateway),
        )


class LedgerRange(NamedTuple):
    """Sequences a gateway gave up, as it reported them; `decided_at` is UTC microseconds."""

    tenant: str
    gateway: str
    epoch: str
    address: str
    first: int
    last: int
    bytes: int
    reason: str
    decided_at: int


class Plan(NamedTuple):
    """What of some batches is new."""

    pieces: list[Piece]
    ranges: list[SequenceRange]
    landed: Landed


def plan(batches: Iterable[ReceivedBatch], landed_of: Callable[[Stream], SequenceSet]) -> Plan:
    """Trim batches, in order, against what has landed and against each other."""
    known: dict[Stream, SequenceSet] = {}
    pieces: list[Piece] = []
    ranges: list[SequenceRange] = []
    total = gaps = closed = 0
    for received in batches:
        wanted: list[Sequence[Span]] = []
        for piece in received.batch.ranges:
            stream = Stream(received.tenant, received.gateway, received.batch.epoch, piece.address)
            landed = known.get(stream)
            if landed is None:
                landed = known[stream] = landed_of(stream).copy()
            gaps += piece.first > max(landed.mark + 1, piece.base)
            spans = landed.missing(piece.first, piece.first + piece.count - 1)
            for span in spans:
                closed += landed.add(*span, HOLES_MAX)
                ranges.append(SequenceRange(*stream, *span))
            wanted.append(spans)
            total += piece.count
        pieces += pieces_of(received, wanted)
    by_gateway: Counter[tuple[str, str]] = Counter()
    for new in pieces:
        by_gateway[new.received.tenant, new.received.gateway] += new.stop - new.start
    rows = by_gateway.total()
    return Plan(pieces, ranges, Landed(rows, total - rows, gaps, closed, by_gateway))


class Landing:
    """The one committer of a lake. For one thread."""

    def __init__(
        self,
        lake: Path,
        commits: CommitLog,
        *,
        durable_versions: Mapping[str, int] | None = None,
        failpoint: Failpoint = no_failpoint,
    ) -> None:
        """Open the lake's tables, made empty where they are not there, and settle what a crash left open.

        `durable_versions`: for each table the newest version the registry knows to be on disk. Raises `LakeError` and
        `cloud.lake.commits.RegistryError`.
        """
        known = durable_versions or {}
        self._commits = commits
        self._failpoint = failpoint
        self._tables = {
            name: Table.open(lake, name, durable_version=known.get(name, -1), failpoint=failpoint)
            for name in contract().tables
        }
        self._settled = False
        self.resolve()

    @property
    def versions(self) -> dict[str, int]:
        """The version of each table as this committer left it."""
        return {name: table.version for name, table in self._tables.items()}

    def resolve(self) -> None:
        """Confirm or forget every prepared commit. Raises as the constructor; may be called again."""
        for prepared in self._commits.unresolved():
            table = self._tables[prepared.table]
            found = table.transaction_version(self._commits.application(prepared.table))
            if found is not None and found >= prepared.commit:
                self._commits.confirm(prepared, table.version)
            else:
                self._commits.forget(prepared)
        self._settled = True

    def land(self, batches: Sequence[ReceivedBatch], now_us: int) -> Landed:
        """Land batches; on return every message of them is in `telemetry`, once, on disk.

        `now_us`: UTC microseconds, becomes `ingested_at`. Raises as the constructor: then nothing may be acknowledged.
        """
        self._settle()
        new = plan(batches, self._commits.landed)
        if new.pieces:
            self._commit("telemetry", telemetry(new.pieces, now_us), new.ranges)
        return new.landed

    def land_ledger(self, ranges: Sequence[LedgerRange], now_us: int) -> int:
        """Land ledger ranges, each once; returns how many were new. Raises as `land`."""
        self._settle()
        unique = {SequenceRange(*entry[:6]): entry for entry in reversed(ranges)}
        known = self._commits.ledgered(unique)
        new = [(moved, entry) for moved, entry in unique.items() if moved not in known]
        if new:
            rows = [_ledger_row(entry) for _, entry in new]
            self._commit("ledger", records("ledger", rows, now_us), [moved for moved, _ in new])
        return len(new)

    def land_records(self, table: str, rows: Sequence[Mapping[str, Any]], now_us: int) -> None:
        """Append rows that may be there twice after a crash (states, manifests: each says when it was made)."""
        if rows:
            self._tables[table].append(records(table, rows, now_us))

    def _settle(self) -> None:
        if not self._settled:
            self.resolve()

    def _commit(self, name: str, rows: pa.Table, ranges: Sequence[SequenceRange]) -> None:
        """The steps of the module's description. After an error the outcome is looked up before the next landing."""
        self._settled = False
        prepared = Prepared(name, self._commits.prepare(name, ranges, rows.num_rows), ranges)
        self._failpoint("prepared")
        try:
            version = self._tables[name].append(rows, self._commits.application(name), prepared.commit)
        except LakeError:
            self.resolve()
            raise
        self._commits.confirm(prepared, version)
        self._failpoint("confirmed")
        self._settled = True


def _ledger_row(entry: LedgerRange) -> dict[str, Any]:
    row: dict[str, Any] = entry._asdict()
    row["first_sequence"], row["last_sequence"] = row.pop("first"), row.pop("last")
    return row
