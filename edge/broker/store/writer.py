"""Writing thread: one commit at a time, in as few statements as possible.

Python's sqlite3 releases the interpreter lock about four times for each statement. Taking it back from a busy event
loop costs up to the switch interval each time. So the usual commit, with only a few segments, is *one* statement in
autocommit mode, which is its own transaction. No work is done for each message.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Final, NamedTuple

from msgspec import json

from edge.broker.store.checkpointer import Checkpointer
from edge.broker.store.durations import Durations
from edge.broker.store.errors import StoreError, StoreFull
from edge.broker.store.eviction import evict
from edge.broker.store.faults import store_error_of
from edge.broker.store.files import StoreFiles
from edge.broker.store.group import CommitGroup, CommitOutcome, CursorRow
from edge.broker.store.ledger import Entries, OpenLedger
from edge.broker.store.limits import POSITION_BITS, POSITION_MAX, STATEMENTS_KEPT, StoreLimits
from edge.broker.store.log_rows import LogRow
from edge.broker.store.logs import free_name
from edge.broker.store.problems import COMMITS, Problems
from edge.broker.store.records import LedgerEntry, Loss, Summary
from edge.broker.store.removal_jobs import Evicted, Reclaim, Reclaimed, Thinned, Thinning
from edge.broker.store.segment import SegmentRow
from edge.broker.store.thinning import rest_of, thin
from edge.broker.store.wear import WearTotals, write
from edge.output.logs import describe_error

logger = logging.getLogger(__name__)

ROWS_EXACT_MAX: Final = 8
"""Up to this number of rows, one statement writes them all. More rows are split into powers of two. A statement is
prepared and cached for each number of rows: for all multiples of 16 up to 256 they took 5.5 MB, now 0.4 MB."""
PARAMETERS_MAX: Final = 256
"""Most parameters of one statement, which bounds its compiled program (100 to 130 bytes a parameter). A larger commit
has more statements."""

_DELETE: Final = """
DELETE FROM segment WHERE key >= :first AND key < (
    SELECT coalesce(min(key), :limit) FROM (
        SELECT key, key + messages AS until, row_number() OVER ordered AS number,
            sum(body_bytes) OVER (ordered ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
        FROM (SELECT key, messages, body_bytes FROM segment
            WHERE key >= :first AND key < :limit ORDER BY key LIMIT :rows + 1)
        WINDOW ordered AS (ORDER BY key))
    WHERE until > :limit OR number > :rows OR before >= :bytes)
RETURNING key + messages, body_bytes
"""
"""Deletes segments from ``first`` on that end at or below ``limit``: at most ``rows``, about ``bytes`` of bodies."""


_MOVE_ALL: Final = """
UPDATE cursor SET position = ?1
WHERE cursor IN (SELECT value FROM json_each(?2)) AND position < ?1 AND acknowledged = x''
"""


class BootRow(NamedTuple):
    """Row of table ``boot``."""

    boot: int
    boot_id: str
    opened_at: int


class CommitJob(NamedTuple):
    """One commit: the group, its segments, and a callback for its end (through `StoreWriter`'s post)."""

    group: CommitGroup
    segments: Sequence[SegmentRow]
    boot: BootRow | None
    wear: WearTotals | None
    summary: Summary | None
    finished: Callable[[], None]


class StoreWriter:
    """Owns the writing connection and its thread."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        post: Callable[[Callable[[], None]], object],
        ledger: OpenLedger,
        limits: StoreLimits,
        checkpointer: Checkpointer,
        files: StoreFiles,
        problems: Problems,
    ) -> None:
        self._files = files
        self._problems = problems
        self._connection = connection
        self._cursor = connection.cursor()
        """Shared by all statements. A connection keeps a weak reference to each cursor it creates, up to 200, which
        fragments the memory."""
        self._ledger = ledger
        self._post = post
        self._limits = limits
        self._jobs: queue.SimpleQueue[CommitJob | None] = queue.SimpleQueue()
        self._busy = threading.Lock()
        """Held from when a job is submitted until its commit is over."""
        self._checkpointer = checkpointer
        self.durations = Durations()
        """Durations of all commits, including failed ones, until the medium has answered."""
        self._writing = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._writing.start()

    def submit(self, job: CommitJob) -> None:
        """Queue a commit. Raises StoreError when the thread has ended, as the commit would never finish."""
        if not self._writing.is_alive():
            raise StoreError("the thread that commits has ended; restart the gateway")
        self._busy.acquire()
        self._jobs.put(job)

    def wait(self) -> None:
        """Block until the last submitted commit is over."""
        with self._busy:
            pass

    @property
    def alive(self) -> bool:
        """False when no commit can succeed before a restart: the thread has ended, or the log is full."""
        return self._writing.is_alive() and self._checkpointer.refusal is None

    @property
    def keeps_log(self) -> bool:
        """Same as `Checkpointer.keeps_log`; final after `finish`."""
        return self._checkpointer.keeps_log

    def finish(self) -> None:
        """Finish submitted commits, then end the thread and the background checkpoint. Blocks."""
        self._jobs.put(None)
        self._writing.join()
        self._checkpointer.stop()

    def close(self) -> None:
        """Close the connection, after `finish`."""
        self._connection.close()
        self._checkpointer.close()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            began, changes = time.perf_counter(), self._connection.total_changes
            job.group.outcome = outcome = self._run_commit(job)
            if outcome.error is None:
                self._problems.solved(COMMITS)
            else:
                self._problems.report(COMMITS, str(outcome.error))
            self.durations.add(time.perf_counter() - began)
            self._busy.release()
            with contextlib.suppress(RuntimeError):  # the loop is closed: `close` handles the outcome
                self._post(job.finished)
            wrote = outcome.error is None and self._connection.total_changes != changes
            self._checkpoint_log(job, outcome, wrote=wrote)
            del job, outcome  # free its memory before the next job arrives

    def _run_commit(self, job: CommitJob) -> CommitOutcome:
        """Commit and return the outcome. Any exception, also of a summary, fails the commit: each one must end."""
        refusal = self._files.check() or self._checkpointer.refusal
        if refusal is not None:
            return CommitOutcome(refusal)
        try:
            return self._commit(job)
        except Exception as error:
            logger.exception("commit failed: unexpected error")
            self._roll_back()
            return CommitOutcome(StoreError(f"commit: {describe_error(error)}: see the log"))

    def _checkpoint_log(self, job: CommitJob, outcome: CommitOutcome, *, wrote: bool) -> None:
        """Let the checkpointer move the log. An error must not end this thread, as commits would not be answered."""
        try:
            if wrote:
                self._checkpointer.committed(self._log_bytes(job))
            if isinstance(outcome.error, StoreFull):
                self._checkpointer.no_room(time.perf_counter())
        except Exception:
            logger.exception("checkpoint failed: unexpected error")

    def _log_bytes(self, job: CommitJob) -> int:
        """Estimate the bytes that a commit added to the write-ahead log."""
        page_bytes = self._limits.page_bytes
        return (1 + sum(2 + len(row.data) // page_bytes for row in job.segments)) * page_bytes

    def _commit(self, job: CommitJob) -> CommitOutcome:
        connection, execute = self._connection, self._cursor.execute
        statements = list(_statements(job))
        group = job.group
        alone = not (group.reclaims or group.evictions or group.thinnings or group.losses or group.given_up or job.wear)
        try:
            if len(statements) == 1 and alone:
                execute(*statements[0])
                return CommitOutcome(None)
            execute("BEGIN IMMEDIATE")
            for text, parameters in statements:
                execute(text, parameters)
            if job.wear is not None:
                write(connection, job.wear)
            evicted = [evict(connection, eviction) for eviction in group.evictions]
            thinned = [self._thin(job, thinning, evicted) for thinning in group.thinnings]
            losses = list(chain(group.losses, *(given.losses for given in group.given_up if given.if_kept)))
            losses += chain.from_iterable(part.losses for part in evicted)
            losses += chain.from_iterable(part.losses for part in thinned)
            entries = self._write_ledger(losses)
            reclaimed = self._reclaim(group.reclaims, group.reclaim_bytes_max)
            execute("COMMIT")
        except (sqlite3.Error, OverflowError) as error:
            self._roll_back()
            wrapped = error if isinstance(error, sqlite3.Error) else sqlite3.DataError(str(error))
            return CommitOutcome(store_error_of(wrapped, "commit"))
        return CommitOutcome(None, reclaimed, evicted, thinned, entries)

    def _thin(self, job: CommitJob, thinning: Thinning, evicted: list[Evicted]) -> Thinned:
        """Thin a log, and evict the rest of the requested bytes, so that the address stays within its quota."""
        if job.summary is None:
            done = Thinned(thinning.log, 0, 0, ended=True)
        else:
            done = thin(self._connection, thinning, job.summary)
        if thinning.bytes > done.freed:
            evicted.append(evict(self._connection, rest_of(thinning, done)))
        return done

    def _write_ledger(self, losses: Sequence[Loss]) -> Entries:
        """Write losses to the ledger, in the transaction that removes the messages."""
        if not losses:
            return Entries()
        entries, execute = self._ledger.entries(losses), self._cursor.execute
        for entry in entries.replaced:
            execute("DELETE FROM ledger WHERE entry = ?", (entry,))
        for text, parameters in _inserts(_LEDGER, entries.added):
            execute(text, parameters)
        if entries.oldest_dropped:
            execute(
                "DELETE FROM ledger WHERE entry IN (SELECT entry FROM ledger ORDER BY entry LIMIT ?)",
                (entries.oldest_dropped,),
            )
        return entries

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):  # SQLite rolls back by itself on the worst errors
                self._cursor.execute("ROLLBACK")

    def _reclaim(self, reclaims: Sequence[Reclaim], bytes_max: int) -> list[Reclaimed]:
        rows_left = self._limits.reclaim_rows_max
        done: list[Reclaimed] = []
        for log, first, limit in reclaims:
            base = log << POSITION_BITS
            rows: list[tuple[int, int]] = []
            if rows_left > 0 and bytes_max > 0:
                wanted = {"first": base | first, "limit": base | limit, "rows": rows_left, "bytes": bytes_max}
                rows = self._cursor.execute(_DELETE, wanted).fetchall()
            freed = sum(size for _, size in rows)
            rows_left -= len(rows)
            bytes_max -= freed
            kept = (max(until for until, _ in rows) & POSITION_MAX) if rows else first
            if rows:
                self._cursor.execute("UPDATE log SET first = ?, bytes = bytes - ? WHERE log = ?", (kept, freed, log))
            done.append(Reclaimed(log, kept, freed, rows_left > 0 and bytes_max > 0))
        return done


def _statements(job: CommitJob) -> list[tuple[str, Sequence[Any]]]:
    """Return (text, parameters) of all statements except those that delete segments."""
    group = job.group
    statements: list[tuple[str, Sequence[Any]]] = []
    if job.boot is not None:
        statements += _inserts(_BOOT, [job.boot])
    statements += _inserts(_SEGMENT, job.segments)
    statements += (("DELETE FROM cursor WHERE cursor = ?", (cursor,)) for cursor in sorted(group.dropped))
    # release names before other logs take them: rows may come in any order
    statements += (("UPDATE log SET name = ? WHERE log = ?", (free_name(log), log)) for log in sorted(group.freed))
    statements += _inserts(_LOG, group.log_rows)
    firsts = group.ring.firsts if group.ring is not None else {}
    statements += (("UPDATE log SET first = ? WHERE log = ?", (first, log)) for log, first in firsts.items())
    statements += _inserts(_CURSOR, group.cursor_rows)
    statements += ((_MOVE_ALL, (each.position, json.encode(sorted(each.cursors)).decode())) for each in group.passes)
    statements += _inserts(_ADDRESS, list(group.counters.items()))
    statements += _inserts(
        _STATE, [(kind, key, value) for (kind, key), value in group.state.items() if value is not None]
    )
    gone = (name for name, value in group.state.items() if value is None)
    statements += (("DELETE FROM state WHERE kind = ? AND key = ?", name) for name in gone)
    return statements


class _InsertTable(NamedTuple):
    """Table with the columns and the conflict clause of its inserts."""

    name: str
    columns: tuple[str, ...]
    on_conflict: str = ""


# Columns are named, so that this program can write to a newer schema with added columns that have defaults.
_BOOT: Final = _InsertTable("boot", BootRow._fields, "ON CONFLICT DO NOTHING")
_SEGMENT: Final = _InsertTable("segment", SegmentRow._fields)
_LOG: Final = _InsertTable(
    "log",
    LogRow._fields,
    "ON CONFLICT (log) DO UPDATE SET name = excluded.name, next = excluded.next, bytes = excluded.bytes",
)
_CURSOR: Final = _InsertTable(
    "cursor",
    CursorRow._fields,
    "ON CONFLICT (cursor) DO UPDATE SET position = excluded.position, acknowledged = excluded.acknowledged",
)
_LEDGER: Final = _InsertTable("ledger", LedgerEntry._fields)
_ADDRESS: Final = _InsertTable("address", ("name", "next"), "ON CONFLICT (name) DO UPDATE SET next = excluded.next")
_STATE: Final = _InsertTable(
    "state", ("kind", "key", "value"), "ON CONFLICT (kind, key) DO UPDATE SET value = excluded.value"
)


def _inserts(table: _InsertTable, rows: Sequence[Sequence[Any]]) -> Iterator[tuple[str, Sequence[Any]]]:
    start, most = 0, _power_of_two(PARAMETERS_MAX // len(table.columns))
    while (left := len(rows) - start) > 0:
        count = left if left <= ROWS_EXACT_MAX else min(_power_of_two(left), most)
        yield _insert(table, count), list(chain.from_iterable(rows[start : start + count]))
        start += count


def _power_of_two(number: int) -> int:
    """Return the largest power of two that is not above `number`."""
    return 1 << number.bit_length() - 1


@lru_cache(maxsize=STATEMENTS_KEPT)
def _insert(table: _InsertTable, rows: int) -> str:
    row = f"({','.join('?' * len(table.columns))})"
    columns, values = ", ".join(table.columns), ",".join([row] * rows)
    return f"INSERT INTO {table.name} ({columns}) VALUES {values} {table.on_conflict}"  # noqa: S608 - our own names
