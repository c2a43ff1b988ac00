"""What a segment held that cannot be believed any more: from its own remains, and from the segments around it.

A flipped bit mostly hits a body, and then everything else the segment says is right. It is believed when its lengths
add up and its sequences fit between those of the segments around it. Otherwise what is missing of an address is what
lies between its last sequence before and its first one after. What neither tells is entered as positions of the log.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from bridge.message import DURABLE, Run, Stored
from edge.broker.store import segment
from edge.broker.store.contract import Loss
from edge.broker.store.group import Holder
from edge.broker.store.limits import NEIGHBOUR_BYTES, NEIGHBOURS, POSITION_BITS, POSITION_MAX
from edge.broker.store.losses import losses_of
from edge.broker.store.segment import Row, SegmentDamaged

DAMAGED: Final = "damaged"
"""Reason in the ledger: the medium gave back something else than was written."""
UNNAMED: Final = "$log/"
"""Begins the address of an entry that can only say which positions of which log are lost."""

_BEFORE: Final = f"{segment.SELECT} WHERE key >= ? AND key < ? ORDER BY key DESC LIMIT {NEIGHBOURS}"
_AFTER: Final = f"{segment.SELECT} WHERE key > ? AND key <= ? ORDER BY key LIMIT {NEIGHBOURS}"


class Damage(NamedTuple):
    """Positions ``first..last`` of a log that cannot be read."""

    log: int
    name: str
    """Of the log."""
    first: int
    last: int
    runs: Sequence[Stored] = ()
    """What was there, when the segment's remains are believed; then it is everything, and the bodies are wrong."""
    gaps: Sequence[tuple[str, int, int]] = ()
    """(address, first, last) of sequences missing between the segments around; there may be more."""

    def losses(self, holders: Sequence[Holder], now_ns: int) -> list[Loss]:
        """What each of the log's cursors loses: what it is owed and has not acknowledged."""
        if self.runs:
            return list(losses_of(holders, self.runs, DAMAGED, now_ns))
        return [loss for holder in holders for loss in self._losses_of(holder, now_ns)]

    def _losses_of(self, holder: Holder, now_ns: int) -> Iterator[Loss]:
        left = sum(last + 1 - first for first, last in holder.progress.outside(self.first, self.last))
        for address, first, last in self.gaps:
            messages = min(left, last + 1 - first)
            left -= messages
            wanted = holder.wants is None or holder.wants(Run(address, "", 1 | DURABLE, b"", [], 0))
            if messages and wanted:
                yield Loss(holder.name, address, first, last, messages, 0, DAMAGED, now_ns)
        if left:
            yield Loss(holder.name, UNNAMED + self.name, self.first, self.last, left, 0, DAMAGED, now_ns)


class _Around:
    """The segments next to a damaged one: where the sequences of their addresses end before it and begin after it."""

    def __init__(self, connection: sqlite3.Connection, key: int) -> None:
        self._connection = connection
        base = key >> POSITION_BITS << POSITION_BITS
        self.following: int | None = None
        """Position of the next segment."""
        self.ends: dict[str, int] = {}
        self.begins: dict[str, int] = {}
        for head in self._heads(connection.execute(_BEFORE, (base, key))):
            self.ends[head.address] = max(self.ends.get(head.address, 0), head.sequence + head.messages)
        self.at_end = True
        """Everything after it was looked at."""
        for head in self._heads(connection.execute(_AFTER, (key, base | POSITION_MAX)), after=True):
            self.begins[head.address] = min(self.begins.get(head.address, head.sequence), head.sequence)

    def _heads(self, rows: Iterable[tuple[object, ...]], *, after: bool = False) -> Iterator[segment.Head]:
        size = count = 0
        for row in map(Row._make, rows):
            count += 1
            if after and self.following is None:
                self.following = row.key & POSITION_MAX
            size += len(row.data) if isinstance(row.data, bytes) else 0
            if count == NEIGHBOURS or size > NEIGHBOUR_BYTES:
                self.at_end = False
            if size > NEIGHBOUR_BYTES and count > 1:
                return
            try:
                yield from segment.heads(row)
            except SegmentDamaged:
                continue

    def counters(self, addresses: Iterable[str]) -> dict[str, int]:
        """The next sequence of each address as last counted; those that have none are left out."""
        names = msgspec.json.encode(list(addresses)).decode()
        query = "SELECT name, next FROM address WHERE name IN (SELECT value FROM json_each(?))"
        return dict(self._connection.execute(query, (names,)).fetchall())

    def confirm(self, runs: Sequence[Stored]) -> bool:
        """True when these sequences, and no others, fit between what is around."""
        known = self.counters({stored.run.address for stored in runs} - self.ends.keys() - self.begins.keys())
        ends = dict(self.ends)
        for _, sequence, run in runs:
            address, end = run.address, sequence + len(run.bodies)
            if address not in known and address not in self.ends and address not in self.begins:
                return False
            if sequence < ends.get(address, 0) or end > self.begins.get(address, end):
                return False
            ends[address] = end
        return True

    def gaps(self) -> list[tuple[str, int, int]]:
        """(address, first, last) of sequences that are missing for certain."""
        begins = {**(self.counters(self.ends) if self.at_end else {}), **self.begins}
        found = ((address, end, begins.get(address, end) - 1) for address, end in self.ends.items())
        return [(address, first, last) for address, first, last in found if first <= last]


def examine(connection: sqlite3.Connection, row: Row, end: int) -> Damage:
    """What a damaged segment of a log, that ends at position `end`, held. Reads a bounded number of others.

    Raises nothing: what cannot be read says nothing.
    """
    log, first = row.key >> POSITION_BITS, row.key & POSITION_MAX
    messages, name = segment.extent(row), str(log)
    try:
        name = str(connection.execute("SELECT name FROM log WHERE log = ?", (log,)).fetchone()[0])
        around = _Around(connection, row.key)
        last = (end if around.following is None else min(around.following, end)) - 1
        try:
            runs = segment.remains(row, first)
        except SegmentDamaged:
            runs = []
        if runs and first + messages - 1 <= last and around.confirm(runs):
            return Damage(log, name, first, first + messages - 1, runs)
        return Damage(log, name, first, max(first, last), (), around.gaps())
    except (sqlite3.Error, TypeError, ValueError):
        return Damage(log, name, first, max(first, min(first + messages, end) - 1))
