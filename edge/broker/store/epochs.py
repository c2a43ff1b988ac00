"""The epochs of one store: which of them a message belongs to.

A store begins with one. It goes on under a new one when sequences may have been given before that it does not know of:
an older copy was put back, or its newest messages are lost. Sequences go on, and each address has a first one in the
new epoch; what is below keeps the name it had, so that the hub knows what it has already.
"""

from __future__ import annotations

import sqlite3
import time
import uuid
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import Final

TABLES: Final = ("epoch", "epoch_start")


class Epochs:
    """Changed in place when a new epoch begins, so that whoever names messages sees it."""

    def __init__(self, current: str) -> None:
        self.current = current
        """32 hex digits, random."""
        self._ids = [current]
        self._starts: dict[str, list[tuple[int, int]]] = {}
        """(first sequence, number of the epoch) of an address, ascending; it may have been in the epoch before."""

    @classmethod
    def load(cls, connection: sqlite3.Connection, current: str) -> Epochs:
        """Those of a file; `current` as its table ``meta`` says. Raises as `reload`."""
        epochs = cls(current)
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if tables.issuperset(TABLES):  # not of a store that an older program made
            epochs.reload(connection)
        return epochs

    def reload(self, connection: sqlite3.Connection) -> None:
        """Take over what the file says. Raises sqlite3.Error, or ValueError when it cannot be."""
        rows = connection.execute("SELECT number, id FROM epoch ORDER BY number").fetchall()
        ids = [name for _, name in rows]
        if [number for number, _ in rows] != list(range(len(rows))):
            raise ValueError("an epoch is missing")
        starts: dict[str, list[tuple[int, int]]] = {}
        for address, first, number in connection.execute("SELECT address, first, epoch FROM epoch_start"):
            if not 0 < number < len(ids):
                raise ValueError(f"epoch {number} of {address!r} is missing")
            starts.setdefault(address, []).append((first, number))
        self._ids = ids or [self.current]
        self.current = self._ids[-1]
        self._starts = {address: sorted(found) for address, found in starts.items()}

    @property
    def single(self) -> bool:
        """There never was another one."""
        return len(self._ids) == 1

    def of(self, address: str, sequence: int) -> str:
        """The epoch of one message."""
        starts = self._starts.get(address)
        if starts is None:
            return self.current
        index = bisect_right(starts, (sequence, len(self._ids))) - 1
        return self._ids[starts[index][1] if index >= 0 else starts[0][1] - 1]

    def start(self, address: str) -> int:
        """The first sequence of an address in the current epoch."""
        starts = self._starts.get(address)
        return starts[-1][0] if starts is not None and starts[-1][1] == len(self._ids) - 1 else 0

    def parts(self, address: str, first: int, last: int) -> Iterator[tuple[str, int, int]]:
        """(epoch, first, last) of sequences ``first..last``, cut where a new epoch begins."""
        cuts = [start for start, _ in self._starts.get(address, ()) if first < start <= last]
        for low, after in zip([first, *cuts], [*cuts, last + 1], strict=True):
            if low < after:
                yield self.of(address, low), low, after - 1

    def before(self) -> Iterator[tuple[str, str, int]]:
        """(epoch, address, last) of sequences ``0..last`` that belong to an earlier epoch than this one."""
        for address, starts in self._starts.items():
            for first, number in starts:
                if first:
                    yield self._ids[number], address, first - 1


def begin(connection: sqlite3.Connection, starts: Mapping[str, int], reason: str) -> str:
    """Begin a new epoch, in which each address goes on at its `starts`; returns it. One transaction, or a part of the
    one that is open. Raises sqlite3.Error."""
    own = not connection.in_transaction
    if own:
        connection.execute("BEGIN IMMEDIATE")
    try:
        (made,) = connection.execute("SELECT value FROM meta WHERE key = 'epoch'").fetchone()
        connection.execute("INSERT INTO epoch VALUES (0, ?, 0, 'made') ON CONFLICT DO NOTHING", (made,))
        (number,) = connection.execute("SELECT max(number) + 1 FROM epoch").fetchone()
        name = uuid.uuid4().hex
        connection.execute("INSERT INTO epoch VALUES (?, ?, ?, ?)", (number, name, time.time_ns(), reason))
        rows = ((address, number, first) for address, first in starts.items() if first)
        connection.executemany("INSERT INTO epoch_start VALUES (?, ?, ?)", rows)
        connection.execute("INSERT OR REPLACE INTO meta VALUES ('epoch', ?)", (name,))
        if own:
            connection.execute("COMMIT")
    except BaseException:
        if own and connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return name
