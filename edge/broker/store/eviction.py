"""Giving up the oldest messages of a log: which segments go, and who loses what by it."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from bridge.message import Stored
from edge.broker.store.contract import Loss
from edge.broker.store.group import Evicted, Eviction, Holder
from edge.broker.store.limits import POSITION_BITS, POSITION_MAX
from edge.broker.store.reader import SCAN
from edge.broker.store.segment import Row, SegmentDamaged, decode

logger = logging.getLogger(__name__)

EVICTED: Final = "evicted"
"""Reason in the ledger: given up to make room within the quota of the address or on the card."""


def evict(connection: sqlite3.Connection, eviction: Eviction) -> Evicted:
    """Delete the segments an eviction asks for, in the transaction that is open. Raises sqlite3.Error."""
    base = eviction.log << POSITION_BITS
    freed, until, losses = 0, eviction.first, list[Loss]()
    rows = connection.execute(SCAN, (base | eviction.first, base | eviction.limit))
    try:
        for row in map(Row._make, rows):
            if freed >= eviction.bytes:
                break
            freed += row.body_bytes
            until = (row.key & POSITION_MAX) + row.messages
            losses += losses_of(eviction.holders, _readable(row), EVICTED, eviction.now_ns)
    finally:
        rows.close()
    if until > eviction.first:
        connection.execute("DELETE FROM segment WHERE key >= ? AND key < ?", (base, base | until))
        connection.execute("UPDATE log SET first = ?, bytes = bytes - ? WHERE log = ?", (until, freed, eviction.log))
    return Evicted(eviction.log, until, freed, losses)


def losses_of(holders: Sequence[Holder], runs: Iterable[Stored], reason: str, now_ns: int) -> Iterator[Loss]:
    """What each of the cursors loses when these runs go: what it is owed and has not acknowledged."""
    for position, sequence, run in runs:
        last = position + len(run.bodies) - 1
        for name, progress, wants in holders:
            parts = progress.outside(position, last)
            if not parts or not (wants is None or wants(run)):
                continue
            for low, high in parts:
                size = sum(map(len, run.bodies[low - position : high - position + 1]))
                first = sequence + low - position
                yield Loss(name, run.address, first, first + high - low, high - low + 1, size, reason, now_ns)


def _readable(row: Row) -> list[Stored]:
    """The runs of a segment; none when it is damaged, which whoever reads it has told the ledger or is about to."""
    try:
        return decode(row, row.key & POSITION_MAX)
    except SegmentDamaged as error:
        logger.error("evicting a segment at %d that cannot be read: %s", row.key & POSITION_MAX, error)  # noqa: TRY400
        return []
