"""Rows of a damaged database that its trees still lead to, read from both ends."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from edge.broker.store import schema, segment
from edge.broker.store.damage import Damage, examine
from edge.broker.store.errors import StoreDamaged
from edge.broker.store.limits import POSITION_MAX, StoreLimits
from edge.broker.store.segment import SELECT, SegmentRow

ERRORS: Final = (sqlite3.Error, UnicodeDecodeError)
"""Errors of reading a damaged file; the second when SQLite's message quotes a damaged name."""
_LATER: Final = ("ledger", "thinned", "wear", "opening", "epoch", "epoch_start")
"""Tables that are missing in a store of schema 1."""


class Salvage:
    """Reader of a private copy. An error of SQLite ends a walk; the next one starts at the other end."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.text_factory = _text
        for pragma in ("query_only = ON", "cell_size_check = OFF", "temp_store = MEMORY"):
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute(f"PRAGMA {pragma}").fetchall()
        self._complete = True

    def close(self) -> None:
        """Close the copy; idempotent."""
        self._connection.close()

    @property
    def page_bytes(self) -> int:
        """Page size of the database; the default size when its head is lost."""
        with contextlib.suppress(*ERRORS):
            return schema.page_bytes(self._connection)
        return StoreLimits().page_bytes

    def rows(self, table: str, columns: Mapping[str, type]) -> tuple[list[tuple[Any, ...]], bool]:
        """Return (rows of a small table, whether they are all), read from its start, after an error from its end."""
        names = ", ".join(columns)
        order = "kind, key" if "kind" in columns else next(iter(columns))
        found: dict[tuple[Any, ...], None] = {}
        complete = self._walk(f"SELECT {names} FROM {table} ORDER BY {order}", found)  # noqa: S608 - our own names
        if not complete:
            backwards = ", ".join(f"{name} DESC" for name in order.split(", "))
            self._walk(f"SELECT {names} FROM {table} ORDER BY {backwards}", found)  # noqa: S608
        kinds = tuple(columns.values())
        valid = [row for row in found if all(map(isinstance, row, kinds))]
        return valid, complete and len(valid) == len(found)

    def _walk(self, statement: str, found: dict[tuple[Any, ...], None]) -> bool:
        try:
            for row in self._connection.execute(statement):
                if tuple(row) in found:
                    return False  # read from the other end already, or a damaged tree leads back
                found[tuple(row)] = None
        except ERRORS as error:
            return any(f"no such table: {table}" in str(error) for table in _LATER)  # an older schema
        return True

    def segments(self) -> Iterator[SegmentRow]:
        """Yield each row of the tree, in its order; rows are not verified, and may repeat.

        The tree is read from its start, and from its end after an error. `search` finds rows that neither reaches.
        """
        for order in ("ASC", "DESC"):
            try:
                yield from map(SegmentRow._make, self._connection.execute(f"{SELECT} ORDER BY key {order}"))
            except ERRORS:
                self._complete = False
            else:
                return

    @property
    def complete(self) -> bool:
        """True when the tree of the segments was read to its end."""
        return self._complete

    def remains(self, row: SegmentRow, end: int) -> Damage | None:
        """Return what is readable of a damaged row, or None. `end`: last counted end of its log."""
        position = row.key & POSITION_MAX
        with contextlib.suppress(StoreDamaged, *ERRORS):
            return examine(self._connection, row, end if position < end else position + segment.extent(row))
        return None

    def indexed(self, table: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """Return the rows in the unique index of a table; none when it is damaged."""
        names = ", ".join(columns)
        statement = f"SELECT {names} FROM {table} INDEXED BY sqlite_autoindex_{table}_1"  # noqa: S608 - our own names
        with contextlib.suppress(*ERRORS):
            return self._connection.execute(statement).fetchall()
        return []


def _text(content: bytes) -> str | bytes:
    """Decode a text column; return the bytes if it is not UTF-8: callers do not accept them as text."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content
