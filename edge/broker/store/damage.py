"""Determines the former content of a damaged segment, from its remains and from the segments around it.

The segments around it define its bounds, because segments follow one another without a gap. If they do not, the segment
must not be skipped. A flipped bit usually hits a body, and then the rest of the segment is correct. So its message
names are trusted if they fill exactly the sequences missing between the neighbours. Otherwise the missing messages of
an address are those between its last sequence before and its first one after. Losses that cannot be determined in
either way are entered as positions of the log.
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
"""Reason in the ledger: the medium returned other data than was written."""
UNNAMED: Final = "$log/"
"""Prefix of the address of an entry for lost positions of a log with unknown message names."""

_BEFORE: Final = f"{segment.SELECT} WHERE key >= ? AND key < ? ORDER BY key DESC LIMIT {NEIGHBOURS}"
_AFTER: Final = f"{segment.SELECT} WHERE key > ? AND key < ? ORDER BY key LIMIT {NEIGHBOURS}"


class Damage(NamedTuple):
    """Positions ``first..last`` of a log that cannot be read."""

    log: int
    name: str
    """Name of the log."""
    first: int
    last: int
    runs: Sequence[Stored] = ()
    """All messages of the segment with wrong bodies, if its remains can be trusted."""
    gaps: Sequence[tuple[str, int, int]] = ()
    """(address, first, last) of sequences missing between the neighbours. More may be missing."""

    def losses(self, claims: Sequence[Claim], now_ns: int) -> list[Loss]:
        """Return the losses of each cursor: messages that it wanted and had not acknowledged."""
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
    """Segment near a damaged one."""

    first: int
    end: int
    """End according to the segment itself."""
    valid: bool
    names: Sequence[segment.SegmentRunName]
    """Names of its runs. Those of a damaged neighbour can confirm a continuation, but prove no gap."""
    sparse: bool


class _Around:
    """Neighbours of a damaged segment: its bounds, and the sequences of addresses before and after it."""

    def __init__(self, connection: sqlite3.Connection, row: SegmentRow, end: int) -> None:
        """`end` is the end of the log. Raises sqlite3.Error."""
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
        """Return the last position of the damaged segment. Raises StoreDamaged if it is unknown, and sqlite3.Error."""
        first = self._row.key & POSITION_MAX
        begins = self._before[0].end if self._before else 0
        if begins > first or (begins < first and not is_accounted_for(self._connection, self._log, begins, first - 1)):
            raise StoreDamaged(f"the segment at position {first} is damaged and in the wrong place: {ADVICE}")
        if not self._after:
            return self._end - 1
        after = self._after[0]
        if not after.valid and after.first != first + segment.extent(self._row):
            raise StoreDamaged(f"the segments at positions {first} and {after.first} are damaged: {ADVICE}")
        return after.first - 1

    def counters(self, addresses: Iterable[str]) -> dict[str, int]:
        """Return the counters of addresses on the medium. Addresses without one are left out."""
        names = msgspec.json.encode(list(addresses)).decode()
        query = "SELECT name, next FROM address WHERE name IN (SELECT value FROM json_each(?))"
        return dict(self._connection.execute(query, (names,)).fetchall())

    def confirm(self, runs: Sequence[Stored]) -> bool:
        """Return True when these sequences are exactly those missing between the neighbours.

        More may be missing where messages were not written (``durability: memory``, thinning).
        """
        ends, begins = self._ends(valid=False), self._begins({stored.run.address for stored in runs}, valid=False)
        reached: dict[str, int] = {}
        for _, sequence, run in runs:
            known = reached.get(run.address, ends.get(run.address))
            if (known is None and run.address not in begins) or not self._continues(known, sequence):
                return False
            reached[run.address] = sequence + len(run.bodies)
        fits = all(self._continues(end, begins.get(address)) for address, end in reached.items())
        return fits and (self._sparse or all(address in reached for address, _, _ in self.gaps()))

    def gaps(self) -> list[tuple[str, int, int]]:
        """Return (address, first, last) of sequences that are certainly missing."""
        ends = self._ends(valid=True)
        begins = self._begins(ends, valid=True)
        found = ((address, end, begins.get(address, end) - 1) for address, end in ends.items())
        return [(address, first, last) for address, first, last in found if first <= last]

    def _continues(self, end: int | None, begin: int | None) -> bool:
        """Return True when `begin` may follow `end`, as far as both are known."""
        return end is None or begin is None or end == begin or (end < begin and self._sparse)

    def _is_counted(self) -> bool:
        (end,) = self._connection.execute("SELECT next FROM log WHERE log = ?", (self._log,)).fetchone()
        return bool(end >= self._end)

    def _ends(self, *, valid: bool) -> dict[str, int]:
        ends: dict[str, int] = {}
        for head in _names(self._before, valid=valid):
            ends[head.address] = max(ends.get(head.address, 0), head.sequence + head.messages)
        return ends

    def _begins(self, addresses: Iterable[str], *, valid: bool) -> dict[str, int]:
        """Return the first sequence of each address after the segment.

        At the end of the log the counters have it, if they include this segment.
        """
        begins = self.counters(addresses) if self.at_end and self._is_counted() else {}
        following: dict[str, int] = {}
        for head in _names(self._after, valid=valid):
            following[head.address] = min(following.get(head.address, head.sequence), head.sequence)
        return {**begins, **following}


def _names(neighbours: Iterable[_Neighbour], *, valid: bool) -> Iterator[segment.SegmentRunName]:
    return chain.from_iterable(neighbour.names for neighbour in neighbours if neighbour.valid or not valid)


def _neighbours(rows: Iterable[tuple[object, ...]]) -> tuple[list[_Neighbour], bool]:
    """Return the neighbours, nearest first, and whether these are all. Raises sqlite3.Error."""
    found: list[_Neighbour] = []
    size = 0
    for row in map(SegmentRow._make, rows):
        size += len(row.data) if isinstance(row.data, bytes) else 0
        if size > NEIGHBOUR_BYTES and len(found) > 1:
            return found, False
        first = row.key & POSITION_MAX
        end = first + segment.extent(row)
        try:
            found.append(_Neighbour(first, end, True, segment.run_names(row), segment.is_sparse(row)))
        except SegmentDamaged:
            found.append(_Neighbour(first, end, False, _claimed_names(row), False))
    return found, len(found) < NEIGHBOURS


def _claimed_names(row: SegmentRow) -> list[segment.SegmentRunName]:
    """Return the names in a damaged segment, as far as it can be decoded."""
    try:
        runs = segment.decode_damaged(row, row.key & POSITION_MAX)
    except SegmentDamaged:
        return []
    return [segment.SegmentRunName(run.address, sequence, len(run.bodies)) for _, sequence, run in runs]


def examine(connection: sqlite3.Connection, row: SegmentRow, end: int) -> Damage:
    """Find out what a damaged segment contained, in a log that ends at `end`. Reads a bounded number of neighbours.

    Raises StoreDamaged if the bounds of the segment are unknown, and sqlite3.Error.
    """
    log, first = row.key >> POSITION_BITS, row.key & POSITION_MAX
    around = _Around(connection, row, end)
    last = around.last()
    (name,) = connection.execute("SELECT name FROM log WHERE log = ?", (log,)).fetchone()
    try:
        runs = [_probe(stored) for stored in segment.decode_damaged(row, first)]
    except SegmentDamaged:
        runs = []
    if runs and first + segment.extent(row) - 1 == last and around.confirm(runs):
        return Damage(log, name, first, last, runs)
    return Damage(log, name, first, last, (), around.gaps())


def _probe(stored: Stored) -> Stored:
    """Return the run with only its address and device, as its properties may be the damaged part."""
    run = stored.run
    return stored._replace(run=Run(run.address, run.device, 1 | DURABLE, b"", run.bodies, run.received_at))
