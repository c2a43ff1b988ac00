"""Rows out of a damaged database: everything its trees still lead to, from both ends and around what cannot be read."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from edge.appliance.store.recovery.inspection import key_of, log_of
from edge.broker.store import schema, segment
from edge.broker.store.damage import Damage, examine
from edge.broker.store.errors import StoreDamaged
from edge.broker.store.limits import POSITION_BITS, POSITION_MAX, Limits
from edge.broker.store.segment import SELECT, Row

ERRORS: Final = (sqlite3.Error, UnicodeDecodeError)
"""What reading a damaged file raises; the second when SQLite's own message quotes a rotten name."""
KEY_MAX: Final = (1 << 63) - 1
_LATER: Final = ("ledger", "thinned", "wear", "opening", "epoch", "epoch_start")
"""Tables that a store of schema 1 does not have."""
_RANGE: Final = f"{SELECT} WHERE key >= ? AND key <= ? ORDER BY key"


class Salvage:
    """A copy nobody else has open; errors of SQLite end a walk, and the next one begins behind them."""

    def __init__(self, path: Path, segments: Path | None = None) -> None:
        """`segments`: a database that has the messages, where `path` has no table of them."""
        self._connection = sqlite3.connect(path, isolation_level=None)
        if segments is not None:
            self._connection.execute("ATTACH ? AS searched", (str(segments),))
        self._connection.text_factory = _text
        for pragma in ("query_only = ON", "cell_size_check = OFF", "temp_store = MEMORY"):
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute(f"PRAGMA {pragma}").fetchall()
        self._reached: dict[int, int] = {}
        self._lost_tail: set[int] = set()

    def close(self) -> None:
        """Idempotent."""
        self._connection.close()

    @property
    def page_bytes(self) -> int:
        """Of the database; of one whose head is lost, SQLite's default."""
        with contextlib.suppress(*ERRORS):
            return schema.page_bytes(self._connection)
        return Limits().page_bytes

    def rows(self, table: str, columns: Mapping[str, type]) -> tuple[list[tuple[Any, ...]], bool]:
        """(rows of a small table, all of them): read from its beginning, and from its end where that breaks off."""
        names = ", ".join(columns)
        order = "kind, key" if "kind" in columns else next(iter(columns))
        found: dict[tuple[Any, ...], None] = {}
        complete = self._walk(f"SELECT {names} FROM {table} ORDER BY {order}", found)  # noqa: S608 - our own names
        if not complete:
            backwards = ", ".join(f"{name} DESC" for name in order.split(", "))
            self._walk(f"SELECT {names} FROM {table} ORDER BY {backwards}", found)  # noqa: S608
        kinds = tuple(columns.values())
        sound = [row for row in found if all(map(isinstance, row, kinds))]
        return sound, complete and len(sound) == len(found)

    def _walk(self, statement: str, found: dict[tuple[Any, ...], None]) -> bool:
        try:
            for row in self._connection.execute(statement):
                if tuple(row) in found:
                    return False  # met what was read from the other end, or a damaged tree leads back
                found[tuple(row)] = None
        except ERRORS as error:
            return any(f"no such table: {table}" in str(error) for table in _LATER)  # of a schema before it
        return True

    def log_numbers(self) -> list[int]:
        """Logs that have segments which can be found."""
        numbers, after = [], -1
        while after < KEY_MAX:
            key = self._next_key(after + 1, KEY_MAX)
            if key is None:
                break
            numbers.append(key >> POSITION_BITS)
            after = key_of(numbers[-1], POSITION_MAX)
        return numbers

    def segments(self, first: int, last: int) -> Iterator[Row]:
        """Every row with a key in ``first..last`` that a tree leads to, ascending; not checked itself."""
        log, start = log_of(first)[0], first
        while start <= last:
            before, broken = start, False
            try:
                for row in map(Row._make, self._connection.execute(_RANGE, (start, last))):
                    if row.key < start:  # a damaged tree leads back: what is behind is looked for anew
                        broken = True
                        break
                    start = row.key + 1
                    self._reached[log] = start - key_of(log, 0)
                    yield row
            except ERRORS:
                broken = True
            if not broken:
                return
            key = self._next_key(start if start > before else start + 1, last)
            if key is None:
                self._lost_tail.add(log)
                return
            start = key

    def remains(self, row: Row, end: int) -> Damage | None:
        """What a row held that fails its checks; `end`: of its log, as last counted. None when nobody can tell."""
        position = row.key & POSITION_MAX
        with contextlib.suppress(StoreDamaged, *ERRORS):
            return examine(self._connection, row, end if position < end else position + segment.extent(row))
        return None

    def reached(self, log: int) -> int:
        """The position behind the beginning of the last row seen of a log, sound or not."""
        return self._reached.get(log, 0)

    def lost_tail(self, log: int) -> bool:
        """True when a walk of the log broke off and found nothing behind."""
        return log in self._lost_tail

    def _next_key(self, start: int, last: int) -> int | None:
        """The least key at or above `start` that can be read: by doubling steps, then halving them."""
        step, low = 1, start
        found = self._probe(start, last)
        if found is not False:
            return found
        while True:
            high = start + step
            if high > last:
                return None
            found = self._probe(high, last)
            if found is not False:
                break
            low, step = high, step * 2
        while low + 1 < high:
            middle = (low + high) // 2
            better = self._probe(middle, last)
            if better is False:
                low = middle
            else:
                high, found = middle, better
        return found

    def _probe(self, start: int, last: int) -> int | bool | None:
        """The first key from `start` on whose row can be read, None when there is none; False when reading fails."""
        try:
            row = self._connection.execute(f"{_RANGE} LIMIT 1", (start, last)).fetchone()
        except ERRORS:
            return False
        if row is None:
            return None
        return int(row[0]) if int(row[0]) >= start else False


def _text(content: bytes) -> str | bytes:
    """A text column, as it is when it is none: what reads it takes no bytes for text."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content
