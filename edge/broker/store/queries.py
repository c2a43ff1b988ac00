"""Point reads and start-up queries on the loop's thread, over a connection of its own."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from edge.broker.store.faults import store_error_of
from edge.broker.store.group import CursorRow
from edge.broker.store.limits import LOG_PAGE_ROWS, POSITION_BITS, POSITION_MAX, QUEUE_CURSOR, STATE_PAGE_ROWS
from edge.broker.store.log_rows import LogEntry, LogRow
from edge.broker.store.records import LedgerEntry

_LEDGER: Final = f"SELECT {', '.join(LedgerEntry._fields)} FROM ledger"  # noqa: S608 - names of our own
_LOST: Final = """
SELECT address, reason, sum(messages) FROM ledger WHERE substr(subscription, 1, length(?)) = ? GROUP BY address, reason
"""
_CURSOR: Final = f"SELECT {', '.join(CursorRow._fields)} FROM cursor"  # noqa: S608 - names of our own
_NEWEST: Final = "SELECT key, messages FROM segment WHERE key >= ? AND key < ? ORDER BY key DESC LIMIT 1"
_LOG: Final = f"""
SELECT {", ".join(f"log.{each}" for each in LogRow._fields)}, cursor.position
FROM log LEFT JOIN cursor ON cursor.name = '{QUEUE_CURSOR}' AND cursor.log = log.log
"""  # noqa: S608 - names of our own
_LOGS: Final = f"SELECT {', '.join(LogRow._fields)} FROM log WHERE log > ? ORDER BY log LIMIT ?"  # noqa: S608
_LOGS_HOLDING: Final = _LOGS.replace("WHERE", "WHERE bytes > 0 AND")
_VALUE: Final = "SELECT value FROM state WHERE kind = ? AND key = ?"
_SEQUENCES: Final = "SELECT name, next FROM address WHERE name IN (SELECT value FROM json_each(?))"


class SideQueries:
    """Short queries. Each raises StoreError when the medium cannot be read."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        """`connection` is read-only, and used only on the loop's thread."""
        self._connection = connection
        self._cursor = connection.cursor()  # shared by all queries: see `StoreWriter`

    def rows(self, text: str, parameters: Sequence[str | int] = ()) -> list[Any]:
        try:
            return self._cursor.execute(text, parameters).fetchall()
        except UnicodeEncodeError:
            return []  # no row has a name that cannot be encoded
        except sqlite3.Error as error:
            raise store_error_of(error, "reading the store") from error

    def cursors(self) -> Iterator[CursorRow]:
        """Iterate over every cursor. Consume it at once: a checkpoint cannot complete before."""
        try:
            yield from map(CursorRow._make, self._connection.execute(f"{_CURSOR} ORDER BY cursor"))
        except sqlite3.Error as error:
            raise store_error_of(error, "reading the store") from error

    def cursor(self, number: int) -> CursorRow | None:
        rows = self.rows(f"{_CURSOR} WHERE cursor = ?", (number,))
        return CursorRow._make(rows[0]) if rows else None

    def cursor_of(self, name: str, log: int) -> CursorRow | None:
        rows = self.rows(f"{_CURSOR} WHERE name = ? AND log = ?", (name, log))
        return CursorRow._make(rows[0]) if rows else None

    def log(self, number: int) -> LogEntry | None:
        rows = self.rows(f"{_LOG} WHERE log.log = ?", (number,))
        return LogEntry._make(rows[0]) if rows else None

    def log_named(self, name: str) -> LogEntry | None:
        rows = self.rows(f"{_LOG} WHERE log.name = ?", (name,))
        return LogEntry._make(rows[0]) if rows else None

    def logs_after(self, number: int, *, holding: bool = False) -> list[LogRow]:
        rows = self.rows(_LOGS_HOLDING if holding else _LOGS, (number, LOG_PAGE_ROWS))
        return list(map(LogRow._make, rows))

    def cursors_named(self, name: str) -> list[CursorRow]:
        return list(map(CursorRow._make, self.rows(f"{_CURSOR} WHERE name = ?", (name,))))

    def cursors_in(self, log: int, below: int) -> list[CursorRow]:
        rows = self.rows(f"{_CURSOR} WHERE log = ? AND position < ? ORDER BY cursor", (log, below))
        return list(map(CursorRow._make, rows))

    def value(self, kind: str, key: str) -> bytes | None:
        rows = self.rows(_VALUE, (kind, key))
        return rows[0][0] if rows else None

    def items(self, kind: str) -> Iterator[tuple[str, bytes]]:
        after = None
        while True:
            later = "" if after is None else "AND key > ?"
            rows = self.rows(
                f"SELECT key, value FROM state WHERE kind = ? {later} ORDER BY key LIMIT {STATE_PAGE_ROWS}",  # noqa: S608
                (kind,) if after is None else (kind, after),
            )
            yield from rows
            if len(rows) < STATE_PAGE_ROWS:
                return
            after = rows[-1][0]

    def sequences(self) -> Iterator[tuple[str, int]]:
        return iter(self.rows("SELECT name, next FROM address"))

    def sequences_of(self, addresses: Iterable[str]) -> dict[str, int]:
        return dict(self.rows(_SEQUENCES, (msgspec.json.encode(list(addresses)).decode(),)))

    def written_end(self, log: int, before: int) -> int:
        base = log << POSITION_BITS
        rows = self.rows(_NEWEST, (base, base | before))
        return (rows[0][0] & POSITION_MAX) + rows[0][1] if rows else 0

    def ledger(self, after: int, entries_max: int, subscriptions: str) -> Sequence[LedgerEntry]:
        begins = "AND substr(subscription, 1, length(?)) = ?"
        parameters = (after, subscriptions, subscriptions, entries_max)
        rows = self.rows(f"{_LEDGER} WHERE entry > ? {begins} ORDER BY entry LIMIT ?", parameters)
        return [LedgerEntry._make(row) for row in rows]

    def newest_ledger(self, entries_max: int) -> list[LedgerEntry]:
        """Return the newest ledger entries, oldest first."""
        rows = self.rows(f"{_LEDGER} ORDER BY entry DESC LIMIT ?", (entries_max,))
        return [LedgerEntry._make(row) for row in reversed(rows)]

    def lost(self, subscriptions: str) -> dict[str, dict[str, int]]:
        """Return the lost messages of subscriptions with a prefix, by address and reason."""
        found: dict[str, dict[str, int]] = {}
        for address, reason, messages in self.rows(_LOST, (subscriptions, subscriptions)):
            found.setdefault(address, {})[reason] = messages
        return found

    def ledger_rows(self) -> int:
        return int(self.rows("SELECT count(*) FROM ledger")[0][0])

    def pages(self) -> tuple[int, int]:
        """Return (free pages of the file, all pages)."""
        free, pages = self.rows("SELECT * FROM pragma_freelist_count, pragma_page_count")[0]
        return int(free), int(pages)

    def close(self) -> None:
        self._connection.close()
