"""`waypost store purge`: drop messages of a stopped gateway. The same commit enters them into the loss ledger."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from bridge.message import Stored
from edge.appliance.store.offline import OfflineStore, offline
from edge.appliance.store.recovery.inspection import CursorFacts, Inspection
from edge.appliance.store.selection import SkippedSegments, StoreSelection, select, waiting_parts
from edge.broker.model.ranges import Ranges
from edge.broker.router.durable_subscriptions import KIND as SUBSCRIPTIONS
from edge.broker.store.progress import CursorProgress
from edge.broker.store.records import Loss
from edge.broker.store.sqlite import FILE_NAME

REASON: Final = "purged"
PARTS_PER_COMMIT: Final = 2000
"""Parts of runs dropped in one commit, to limit its memory and time."""

Part = tuple[CursorFacts, Stored]
"""Consumer group with the part of a run that it has not acknowledged."""


class Purged(msgspec.Struct):
    """Messages that are or would be dropped."""

    messages: int = 0
    """Messages that at least one consumer group has not acknowledged."""
    bytes: int = 0
    groups: dict[str, int] = {}
    """Messages by consumer group (cursor) that has not acknowledged them."""

    def add(self, stored: Stored, parts: Sequence[Part]) -> None:
        """Count the parts of one run; a message of several groups counts once."""
        waiting = Ranges()
        for cursor, part in parts:
            count = len(part.run.bodies)
            waiting.add(part.position, part.position + count - 1)
            self.groups[cursor.name] = self.groups.get(cursor.name, 0) + count
        for first, last in waiting:
            start, stop = first - stored.position, last + 1 - stored.position
            self.messages += stop - start
            self.bytes += sum(map(len, stored.run.bodies[start:stop]))


def plan(store: Path, selection: StoreSelection) -> Purged:
    """Return the result that `purge` would have. Raises StoreError."""
    purged = Purged()
    with Inspection.open(store) as inspection:
        for stored, parts in _waiting(inspection, selection):
            purged.add(stored, parts)
    return purged


def purge(data: Path, selection: StoreSelection, on_progress: Callable[[int], None], *, end: bool = False) -> Purged:
    """Drop the selected messages that are not acknowledged. Raises StoreError.

    `end`: also end the selected cursor. The gateway must be stopped. After an interruption a part is dropped and in the
    ledger; it may be run again.
    """
    now = time.time_ns()
    purged, gathered = Purged(), 0
    with offline(data) as opened, Inspection.open(data / FILE_NAME) as inspection:
        for stored, parts in _waiting(inspection, selection):
            purged.add(stored, parts)
            for cursor, part in parts:
                _discard(opened, cursor, part, now)
            gathered += len(parts)
            if gathered >= PARTS_PER_COMMIT:
                opened.commit()
                gathered = 0
                on_progress(purged.bytes)
        if end and selection.cursor is not None:
            _end_subscription(opened, inspection, selection.cursor)
        opened.settle()
    return purged


def _end_subscription(opened: OfflineStore, inspection: Inspection, name: str) -> None:
    """End the durable subscription of this name, in a commit after the one that drops its messages."""
    opened.commit()
    opened.store.state.delete(SUBSCRIPTIONS, name)
    for cursor in inspection.cursors():
        if cursor.name == name:
            opened.store.cursors.drop(cursor.cursor)


def _discard(opened: OfflineStore, cursor: CursorFacts, part: Stored, now: int) -> None:
    count, size = len(part.run.bodies), sum(map(len, part.run.bodies))
    loss = Loss(cursor.name, part.run.address, part.sequence, part.sequence + count - 1, count, size, REASON, now)
    opened.store.cursors.discard(cursor.cursor, part.position, part.position + count - 1, [loss])


def _waiting(inspection: Inspection, selection: StoreSelection) -> Iterator[tuple[Stored, list[Part]]]:
    """Yield the selected runs with the groups that have not acknowledged them."""
    cursors = [cursor for cursor in inspection.cursors() if selection.cursor in (None, cursor.name)]
    places: dict[int, list[tuple[CursorFacts, CursorProgress]]] = {}
    for log, stored in select(inspection, selection, SkippedSegments()):
        if log.log not in places:
            places[log.log] = [
                (cursor, CursorProgress(cursor.position, cursor.acknowledged))
                for cursor in cursors
                if cursor.log == log.log
            ]
        parts = [(cursor, part) for cursor, progress in places[log.log] for part in waiting_parts(stored, progress)]
        if parts:
            yield stored, parts
