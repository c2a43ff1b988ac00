"""Medium of a store: one SQLite file in WAL mode, with a writing thread and a reading thread."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from edge.broker.store import epochs as epoch_tables
from edge.broker.store import openings as opening_tables
from edge.broker.store import wear
from edge.broker.store.connections import connect_writer
from edge.broker.store.durations import Histogram
from edge.broker.store.epochs import Epochs
from edge.broker.store.errors import StoreDamaged, StoreError
from edge.broker.store.faults import store_error_of
from edge.broker.store.files import StoreFiles
from edge.broker.store.group import CommitGroup, CursorRow
from edge.broker.store.limits import POSITION_BITS, POSITION_MAX, StoreLimits
from edge.broker.store.lock import DirectoryLock
from edge.broker.store.logs import LogState
from edge.broker.store.medium import ReadDone
from edge.broker.store.packing import pack
from edge.broker.store.problems import Problems
from edge.broker.store.queries import SideQueries
from edge.broker.store.reader import SCAN, ReadRequest, SlowestCursorQuery, StoreReader
from edge.broker.store.records import LedgerEntry, Summary
from edge.broker.store.segment import SegmentDamaged, SegmentRow, decode
from edge.broker.store.writer import BootRow, CommitJob, StoreWriter

logger = logging.getLogger(__name__)


class SqliteMedium:
    """Implements `medium.Medium`. Created by `sqlite.open_store`."""

    def __init__(
        self,
        path: Path,
        limits: StoreLimits,
        *,
        side: sqlite3.Connection,
        queries: SideQueries,
        writer: StoreWriter,
        reader: StoreReader,
        files: StoreFiles,
        problems: Problems,
        lock: DirectoryLock,
        epochs: Epochs,
        openings: Sequence[str],
        boot: tuple[int, BootRow | None],
        device: wear.BlockDevice | None,
        meter: wear.WearMeter,
        summary: Summary | None,
    ) -> None:
        """`side` is the connection of `queries`."""
        self.path = path
        self.limits = limits
        self.epochs = epochs
        self.openings = openings
        self.device = device
        """Device that holds the store."""
        self._free_unknown = ""
        """Reason why the last query of the free space failed; empty: it succeeded."""
        self._files = files
        self._problems = problems
        self.writer = writer
        self.reader = reader
        self._side = side
        self._queries = queries
        self._lock = lock
        self._boot, self._boot_row = boot
        self._meter = meter
        self._wear: wear.WearTotals | None = None
        """Totals in the running commit."""
        self._summary = summary

    @property
    def commits(self) -> Histogram:
        """Durations of the commits of this process."""
        return self.writer.durations.histogram()

    @property
    def written(self) -> tuple[wear.WearTotals, Sequence[wear.WearTotals]]:
        """Totals written until now, and at the end of earlier hours of running."""
        return self._meter.totals(), self._meter.rows

    @property
    def problems(self) -> Sequence[str]:
        """Current problems as texts: failing commits, unreadable logs, missing files."""
        found, gone = self._problems.texts(), self._files.check()
        if gone is not None and str(gone) not in found:
            found.append(str(gone))
        if not self.writer.alive:
            found.append("the thread that commits has ended: nothing is acknowledged; restart the gateway")
        if not self.reader.alive:
            found.append("the thread that reads has ended: no backlog is delivered; restart the gateway")
        return found

    @property
    def replaced(self) -> bool:
        """See `StoreFiles.replaced`."""
        return self._files.replaced

    @property
    def threads_live(self) -> bool:
        """False when a thread has ended. Only opening the store again starts it."""
        return self.writer.alive and self.reader.alive

    # --- commits ----------------------------------------------------------------------------------------------

    @property
    def writes_at_close(self) -> bool:
        return self._meter.has_new_bytes

    def commit(self, group: CommitGroup, finished: Callable[[], None]) -> None:
        due = bool(group.counting or group.swept) and (group.last or self._meter.due())
        self._wear = self._meter.totals(group.size) if due else None
        segments = list(pack(group, self._boot, self.limits.segment_bytes_max))
        self.writer.submit(CommitJob(group, segments, self._boot_row, self._wear, self._summary, finished))

    def wait(self) -> None:
        self.writer.wait()

    def committed(self, group: CommitGroup) -> None:
        self._boot_row = None
        self._meter.payload_bytes += group.size
        if self._wear is not None:
            self._meter.committed(self._wear)
        outcome = group.outcome
        if outcome is not None and (outcome.thinned or any(evicted.cut for evicted in outcome.evicted)):
            self.reader.forget()

    # --- reads ------------------------------------------------------------------------------------------------

    def read(self, log: LogState, position: int, end: int, bytes_max: int, done: ReadDone) -> None:
        self.reader.submit(ReadRequest(log.log, log.name, position, end, bytes_max, done))

    def slowest(self, log: int, but: Sequence[int], done: Callable[[int], None]) -> None:
        self.reader.submit(SlowestCursorQuery(log, but, done))

    def cursors(self) -> Iterable[CursorRow]:
        return self._queries.cursors()

    def value(self, kind: str, key: str) -> bytes | None:
        return self._queries.value(kind, key)

    def items(self, kind: str) -> Iterator[tuple[str, bytes]]:
        return self._queries.items(kind)

    def sequences(self) -> Iterator[tuple[str, int]]:
        return self._queries.sequences()

    def sequences_of(self, addresses: Iterable[str]) -> dict[str, int]:
        return self._queries.sequences_of(addresses)

    def written_end(self, log: int, before: int) -> int:
        return self._queries.written_end(log, before)

    def ledger(self, after: int, entries_max: int, subscriptions: str) -> Sequence[LedgerEntry]:
        return self._queries.ledger(after, entries_max, subscriptions)

    def lost(self, subscriptions: str) -> Mapping[str, Mapping[str, int]]:
        return self._queries.lost(subscriptions)

    def free_bytes(self) -> int | None:
        try:
            medium, size, page = os.statvfs(self.path), os.stat(self.path).st_size, self.limits.page_bytes
            free, pages = self._queries.pages()
        except (OSError, StoreError) as error:
            if str(error) != self._free_unknown:  # queried four times a second
                logger.warning("free space of the medium is not known: %s", error)
            self._free_unknown = str(error)
            return None
        self._free_unknown = ""
        return int(max(0, medium.f_bavail * medium.f_frsize + free * page - max(0, pages * page - size)))

    def file_bytes(self) -> int:
        total = 0
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(OSError):
                total += os.stat(f"{self.path}{suffix}").st_size
        return total

    # --- lineage ----------------------------------------------------------------------------------------------

    def opening_ends(self) -> Iterator[Mapping[int, int] | None]:
        try:
            yield from opening_tables.ends(self._side)
        except sqlite3.Error as error:
            logger.warning("earlier openings cannot be read (%s): only the others are reported to the hub", error)

    def ends_after(self, shared: str) -> Mapping[int, int]:
        try:
            return opening_tables.ends_after(self._side, shared)
        except sqlite3.Error as error:
            raise store_error_of(error, "starting a new epoch") from error

    def appended_since(self, log: int, end: int) -> Iterator[tuple[str, int]]:
        """Iterate over runs in readable segments. Others are lost, so their names do not matter."""
        base = log << POSITION_BITS
        newest = "SELECT max(key) FROM segment WHERE key >= ? AND key <= ?"
        ((key,),) = self._queries.rows(newest, (base, base | end))
        try:
            for row in map(SegmentRow._make, self._side.execute(SCAN, (key or base | end, base | POSITION_MAX))):
                with contextlib.suppress(SegmentDamaged):
                    for position, sequence, run in decode(row, row.key & POSITION_MAX):
                        if position >= end:
                            yield run.address, sequence
        except sqlite3.Error as error:
            raise store_error_of(error, "starting a new epoch") from error

    def begin_epoch(self, starts: Mapping[str, int], why: str) -> None:
        try:
            with contextlib.closing(connect_writer(self.path, self.limits)) as connection:
                name = epoch_tables.start_epoch(connection, starts, why)
            self.epochs.reload(self._side)
        except sqlite3.Error as error:
            raise store_error_of(error, "starting a new epoch") from error
        except ValueError as error:
            raise StoreDamaged(f"starting a new epoch: {error}: run `waypost store repair`") from error
        logger.warning("%s: an older copy of this store was restored; new messages are of epoch %s", why, name)

    def close(self) -> None:
        self.reader.stop()
        self.writer.finish()
        closing = [self._queries.close, self.writer.close]
        if self.writer.keeps_log:  # the last connection moves and deletes the log, unless it is read-only
            closing.reverse()
        for close in closing:
            close()
        self._lock.release()
