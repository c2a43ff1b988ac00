"""Making room without losing the picture: old messages of one device give way to one that sums them up.

The oldest segments are read a piece at a time. Of each device's messages to one address, those that came in within one
interval and can be summed up become one, in the place and under the sequence of the last of them; the others become
entries of the loss ledger. A log is thinned by the shortest interval from its oldest segment to its newest before any
of it is thinned by the next. What a message means is not known here: `Summary` says what several amount to.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import Final

from bridge.message import Run, Stored
from bridge.publisher import device_of
from edge.broker.store.limits import OFFSET_MAX, POSITION_BITS, POSITION_MAX
from edge.broker.store.losses import losses_of
from edge.broker.store.records import Summary
from edge.broker.store.removal_jobs import Eviction, Thinned, Thinning
from edge.broker.store.segment import INSERT, SegmentDamaged, SegmentRow, decode, encode, is_packed

THINNED: Final = "thinned"
"""Reason in the ledger: summed up in the message with the next sequence that is there."""

INTERVALS_S: Final = (60, 600, 3_600, 86_400)
"""Seconds summed up into one message, pass after pass: a minute is finer than most rollups, a day the coarsest that
still shows a season."""

PIECE_BYTES: Final = 1 << 20
"""Bodies read, summed up and written as one segment."""

WORTH: Final = 0.9
"""A piece is rewritten only when it shrinks below this part: less would wear the card for nothing."""


def thin(connection: sqlite3.Connection, job: Thinning, summary: Summary) -> Thinned:
    """Thin in the transaction that is open. Raises sqlite3.Error."""
    done = Thinned(job.log, job.level, max(job.position, job.first))
    base = job.log << POSITION_BITS
    connection.execute("DELETE FROM thinned WHERE key >= ? AND key < ?", (base, base | job.first))
    while done.freed < job.bytes and done.level < len(INTERVALS_S):
        if done.read >= job.read_bytes_max or done.messages >= job.messages_max:
            break
        rows = _piece(connection, job, done)
        if rows:
            _thin_piece(connection, job, done, rows, summary)
            done.position = _end(rows[-1])
        else:
            done.level, done.position = done.level + 1, job.first
    done.ended = done.level == len(INTERVALS_S)
    return done


def rest_of(job: Thinning, done: Thinned) -> Eviction:
    """What has to be evicted as thinning did not free enough: the address has promised to stay within its quota."""
    missing, most = job.bytes - done.freed, None if job.at_most is None else job.at_most - done.freed
    return Eviction(job.log, job.first, job.limit, missing, job.claims, job.now_ns, most)


_PIECE: Final = f"""
SELECT {", ".join(f"segment.{name}" for name in SegmentRow._fields)} FROM segment LEFT JOIN thinned USING (key)
WHERE segment.key >= ? AND segment.key < ? AND coalesce(level, 0) <= ? ORDER BY segment.key
"""  # noqa: S608 - names of our own


def _piece(connection: sqlite3.Connection, job: Thinning, done: Thinned) -> list[SegmentRow]:
    """The next segments that lie behind one another and were not thinned by this pass's interval yet."""
    base = job.log << POSITION_BITS
    rows: list[SegmentRow] = []
    size = 0
    cursor = connection.execute(_PIECE, (base | done.position, base | job.limit, done.level))
    try:
        for row in map(SegmentRow._make, cursor):
            apart = rows and row.key & POSITION_MAX != _end(rows[-1])
            wide = rows and _end(row) - (rows[0].key & POSITION_MAX) > OFFSET_MAX
            if apart or wide or (rows and size + row.body_bytes > PIECE_BYTES) or _end(row) > job.limit:
                break
            rows.append(row)
            size += row.body_bytes
    finally:
        cursor.close()
    return rows


def _thin_piece(
    connection: sqlite3.Connection, job: Thinning, done: Thinned, rows: Sequence[SegmentRow], summary: Summary
) -> None:
    before = sum(row.body_bytes for row in rows)
    done.read += before
    base, first, end = job.log << POSITION_BITS, rows[0].key & POSITION_MAX, _end(rows[-1])
    connection.execute("DELETE FROM thinned WHERE key >= ? AND key < ?", (base | first, base | end))
    try:
        runs = [stored for row in rows for stored in decode(row, row.key & POSITION_MAX)]
    except SegmentDamaged:  # whoever reads it tells the ledger
        runs = []
    done.messages += sum(len(stored.run.bodies) for stored in runs)
    untouched = all(not claim.progress.within(first, end - 1) for claim in job.claims)
    kept, gone = summed_up(runs, INTERVALS_S[done.level], summary) if runs and untouched else (runs, [])
    after = sum(len(body) for stored in kept for body in stored.run.bodies)
    keys = [row.key for row in rows]
    if gone and after <= before * WORTH and (job.at_most is None or done.freed + before - after <= job.at_most):
        last = rows[-1]
        row = encode(
            base | first, last.boot, last.monotonic_ns, kept, span=end - first, packed=any(map(is_packed, rows))
        )
        connection.execute("DELETE FROM segment WHERE key >= ? AND key < ?", (base | first, base | end))
        connection.execute(INSERT, row)
        connection.execute("UPDATE log SET bytes = bytes - ? WHERE log = ?", (before - after, job.log))
        done.freed += before - after
        done.losses += losses_of(job.claims, gone, THINNED, job.now_ns)
        keys = [row.key]
    connection.executemany("INSERT INTO thinned (key, level) VALUES (?, ?)", [(key, done.level + 1) for key in keys])


def summed_up(runs: Sequence[Stored], interval_s: int, summary: Summary) -> tuple[list[Stored], list[Stored]]:
    """(what stays, with the summaries in it; what is gone), both in the order of positions.

    Messages are summed up that have address, device, flags and kind in common and came in within one interval.
    """
    groups: dict[tuple[str, str, int, str, int], list[tuple[int, int, Run, bytes]]] = {}
    kept: list[Stored] = []
    for position, sequence, run in runs:
        bucket = run.received_at // (interval_s * 1_000_000_000)
        for index, body in enumerate(run.bodies):
            kind = summary.kind(run, body)
            message = (position + index, sequence + index, run, body)
            if kind is None:
                kept.append(_alone(message))
            else:
                groups.setdefault((run.address, device_of(run.device), run.flags, kind, bucket), []).append(message)
    gone: list[Stored] = []
    for messages in groups.values():
        whole = summary.summarise([(run, body) for _, _, run, body in messages]) if len(messages) > 1 else None
        if whole is None:
            kept += map(_alone, messages)
        else:
            position, sequence, _, _ = messages[-1]
            kept.append(Stored(position, sequence, whole))
            gone += map(_alone, messages[:-1])
    return list(_joined(kept)), list(_joined(gone))


def _alone(message: tuple[int, int, Run, bytes]) -> Stored:
    position, sequence, run, body = message
    return Stored(position, sequence, Run(run.address, run.device, run.flags, run.properties, [body], run.received_at))


def _joined(messages: list[Stored]) -> Iterator[Stored]:
    """Messages in the order of positions, as runs where they follow on from one another and are alike."""
    open_: Stored | None = None
    for stored in sorted(messages, key=lambda stored: stored.position):
        if open_ is not None and _follows(open_, stored):
            open_.run.bodies.extend(stored.run.bodies)
            continue
        if open_ is not None:
            yield open_
        open_ = stored
    if open_ is not None:
        yield open_


def _follows(before: Stored, after: Stored) -> bool:
    count = len(before.run.bodies)
    one, two = before.run, after.run
    return (before.position + count, before.sequence + count) == after[:2] and (
        (one.address, one.device, one.flags, one.properties, one.received_at)
        == (two.address, two.device, two.flags, two.properties, two.received_at)
    )


def _end(row: SegmentRow) -> int:
    return (row.key & POSITION_MAX) + row.messages
