"""Eviction: deletes the oldest messages of a log, and determines the losses."""

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
"""Reason in the ledger: dropped to make room within the quota of the address or on the card."""


def evict(connection: sqlite3.Connection, eviction: Eviction) -> Evicted:
    """Delete the segments of an eviction job, in the open transaction. Raises sqlite3.Error."""
    base = eviction.log << POSITION_BITS
    freed, until, losses, cut = 0, eviction.first, list[Loss](), False
    rows = connection.execute(SCAN, (base | eviction.first, base | eviction.limit))
    try:
        for row in map(SegmentRow._make, rows):
            misplaced = not base <= row.key < base | eviction.limit  # a damaged tree may return any row
            if freed >= eviction.bytes or misplaced:
                break
            position = row.key & POSITION_MAX
            if position != until and not is_accounted_for(connection, eviction.log, until, position - 1):
                break  # do not skip a gap: a reader will report it
            try:
                runs = decode(row, position)
            except SegmentDamaged:  # not read before, so not in the ledger yet
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
    """Split runs into (removed, kept): remove messages from the start until `size` bytes, but at most `at_most` bytes.

    `at_most` is less than the size of all runs.
    """
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
    """Replace a segment by the rest of it, and return the bytes of bodies removed."""
    first = rest[0].position
    key, end = row.key & ~POSITION_MAX | first, (row.key & POSITION_MAX) + row.messages
    dense = sum(len(stored.run.bodies) for stored in rest) == end - first
    span = None if dense else end - first
    new = encode(key, row.boot, row.monotonic_ns, rest, span=span, packed=is_packed(row))
    connection.execute("DELETE FROM segment WHERE key = ?", (row.key,))
    connection.execute(INSERT, new)
    connection.execute("UPDATE thinned SET key = ? WHERE key = ?", (key, row.key))
    return row.body_bytes - new.body_bytes
