"""Store over any medium: creates its parts. Everything runs on the thread of the event loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from edge.broker.store.commits import GroupCommits
from edge.broker.store.crash_losses import CrashLosses
from edge.broker.store.cursors import record_of
from edge.broker.store.limits import StoreLimits
from edge.broker.store.lineage import StoreLineage
from edge.broker.store.log_cache import LogCache
from edge.broker.store.log_reads import LogReads
from edge.broker.store.log_retention import StoreRetention
from edge.broker.store.logs import free_name
from edge.broker.store.loss_ledger import StoreLosses
from edge.broker.store.medium import Medium, Post
from edge.broker.store.message_logs import StoreLogs
from edge.broker.store.records import CursorRecord, LogInfo, StoreInfo, StoreTotals
from edge.broker.store.removals import Removals
from edge.broker.store.rings import MemoryRings
from edge.broker.store.small_state import StoreState
from edge.broker.store.tables import StoreTables

M = TypeVar("M", bound=Medium)


class StoreEngine(Generic[M]):
    """Implements `contract.Store`."""

    def __init__(
        self, tables: StoreTables, medium: M, *, post: Post, clock: Callable[[], float], limits: StoreLimits
    ) -> None:
        """`tables` were loaded from the medium. `clock`: seconds, monotonic, the same for all processes of one boot of
        the machine. Raises StoreError, or ValueError when the medium's reservations are damaged."""
        self.medium = medium
        gatherer, self._logs, self.cursors = tables.gatherer, tables.logs, tables.cursors
        self._rings = rings = MemoryRings(limits, tables, medium.sequences_of, clock)
        self.cursors.call_before_opening(rings.settle)
        reads = LogReads(limits, tables.logs, medium, post=post, clock=clock)
        crash = CrashLosses(limits, tables, medium)
        self.logs: Final = StoreLogs(gatherer, tables.logs, tables.cursors, rings, reads)
        self.state: Final = StoreState(gatherer, medium)
        self.retention: Final = StoreRetention(gatherer, tables.logs, rings, medium)
        self.ledger: Final = StoreLosses(gatherer, tables.ledger, medium, crash)
        self.lineage: Final = StoreLineage(tables.logs, tables.counters, rings, medium)
        self.commits: Final = GroupCommits(
            tables,
            medium,
            rings=rings,
            crash=crash,
            removals=Removals(limits, tables.logs, tables.cursors),
            cache=LogCache(limits, tables.logs, tables.cursors, gatherer),
            reads=reads,
            post=post,
            clock=clock,
            limits=limits,
        )
        self._gatherer = gatherer
        self._closed = False

    def cursor_records(self, but: str = "") -> Sequence[CursorRecord]:
        return [record_of(row, self._logs) for row in self.medium.cursors() if row.name != but]

    def info(self) -> StoreInfo:
        self._rings.settle()
        logs = [LogInfo(*row) for row in self._logs.rows() if row.name != free_name(row.log)]
        cursors = list(self.cursors.infos())
        messages, size = sum(log.next - log.first for log in logs), sum(log.bytes for log in logs)
        files, pending = self.medium.file_bytes(), self.commits.pending_bytes
        return StoreInfo(self.lineage.epoch, messages, size, files, pending, self._rings.size, logs, cursors)

    def totals(self) -> StoreTotals:
        self._rings.settle()
        return StoreTotals(self._logs.messages, self._logs.bytes, self.medium.file_bytes(), self._rings.size)

    def close(self) -> None:
        if self._closed:
            return
        try:
            self.commits.close()
        finally:
            self._closed = True
            self.logs.close()
            self._gatherer.close()
            self.medium.close()
