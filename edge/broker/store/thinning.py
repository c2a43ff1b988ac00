"""Thinning: frees space by replacing old messages of a device with a summary.

The oldest segments are read in pieces. Messages of one device to one address within one interval become one message, at
the position and with the sequence of the last of them. The others are entered into the loss ledger. The whole log is
thinned with the shortest interval before any part of it is thinned with the next one. This module does not know the
contents of messages: `Summary` summarises them.
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
"""Reason in the ledger: summarised in the next existing message."""

INTERVALS_S: Final = (60, 600, 3_600, 86_400)
"""Interval of one summary in seconds, for each pass. A minute is finer than most rollups, and a day still shows the
seasons."""

PIECE_BYTES: Final = 1 << 20
"""Bytes of bodies that are read and written as one segment."""

WORTH: Final = 0.9
"""A piece is rewritten only if it shrinks below this share, to avoid needless wear of the card."""


def thin(connection: sqlite3.Connection, job: Thinning, summary: Summary) -> Thinned:
    """Thin a log in the open transaction. Raises sqlite3.Error."""
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
    """Return the eviction for the bytes that thinning did not free, so that the address stays within its quota."""
    missing, most = job.bytes - done.freed, None if job.at_most is None else job.at_most - done.freed
    return Eviction(job.log, job.first, job.limit, missing, job.claims, job.now_ns, most)


_PIECE: Final = f"""
SELECT {", ".join(f"segment.{name}" for name in SegmentRow._fields)} FROM segment LEFT JOIN thinned USING (key)
WHERE segment.key >= ? AND segment.key < ? AND coalesce(level, 0) <= ? ORDER BY segment.key
"""  # noqa: S608 - names of our own


def _piece(connection: sqlite3.Connection, job: Thinning, done: Thinned) -> list[SegmentRow]:
    """Return the next adjacent segments that this pass has not thinned yet."""
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
    except SegmentDamaged:  # a reader will enter the losses
        runs = []
    done.messages += sum(len(stored.run.bodies) for stored in runs)
    untouched = all(not claim.progress.within(first, end - 1) for claim in job.claims)
    kept, gone = summarise(runs, INTERVALS_S[done.level], summary) if runs and untouched else (runs, [])
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


def summarise(runs: Sequence[Stored], interval_s: int, summary: Summary) -> tuple[list[Stored], list[Stored]]:
    """Return (kept messages and summaries, removed messages), both in the order of positions.

    Messages are summarised if they have the same address, device, flags and kind, and came within one interval.
    """
    groups: dict[tuple[str, str, int, str, int], list[tuple[int, int, Run, bytes]]] = {}
    kept: list[Stored] = []
    for position, sequence, run in runs:
        bucket = run.received_at // (interval_s * 1_000_000_000)
        for index, body in enumerate(run.bodies):
            kind = summary.kind(run, body)
            message = (position + index, sequence + index, run, body)
            if kind is None:
                kept.append(_single(message))
            else:
                groups.setdefault((run.address, device_of(run.device), run.flags, kind, bucket), []).append(message)
    gone: list[Stored] = []
    for messages in groups.values():
        whole = summary.summarise([(run, body) for _, _, run, body in messages]) if len(messages) > 1 else None
        if whole is None:
            kept += map(_single, messages)
        else:
            position, sequence, _, _ = messages[-1]
            kept.append(Stored(position, sequence, whole))
            gone += map(_single, messages[:-1])
    return list(_merged(kept)), list(_merged(gone))


def _single(message: tuple[int, int, Run, bytes]) -> Stored:
    position, sequence, run, body = message
    return Stored(position, sequence, Run(run.address, run.device, run.flags, run.properties, [body], run.received_at))


def _merged(messages: list[Stored]) -> Iterator[Stored]:
    """Iterate over messages in the order of positions, with consecutive similar ones merged into runs."""
    open_: Stored | None = None
    for stored in sorted(messages, key=lambda stored: stored.position):
        if open_ is not None and _continues(open_, stored):
            open_.run.bodies.extend(stored.run.bodies)
            continue
        if open_ is not None:
            yield open_
        open_ = stored
    if open_ is not None:
        yield open_


def _continues(before: Stored, after: Stored) -> bool:
    count = len(before.run.bodies)
    one, two = before.run, after.run
    return (before.position + count, before.sequence + count) == after[:2] and (
        (one.address, one.device, one.flags, one.properties, one.received_at)
        == (two.address, two.device, two.flags, two.properties, two.received_at)
    )


def _end(row: SegmentRow) -> int:
    return (row.key & POSITION_MAX) + row.messages
