"""Epochs of one store, and the epoch of each message.

A store starts with one epoch. It continues with a new one when sequences may have been used that it does not know: an
older copy was restored, or its newest messages are lost. Sequences continue, and each address has a first one in the
new epoch. Earlier messages keep their names, so that the hub recognises those it already has.
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
    """Epochs in memory. The object is updated in place, so that all its users see a new epoch."""

    def __init__(self, current: str) -> None:
        self.current = current
        """Id of the current epoch: 32 random hex digits."""
        self._ids = [current]
        self._starts: dict[str, list[tuple[int, int]]] = {}
        """Ascending (first sequence, epoch number) of each address."""

    @classmethod
    def load(cls, connection: sqlite3.Connection, current: str) -> Epochs:
        """Load the epochs of a file. `current` comes from its table ``meta``. Raises as `reload` does."""
        epochs = cls(current)
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if tables.issuperset(TABLES):  # a store of an older program has no such tables
            epochs.reload(connection)
        return epochs

    def reload(self, connection: sqlite3.Connection) -> None:
        """Read the epochs again. Raises sqlite3.Error, or ValueError when the tables are inconsistent."""
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
        """True when there is only one epoch."""
        return len(self._ids) == 1

    def of(self, address: str, sequence: int) -> str:
        """Return the epoch of one message."""
        starts = self._starts.get(address)
        if starts is None:
            return self.current
        index = bisect_right(starts, (sequence, len(self._ids))) - 1
        return self._ids[starts[index][1] if index >= 0 else starts[0][1] - 1]

    def start(self, address: str) -> int:
        """Return the first sequence of an address in the current epoch."""
        starts = self._starts.get(address)
        return starts[-1][0] if starts is not None and starts[-1][1] == len(self._ids) - 1 else 0

    def parts(self, address: str, first: int, last: int) -> Iterator[tuple[str, int, int]]:
        """Return (epoch, first, last) of sequences ``first..last``, split where a new epoch starts."""
        cuts = [start for start, _ in self._starts.get(address, ()) if first < start <= last]
        for low, after in zip([first, *cuts], [*cuts, last + 1], strict=True):
            if low < after:
                yield self.of(address, low), low, after - 1

    def before(self) -> Iterator[tuple[str, str, int]]:
        """Iterate over (epoch, address, last): sequences ``0..last`` belong to epochs before this one."""
        for address, starts in self._starts.items():
            for first, number in starts:
                if first:
                    yield self._ids[number], address, first - 1


def start_epoch(connection: sqlite3.Connection, starts: Mapping[str, int], reason: str) -> str:
    """Start a new epoch, in which each address continues at its `starts`, and return its id.

    Uses the open transaction, or one of its own. Raises sqlite3.Error.
    """
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
