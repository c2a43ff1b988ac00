"""Giving up the oldest messages of a log: which segments go, and who loses what by it."""

from __future__ import annotations

import sqlite3
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from bridge.message import Stored
from edge.broker.store.damage import examine
from edge.broker.store.errors import StoreDamaged
from edge.broker.store.gaps import is_accounted_for
from edge.broker.store.limits import POSITION_BITS, POSITION_MAX
from edge.broker.store.losses import losses_of
from edge.broker.store.reader import SCAN
from edge.broker.store.records import Loss
from edge.broker.store.removal_jobs import Evicted, Eviction
from edge.broker.store.segment import INSERT, SegmentDamaged, SegmentRow, decode, encode, is_packed

EVICTED: Final = "evicted"
"""Reason in the ledger: given up to make room within the quota of the address or on the card."""


def evict(connection: sqlite3.Connection, eviction: Eviction) -> Evicted:
    """Delete the segments an eviction asks for, in the transaction that is open. Raises sqlite3.Error."""
    base = eviction.log << POSITION_BITS
    freed, until, losses, cut = 0, eviction.first, list[Loss](), False
    rows = connection.execute(SCAN, (base | eviction.first, base | eviction.limit))
    try:
        for row in map(SegmentRow._make, rows):
            misplaced = not base <= row.key < base | eviction.limit  # a damaged tree leads anywhere
            if freed >= eviction.bytes or misplaced:
                break
            position = row.key & POSITION_MAX
            if position != until and not is_accounted_for(connection, eviction.log, until, position - 1):
                break  # what is missing there must not be passed over: whoever reads it says so
            try:
                runs = decode(row, position)
            except SegmentDamaged:  # nobody has read it, so nobody has told the ledger; and nobody can be spared it
                try:
                    damage = examine(connection, row, eviction.limit)
                except StoreDamaged:
                    break
                losses += damage.losses(eviction.claims, eviction.now_ns)
                freed += row.body_bytes if isinstance(row.body_bytes, int) else len(row.data)
                until = damage.last + 1
                continue
            rest: list[Stored] = []
            if eviction.at_most is not None and freed + row.body_bytes > eviction.at_most:
                runs, rest = _cut(runs, eviction.bytes - freed, eviction.at_most - freed)
            losses += losses_of(eviction.claims, runs, EVICTED, eviction.now_ns)
            if runs and rest:
                cut, until = True, rest[0].position
                freed += _replace(connection, row, rest)
            if rest:
                break
            freed += row.body_bytes
            until = position + row.messages
    finally:
        rows.close()
    if until > eviction.first:
        connection.execute("DELETE FROM segment WHERE key >= ? AND key < ?", (base, base | until))
        connection.execute("UPDATE log SET first = ?, bytes = bytes - ? WHERE log = ?", (until, freed, eviction.log))
    return Evicted(eviction.log, until, freed, losses, cut)


def _cut(runs: Sequence[Stored], size: int, at_most: int) -> tuple[list[Stored], list[Stored]]:
    """(what goes from the beginning, what stays): messages of `size` bytes, and the last of them more if that is not
    beyond `at_most`, which is less than all of them have."""
    gone: list[Stored] = []
    rest = deque(runs)
    freed = 0
    while rest and freed < size:
        position, sequence, run = rest.popleft()
        ends = list(accumulate(map(len, run.bodies)))
        count = min(bisect_left(ends, size - freed) + 1, bisect_right(ends, at_most - freed))
        if count:
            gone.append(Stored(position, sequence, run.part(0, count)))
            freed += ends[count - 1]
        if count < len(ends):
            rest.appendleft(Stored(position + count, sequence + count, run.part(count, len(ends))))
            break
    return gone, list(rest)


def _replace(connection: sqlite3.Connection, row: SegmentRow, rest: Sequence[Stored]) -> int:
    """Write what stays of a segment in its place; bytes of bodies that went."""
    first = rest[0].position
    key, end = row.key & ~POSITION_MAX | first, (row.key & POSITION_MAX) + row.messages
    dense = sum(len(stored.run.bodies) for stored in rest) == end - first
    span = None if dense else end - first
    new = encode(key, row.boot, row.monotonic_ns, rest, span=span, packed=is_packed(row))
    connection.execute("DELETE FROM segment WHERE key = ?", (row.key,))
    connection.execute(INSERT, new)
    connection.execute("UPDATE thinned SET key = ? WHERE key = ?", (key, row.key))
    return row.body_bytes - new.body_bytes
