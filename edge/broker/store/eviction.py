"""Giving up the oldest messages of a log: which segments go, and who loses what by it."""

from __future__ import annotations

import sqlite3
from typing import Final

from edge.broker.store.contract import Loss
from edge.broker.store.damage import examine
from edge.broker.store.group import Evicted, Eviction
from edge.broker.store.limits import POSITION_BITS, POSITION_MAX
from edge.broker.store.losses import losses_of
from edge.broker.store.reader import SCAN
from edge.broker.store.segment import Row, SegmentDamaged, decode

EVICTED: Final = "evicted"
"""Reason in the ledger: given up to make room within the quota of the address or on the card."""


def evict(connection: sqlite3.Connection, eviction: Eviction) -> Evicted:
    """Delete the segments an eviction asks for, in the transaction that is open. Raises sqlite3.Error."""
    base = eviction.log << POSITION_BITS
    freed, until, losses = 0, eviction.first, list[Loss]()
    rows = connection.execute(SCAN, (base | eviction.first, base | eviction.limit))
    try:
        for row in map(Row._make, rows):
            misplaced = not base <= row.key < base | eviction.limit  # a damaged tree leads anywhere
            if freed >= eviction.bytes or misplaced:
                break
            position = row.key & POSITION_MAX
            try:
                losses += losses_of(eviction.holders, decode(row, position), EVICTED, eviction.now_ns)
                until = position + row.messages
            except SegmentDamaged:  # nobody has read it, so nobody has told the ledger
                damage = examine(connection, row, eviction.limit)
                losses += damage.losses(eviction.holders, eviction.now_ns)
                until = damage.last + 1
            freed += row.body_bytes if isinstance(row.body_bytes, int) else len(row.data)
    finally:
        rows.close()
    if until > eviction.first:
        connection.execute("DELETE FROM segment WHERE key >= ? AND key < ?", (base, base | until))
        connection.execute("UPDATE log SET first = ?, bytes = bytes - ? WHERE log = ?", (until, freed, eviction.log))
    return Evicted(eviction.log, until, freed, losses)
