"""The one thread that writes: a commit at a time, in as few statements as a commit can have.

Every statement Python's sqlite3 executes gives up the interpreter lock about four times, and taking it back from a busy
event loop costs up to the switch interval each time. So the usual commit, a few segments and nothing else, is *one*
statement in autocommit mode (a transaction of its own), and nothing here is done a message at a time.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Final, NamedTuple

from edge.broker.store.faults import meaning
from edge.broker.store.group import CursorRow, Group, LogRow, Outcome, Reclaim, Reclaimed
from edge.broker.store.limits import POSITION_BITS, POSITION_MAX, Limits
from edge.broker.store.segment import Row

logger = logging.getLogger(__name__)

ROWS_PER_STATEMENT: Final = 256
"""Bounds the statement's text and parameters; a commit beyond it has more statements."""

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
"""Segments that end at or below ``limit``, from ``first`` on: at most ``rows``, and about ``bytes`` of bodies."""


class Job(NamedTuple):
    """One commit: the group, its segments, and whom to tell (through `Writer`'s post) when it is over."""

    group: Group
    segments: Sequence[Row]
    boot: tuple[int, str, int] | None
    finished: Callable[[], None]


class Writer:
    """Owns the writing connection and its thread."""

    def __init__(
        self, connection: sqlite3.Connection, post: Callable[[Callable[[], None]], object], limits: Limits
    ) -> None:
        self._connection = connection
        self._post = post
        self._limits = limits
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._logged_bytes = 0
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        self._jobs.put(job)

    def stop(self) -> None:
        """Finish what was submitted, then end the thread and close the connection. Blocks."""
        self._jobs.put(None)
        self._thread.join()
        self._connection.close()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.group.outcome = self._commit(job)
            job.group.done.set()
            with contextlib.suppress(RuntimeError):  # the loop is closed: whoever closes the store takes the outcome
                self._post(job.finished)
            self._checkpoint(job)

    def _commit(self, job: Job) -> Outcome:
        connection = self._connection
        statements = list(_statements(job))
        reclaims = job.group.reclaims
        try:
            if len(statements) == 1 and not reclaims:
                connection.execute(*statements[0])
                return Outcome(None)
            connection.execute("BEGIN IMMEDIATE")
            for text, parameters in statements:
                connection.execute(text, parameters)
            reclaimed = self._reclaim(reclaims, job.group.reclaim_bytes_max)
            connection.execute("COMMIT")
        except (sqlite3.Error, OverflowError) as error:
            self._roll_back()
            wrapped = error if isinstance(error, sqlite3.Error) else sqlite3.DataError(str(error))
            return Outcome(meaning(wrapped, "commit"))
        return Outcome(None, reclaimed)

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):  # SQLite rolls back by itself on the worst errors
                self._connection.execute("ROLLBACK")

    def _reclaim(self, reclaims: Sequence[Reclaim], bytes_max: int) -> list[Reclaimed]:
        rows_left = self._limits.reclaim_rows_max
        done: list[Reclaimed] = []
        for log, first, limit in reclaims:
            base = log << POSITION_BITS
            rows: list[tuple[int, int]] = []
            if rows_left > 0 and bytes_max > 0:
                wanted = {"first": base | first, "limit": base | limit, "rows": rows_left, "bytes": bytes_max}
                rows = self._connection.execute(_DELETE, wanted).fetchall()
            freed = sum(size for _, size in rows)
            rows_left -= len(rows)
            bytes_max -= freed
            kept = (max(until for until, _ in rows) & POSITION_MAX) if rows else first
            if rows:
                self._connection.execute(
                    "UPDATE log SET first = ?, bytes = bytes - ? WHERE log = ?", (kept, freed, log)
                )
            done.append(Reclaimed(log, kept, freed, rows_left > 0 and bytes_max > 0))
        return done

    def _checkpoint(self, job: Job) -> None:
        """Move the write-ahead log into the file once it is long enough; the commit has been answered already."""
        pages = sum(2 + len(row.data) // self._limits.page_bytes for row in job.segments)
        self._logged_bytes += (pages + 1) * self._limits.page_bytes
        if self._logged_bytes < self._limits.checkpoint_bytes:
            return
        self._logged_bytes = 0
        try:
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        except sqlite3.Error as error:
            logger.warning("%s", meaning(error, "checkpoint"))


def _statements(job: Job) -> list[tuple[str, Sequence[Any]]]:
    """(text, parameters) of everything but deleting segments."""
    group = job.group
    statements: list[tuple[str, Sequence[Any]]] = []

    def insert(table: _Table, rows: Sequence[Sequence[Any]]) -> None:
        for start in range(0, len(rows), ROWS_PER_STATEMENT):
            part = rows[start : start + ROWS_PER_STATEMENT]
            statements.append((_insert(table, len(part)), list(chain.from_iterable(part))))

    if job.boot is not None:
        insert(_BOOT, [job.boot])
    insert(_SEGMENT, job.segments)
    statements += (("DELETE FROM cursor WHERE cursor = ?", (cursor,)) for cursor in sorted(group.dropped))
    insert(_LOG, group.log_rows)
    insert(_CURSOR, group.cursor_rows)
    insert(_ADDRESS, list(group.counters.items()))
    insert(_STATE, [(kind, key, value) for (kind, key), value in group.state.items() if value is not None])
    gone = (name for name, value in group.state.items() if value is None)
    statements += (("DELETE FROM state WHERE kind = ? AND key = ?", name) for name in gone)
    return statements


class _Table(NamedTuple):
    name: str
    columns: tuple[str, ...]
    on_conflict: str = ""


# Columns are named, so that a newer schema may have added some (with defaults) and this program still writes.
_BOOT: Final = _Table("boot", ("boot", "boot_id", "opened_at"), "ON CONFLICT DO NOTHING")
_SEGMENT: Final = _Table("segment", Row._fields)
_LOG: Final = _Table(
    "log", LogRow._fields, "ON CONFLICT (log) DO UPDATE SET next = excluded.next, bytes = excluded.bytes"
)
_CURSOR: Final = _Table(
    "cursor",
    CursorRow._fields,
    "ON CONFLICT (cursor) DO UPDATE SET position = excluded.position, acknowledged = excluded.acknowledged",
)
_ADDRESS: Final = _Table("address", ("name", "next"), "ON CONFLICT (name) DO UPDATE SET next = excluded.next")
_STATE: Final = _Table(
    "state", ("kind", "key", "value"), "ON CONFLICT (kind, key) DO UPDATE SET value = excluded.value"
)


@lru_cache(maxsize=1024)
def _insert(table: _Table, rows: int) -> str:
    row = f"({','.join('?' * len(table.columns))})"
    columns, values = ", ".join(table.columns), ",".join([row] * rows)
    return f"INSERT INTO {table.name} ({columns}) VALUES {values} {table.on_conflict}"  # noqa: S608 - our own names
