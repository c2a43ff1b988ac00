"""What a segment held that cannot be believed any more: from its own remains, and from the segments around it.

Where it begins and ends is what the segments around it say: they lie behind one another without a gap. Where these do
not tell, nothing may be passed over. A flipped bit mostly hits a body, and then everything else the segment says is
right: its names are believed when they are what is missing between the sequences around it. Otherwise what is missing
of an address is what lies between its last sequence before and its first one after. What neither tells is entered as
positions of the log.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple

import msgspec

from bridge.message import DURABLE, Run, Stored
from edge.broker.store import segment
from edge.broker.store.errors import StoreDamaged
from edge.broker.store.faults import ADVICE
from edge.broker.store.gaps import is_accounted_for
from edge.broker.store.limits import NEIGHBOUR_BYTES, NEIGHBOURS, POSITION_BITS, POSITION_MAX
from edge.broker.store.loops import SPARSE
from edge.broker.store.losses import Claim, losses_of
from edge.broker.store.records import Loss
from edge.broker.store.segment import SegmentDamaged, SegmentRow

DAMAGED: Final = "damaged"
"""Reason in the ledger: the medium gave back something else than was written."""
UNNAMED: Final = "$log/"
"""Begins the address of an entry that can only say which positions of which log are lost."""

_BEFORE: Final = f"{segment.SELECT} WHERE key >= ? AND key < ? ORDER BY key DESC LIMIT {NEIGHBOURS}"
_AFTER: Final = f"{segment.SELECT} WHERE key > ? AND key < ? ORDER BY key LIMIT {NEIGHBOURS}"


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

    def losses(self, claims: Sequence[Claim], now_ns: int) -> list[Loss]:
        """What each of the log's cursors loses: what it is owed and has not acknowledged."""
        if self.runs:
            return list(losses_of(claims, self.runs, DAMAGED, now_ns))
        return [loss for claim in claims for loss in self._losses_of(claim, now_ns)]

    def _losses_of(self, claim: Claim, now_ns: int) -> Iterator[Loss]:
        left = sum(last + 1 - first for first, last in claim.progress.outside(self.first, self.last))
        for address, first, last in self.gaps:
            messages = min(left, last + 1 - first)
            left -= messages
            wanted = claim.wants is None or claim.wants(Run(address, "", 1 | DURABLE, b"", [], 0))
            if messages and wanted:
                yield Loss(claim.name, address, first, last, messages, 0, DAMAGED, now_ns)
        if left:
            yield Loss(claim.name, UNNAMED + self.name, self.first, self.last, left, 0, DAMAGED, now_ns)


class _Neighbour(NamedTuple):
    """A segment near a damaged one."""

    first: int
    end: int
    """As it says itself."""
    sound: bool
    heads: Sequence[segment.SegmentRunName]
    """Of a damaged one what it says itself: it confirms what follows on from it, and proves nothing."""
    sparse: bool


class _Around:
    """The segments next to a damaged one: where it begins and ends, and where the sequences of their addresses end
    before it and begin after it."""

    def __init__(self, connection: sqlite3.Connection, row: SegmentRow, end: int) -> None:
        """`end`: of the log. Raises sqlite3.Error."""
        self._connection = connection
        self._row = row
        self._log = row.key >> POSITION_BITS
        self._end = end
        base = row.key & ~POSITION_MAX
        self._before, _ = _neighbours(connection.execute(_BEFORE, (base, row.key)))
        self._after, self.at_end = _neighbours(connection.execute(_AFTER, (row.key, base | end)))
        sparse = isinstance(row.data, bytes) and row.data[:1] == bytes((SPARSE,))
        self._sparse = sparse or any(neighbour.sparse for neighbour in chain(self._before, self._after))

    def last(self) -> int:
        """The last position of the damaged segment. Raises StoreDamaged when it cannot be told, and sqlite3.Error."""
        first = self._row.key & POSITION_MAX
        begins = self._before[0].end if self._before else 0
        if begins > first or (begins < first and not is_accounted_for(self._connection, self._log, begins, first - 1)):
            raise StoreDamaged(f"the segment at position {first} is damaged and not where it was written: {ADVICE}")
        if not self._after:
            return self._end - 1
        after = self._after[0]
        if not after.sound and after.first != first + segment.extent(self._row):
            raise StoreDamaged(f"the segments at positions {first} and {after.first} are damaged: {ADVICE}")
        return after.first - 1

    def counters(self, addresses: Iterable[str]) -> dict[str, int]:
        """The next sequence of each address as last counted; those that have none are left out."""
        names = msgspec.json.encode(list(addresses)).decode()
        query = "SELECT name, next FROM address WHERE name IN (SELECT value FROM json_each(?))"
        return dict(self._connection.execute(query, (names,)).fetchall())

    def confirm(self, runs: Sequence[Stored]) -> bool:
        """True when these sequences are what is missing between the segments around.

        Where messages were left out when they were written (``durability: memory``, thinning) more may be missing.
        """
        ends, begins = self._ends(sound=False), self._begins({stored.run.address for stored in runs}, sound=False)
        reached: dict[str, int] = {}
        for _, sequence, run in runs:
            known = reached.get(run.address, ends.get(run.address))
            if (known is None and run.address not in begins) or not self._continues(known, sequence):
                return False
            reached[run.address] = sequence + len(run.bodies)
        fits = all(self._continues(end, begins.get(address)) for address, end in reached.items())
        return fits and (self._sparse or all(address in reached for address, _, _ in self.gaps()))

    def gaps(self) -> list[tuple[str, int, int]]:
        """(address, first, last) of sequences that are missing for certain."""
        ends = self._ends(sound=True)
        begins = self._begins(ends, sound=True)
        found = ((address, end, begins.get(address, end) - 1) for address, end in ends.items())
        return [(address, first, last) for address, first, last in found if first <= last]

    def _continues(self, end: int | None, begin: int | None) -> bool:
        """True when what begins at `begin` may follow what ended at `end`, as far as both are known."""
        return end is None or begin is None or end == begin or (end < begin and self._sparse)

    def _is_counted(self) -> bool:
        (end,) = self._connection.execute("SELECT next FROM log WHERE log = ?", (self._log,)).fetchone()
        return bool(end >= self._end)

    def _ends(self, *, sound: bool) -> dict[str, int]:
        ends: dict[str, int] = {}
        for head in _heads(self._before, sound=sound):
            ends[head.address] = max(ends.get(head.address, 0), head.sequence + head.messages)
        return ends

    def _begins(self, addresses: Iterable[str], *, sound: bool) -> dict[str, int]:
        """Where nothing follows, the counters say where an address goes on, if they have counted this segment."""
        begins = self.counters(addresses) if self.at_end and self._is_counted() else {}
        following: dict[str, int] = {}
        for head in _heads(self._after, sound=sound):
            following[head.address] = min(following.get(head.address, head.sequence), head.sequence)
        return {**begins, **following}


def _heads(neighbours: Iterable[_Neighbour], *, sound: bool) -> Iterator[segment.SegmentRunName]:
    return chain.from_iterable(neighbour.heads for neighbour in neighbours if neighbour.sound or not sound)


def _neighbours(rows: Iterable[tuple[object, ...]]) -> tuple[list[_Neighbour], bool]:
    """(those looked at, nearest first; there are no others). Raises sqlite3.Error."""
    found: list[_Neighbour] = []
    size = 0
    for row in map(SegmentRow._make, rows):
        size += len(row.data) if isinstance(row.data, bytes) else 0
        if size > NEIGHBOUR_BYTES and len(found) > 1:
            return found, False
        first = row.key & POSITION_MAX
        end = first + segment.extent(row)
        try:
            found.append(_Neighbour(first, end, True, segment.heads(row), segment.is_sparse(row)))
        except SegmentDamaged:
            found.append(_Neighbour(first, end, False, _said(row), False))
    return found, len(found) < NEIGHBOURS


def _said(row: SegmentRow) -> list[segment.SegmentRunName]:
    """What a damaged segment says it holds."""
    try:
        runs = segment.remains(row, row.key & POSITION_MAX)
    except SegmentDamaged:
        return []
    return [segment.SegmentRunName(run.address, sequence, len(run.bodies)) for _, sequence, run in runs]


def examine(connection: sqlite3.Connection, row: SegmentRow, end: int) -> Damage:
    """What a damaged segment of a log, that ends at position `end`, held. Reads a bounded number of others.

    Raises StoreDamaged when it cannot be told where it begins and ends, and sqlite3.Error.
    """
    log, first = row.key >> POSITION_BITS, row.key & POSITION_MAX
    around = _Around(connection, row, end)
    last = around.last()
    (name,) = connection.execute("SELECT name FROM log WHERE log = ?", (log,)).fetchone()
    try:
        runs = [_probe(stored) for stored in segment.remains(row, first)]
    except SegmentDamaged:
        runs = []
    if runs and first + segment.extent(row) - 1 == last and around.confirm(runs):
        return Damage(log, name, first, last, runs)
    return Damage(log, name, first, last, (), around.gaps())


def _probe(stored: Stored) -> Stored:
    """As every consumer wants it that takes its address: what else it says may be what is wrong with it."""
    run = stored.run
    return stored._replace(run=Run(run.address, run.device, 1 | DURABLE, b"", run.bodies, run.received_at))
