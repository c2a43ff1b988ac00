"""Read-only access to a store, next to a running gateway or without one, in constant memory.

The tools share it. It reads in short transactions, so that it does not delay checkpoints of the gateway that writes the
store.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Self

from edge.broker.store import segment
from edge.broker.store.epochs import Epochs
from edge.broker.store.errors import StoreDamaged, StoreError, StoreInaccessible
from edge.broker.store.faults import store_error_of
from edge.broker.store.limits import CHUNK_BYTES, CHUNK_ROWS, POSITION_BITS, POSITION_MAX
from edge.broker.store.reservation import MEMORY, ReservedRange, unpack_range
from edge.broker.store.schema import APPLICATION_ID
from edge.broker.store.segment import SegmentRow
from edge.broker.store.wear import WearTotals, load

BUSY_S: Final = 10.0
"""Longest wait for the gateway's lock on the file."""

_SCAN: Final = f"{segment.SELECT} WHERE key >= ? AND key <= ? ORDER BY key LIMIT ?"


class LogFacts(NamedTuple):
    """Current state of a log: positions ``first <= p < next``, `bytes` of bodies."""

    log: int
    name: str
    first: int
    next: int
    bytes: int
    counted: int
    """`next` in table ``log``: it is behind the segments, or ahead of them for a log in memory."""
    reached: int
    """`next` without reserved positions: the end of a log in memory on the medium."""


class CursorFacts(NamedTuple):
    """Row of table ``cursor``, not checked."""

    cursor: int
    name: str
    log: int
    position: int
    acknowledged: bytes


class LedgerFacts(NamedTuple):
    """Messages dropped for one reason. Times are UTC nanoseconds."""

    reason: str
    entries: int
    messages: int
    bytes: int
    first_at: int
    last_at: int


class Inspection:
    """Read-only connection. Methods raise `StoreError` for errors of SQLite."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        """Use `open` to make one."""
        self.path = path
        self.connection = connection

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the file at `path`. Raises StoreInaccessible, StoreDamaged if it is not a store, or StoreError."""
        if not path.is_file():
            raise StoreInaccessible(f"no store at {path}: is this the gateway's data directory?")
        try:
            connection = _connect(path)
        except sqlite3.Error as error:
            raise store_error_of(error, f"opening {path}") from error
        opened = cls(connection, path)
        try:
            if opened.number("application_id") != APPLICATION_ID:
                raise StoreDamaged(f"{path} is not a store: it is empty, another database, or its head is damaged")
        except StoreError:
            connection.close()
            raise
        return opened

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; idempotent."""
        self.connection.close()

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[None]:
        """Read one consistent snapshot within the context."""
        with self._meaning("reading"):
            self.connection.execute("BEGIN")
            try:
                yield
            finally:
                if self.connection.in_transaction:
                    self.connection.execute("COMMIT")

    def query(self, text: str, parameters: Sequence[object] = ()) -> list[tuple[object, ...]]:
        """Return all rows of a statement."""
        with self._meaning("reading"):
            return self.connection.execute(text, parameters).fetchall()

    def number(self, pragma: str) -> int:
        """Return the number of a pragma."""
        return int(str(self.query(f"PRAGMA {pragma}")[0][0]))

    def tables(self) -> set[str]:
        """Return the names of the tables."""
        return {str(name) for (name,) in self.query("SELECT name FROM sqlite_master WHERE type = 'table'")}

    def meta(self, key: str) -> str | None:
        """Return a value of table ``meta``; None without it."""
        found = self.query("SELECT value FROM meta WHERE key = ?", (key,))
        return str(found[0][0]) if found else None

    def epochs(self, current: str) -> Epochs:
        """Return the epochs; `current` is the one in table ``meta``."""
        with self._meaning("reading the epochs"):
            try:
                return Epochs.load(self.connection, current)
            except ValueError as error:
                raise StoreDamaged(f"the epochs are damaged: {error}") from error

    def logs(self) -> list[LogFacts]:
        """Return all logs, with messages committed since the last count: O(logs), plus at most a few hundred rows."""
        found = []
        marks = {mark.log: mark.base for mark in self.marks() if mark.address is None}
        with self._meaning("reading the logs"):
            rows = self.connection.execute("SELECT log, name, first, next, bytes FROM log ORDER BY log").fetchall()
            for log, name, first, counted, size in rows:
                end, more = self.connection.execute(
                    f"SELECT max((key & {POSITION_MAX}) + messages), sum(body_bytes) FROM segment "  # noqa: S608
                    "WHERE key >= ? AND key <= ?",
                    (key_of(log, counted), key_of(log, POSITION_MAX)),
                ).fetchone()
                end = max(counted, end or 0)
                found.append(LogFacts(log, name, first, end, size + (more or 0), counted, marks.get(log, end)))
        return found

    def marks(self) -> list[ReservedRange]:
        """Return the reserved ranges of logs that are or were in memory: one of positions for each such log."""
        rows = self.query("SELECT key, value FROM state WHERE kind = ?", (MEMORY,))
        try:
            return [unpack_range(str(key), value if isinstance(value, bytes) else b"") for key, value in rows]
        except ValueError as error:
            raise StoreDamaged(str(error)) from error

    def cursors(self) -> list[CursorFacts]:
        """Return all cursors."""
        with self._meaning("reading the cursors"):
            rows = self.connection.execute(
                "SELECT cursor, name, log, position, acknowledged FROM cursor ORDER BY cursor"
            )
            return [CursorFacts._make(row) for row in rows]

    def wear(self) -> list[WearTotals]:
        """Return the totals written at the end of each hour of running; none in a store of an older schema."""
        if "wear" not in self.tables():
            return []
        with self._meaning("reading what was written"):
            return load(self.connection)

    def ledger(self) -> list[LedgerFacts]:
        """Return the dropped messages by reason; none in a store of a schema without a ledger."""
        if "ledger" not in self.tables():
            return []
        rows = self.query(
            "SELECT reason, count(*), sum(messages), sum(bytes), min(decided_at), max(decided_at) FROM ledger "
            "GROUP BY reason ORDER BY reason"
        )
        return [LedgerFacts._make(row) for row in rows]

    def segments(self, log: int, position: int = 0) -> Iterator[SegmentRow]:
        """Yield the rows of a log from the one with `position` on, while a gateway may write and delete.

        It reads a few MiB at a time, each in its own transaction.
        """
        start = self._holding(log, position)
        while True:
            rows = self._chunk(start, key_of(log, POSITION_MAX))
            yield from rows
            if not rows:
                return
            start = rows[-1].key + 1

    def segments_inside(self, log: int, position: int = 0) -> Iterator[SegmentRow]:
        """Yield the same rows as `segments`, within a snapshot."""
        with self._meaning("reading segments"):
            found = self.connection.execute(_SCAN, (self._holding(log, position), key_of(log, POSITION_MAX), -1))
            try:
                yield from map(SegmentRow._make, found)
            finally:
                found.close()

    def _holding(self, log: int, position: int) -> int:
        """Return the key of the segment with a position, or the smallest key of a later one."""
        start = key_of(log, position)
        if not position:
            return start
        before = self.query("SELECT max(key) FROM segment WHERE key >= ? AND key <= ?", (key_of(log, 0), start))
        return start if before[0][0] is None else int(str(before[0][0]))

    def _chunk(self, start: int, end: int) -> list[SegmentRow]:
        rows: list[SegmentRow] = []
        with self._meaning("reading segments"):
            found = self.connection.execute(_SCAN, (start, end, CHUNK_ROWS))
            try:
                size = 0
                for row in map(SegmentRow._make, found):
                    if row.key < start:
                        raise StoreDamaged(f"segments are out of order at key {row.key}")
                    start = row.key + 1
                    rows.append(row)
                    size += len(row.data)
                    if size >= CHUNK_BYTES:
                        break
            finally:
                found.close()  # an open statement would hold back the checkpoint
        return rows

    @contextlib.contextmanager
    def _meaning(self, doing: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise store_error_of(error, doing) from error


def key_of(log: int, position: int) -> int:
    """Return the key of a segment."""
    return log << POSITION_BITS | position


def log_of(key: int) -> tuple[int, int]:
    """Return (log, first position) of a key."""
    return key >> POSITION_BITS, key & POSITION_MAX


def received_at(row: SegmentRow) -> int | None:
    """Return UTC nanoseconds of a segment's first message; None when the segment is damaged or empty."""
    try:
        stored = segment.decode(row, row.key & POSITION_MAX)
    except segment.SegmentDamaged:
        return None
    return stored[0].run.received_at if stored else None


def _connect(path: Path) -> sqlite3.Connection:
    """Connect read-only. Raises sqlite3.Error."""
    address = f"{path.resolve().as_uri()}?mode=ro"
    connection = sqlite3.connect(address, uri=True, isolation_level=None, timeout=BUSY_S)
    try:
        connection.execute("PRAGMA schema_version").fetchall()
    except sqlite3.OperationalError as error:
        connection.close()
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        wal = path.with_name(path.name + "-wal")
        if code not in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY) or (wal.exists() and wal.stat().st_size):
            raise
        # A read-only medium with an empty log: SQLite needs no second file.
        connection = sqlite3.connect(f"{address}&immutable=1", uri=True, isolation_level=None, timeout=BUSY_S)
    connection.execute("PRAGMA query_only = ON")
    connection.execute("PRAGMA cell_size_check = ON")
    connection.execute("PRAGMA temp_store = MEMORY")
    return connection
