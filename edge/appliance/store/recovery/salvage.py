"""Rows out of a damaged database: everything its trees still lead to, from both ends."""

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
"""What reading a damaged file raises; the second when SQLite's own message quotes a rotten name."""
_LATER: Final = ("ledger", "thinned", "wear", "opening", "epoch", "epoch_start")
"""Tables that a store of schema 1 does not have."""


class Salvage:
    """A copy nobody else has open; errors of SQLite end a walk, and the next one begins at the other end."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.text_factory = _text
        for pragma in ("query_only = ON", "cell_size_check = OFF", "temp_store = MEMORY"):
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute(f"PRAGMA {pragma}").fetchall()
        self._whole = True

    def close(self) -> None:
        """Idempotent."""
        self._connection.close()

    @property
    def page_bytes(self) -> int:
        """Of the database; of one whose head is lost, SQLite's default."""
        with contextlib.suppress(*ERRORS):
            return schema.page_bytes(self._connection)
        return StoreLimits().page_bytes

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

    def segments(self) -> Iterator[SegmentRow]:
        """Every row that the tree leads to, in the order of the tree; not checked itself, and some maybe twice.

        From its beginning, and from its end where that breaks off. What neither reaches is found by `search`.
        """
        for order in ("ASC", "DESC"):
            try:
                yield from map(SegmentRow._make, self._connection.execute(f"{SELECT} ORDER BY key {order}"))
            except ERRORS:
                self._whole = False
            else:
                return

    @property
    def whole(self) -> bool:
        """The tree of the segments could be walked to its end."""
        return self._whole

    def remains(self, row: SegmentRow, end: int) -> Damage | None:
        """What a row held that fails its checks; `end`: of its log, as last counted. None when nobody can tell."""
        position = row.key & POSITION_MAX
        with contextlib.suppress(StoreDamaged, *ERRORS):
            return examine(self._connection, row, end if position < end else position + segment.extent(row))
        return None

    def indexed(self, table: str, columns: Sequence[str]) -> list[tuple[Any, ...]]:
        """Rows as the index of a table has them, which was made to keep its names apart; none where that is damaged."""
        names = ", ".join(columns)
        statement = f"SELECT {names} FROM {table} INDEXED BY sqlite_autoindex_{table}_1"  # noqa: S608 - our own names
        with contextlib.suppress(*ERRORS):
            return self._connection.execute(statement).fetchall()
        return []


def _text(content: bytes) -> str | bytes:
    """A text column, as it is when it is none: what reads it takes no bytes for text."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content
