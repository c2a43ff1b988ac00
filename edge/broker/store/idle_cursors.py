"""Reads idle cursors, which are rows of table ``cursor`` without an object in memory.

For each log, memory has only their count and a lower bound of their positions. When the slowest one may have moved, the
medium searches for it in the background.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from functools import partial

from edge.broker.store.cursor_rows import CursorRows
from edge.broker.store.gatherer import Gatherer
from edge.broker.store.group import CommitGroup, CursorPass, CursorRow
from edge.broker.store.limits import POSITION_MAX, QUEUE_CURSOR, SLOWEST_AGAIN_S
from edge.broker.store.logs import IdlePositions, LogState, LogTable
from edge.broker.store.medium import UNREAD, Medium
from edge.broker.store.progress import CursorProgress


class IdleCursors:
    """Idle cursors of all logs. Reads may raise StoreError."""

    def __init__(self, logs: LogTable, gatherer: Gatherer, rows: CursorRows) -> None:
        self._logs = logs
        self._gatherer = gatherer
        self._rows = rows
        self._outdated: dict[int, None] = {}
        """Logs with an idle cursor that moved or was dropped since `IdlePositions.lowest` was read."""
        self._asked_at_s = -SLOWEST_AGAIN_S

    def row(self, cursor: int) -> CursorRow | None:
        """Return the row of an idle cursor; None if it is not found."""
        return None if self._is_dropped(cursor) else self._rows.cursor(cursor)

    def named(self, name: str) -> list[CursorRow]:
        """Return the rows of one name, including cursors that are objects."""
        return [row for row in self._rows.cursors_named(name) if not self._is_dropped(row.cursor)]

    def number(self, name: str, log: int) -> int | None:
        """Return the number of the cursor (name, log), even if it is an object; None if it is not found."""
        row = self._rows.cursor_of(name, log)
        return None if row is None or self._is_dropped(row.cursor) else row.cursor

    def all(self) -> list[CursorRow]:
        """Return every row, including cursors that are objects."""
        return [row for row in self._rows.cursors() if not self._is_dropped(row.cursor)]

    def in_log(self, log: LogState, below: int, but: Container[int]) -> list[CursorRow]:
        """Return the rows of one log below a position, except those in `but`. Reads the whole table, except for
        queues."""
        if log.idle is None:
            return []
        sole = self._rows.cursor_of(QUEUE_CURSOR, log.log) if log.idle.count == 1 else None
        if sole is not None and sole.cursor not in but and not self._is_dropped(sole.cursor):
            return [sole] if sole.position < below else []
        rows = self._rows.cursors_in(log.log, below)
        return [row for row in rows if row.cursor not in but and not self._is_dropped(row.cursor)]

    def progress(self, row: CursorRow) -> CursorProgress:
        """Return the progress of an idle cursor, including moves that wait for a commit."""
        progress = CursorProgress(row.position, row.acknowledged)
        progress.add(-1, self._logs.bounds(row.log)[0] - 1)
        for each in self._passes():
            if row.cursor in each.cursors:
                progress.add(-1, each.position - 1)
        return progress

    def pass_all(self, log: int, cursors: Iterable[int], position: int) -> None:
        """Move idle cursors of a log with a later commit."""
        rows = frozenset(cursor for cursor in cursors if not self._is_dropped(cursor))
        if rows:
            self._gatherer.passes.append(CursorPass(log, position, rows))

    def waits_for_pass(self, cursor: int) -> bool:
        """Return True when a pass of this cursor is not committed yet."""
        return any(cursor in each.cursors for each in self._passes())

    def enter(self, log: LogState, position: int) -> None:
        """Count a cursor of this log as idle."""
        idle = log.idle
        if idle is None:
            idle = log.idle = IdlePositions()
            self._outdated.pop(log.log, None)
        idle.count += 1
        idle.lowest, idle.came_lowest = min(idle.lowest, position), min(idle.came_lowest, position)
        log.lowest = None

    def leave(self, log: LogState, position: int) -> None:
        """Remove an idle cursor of this log from the count. `position` is the one in its row."""
        idle = log.idle
        if idle is None:
            raise LookupError(f"log {log.name!r} has no idle cursors")
        idle.count -= 1
        if not idle.count:
            log.idle = None
            self._outdated.pop(log.log, None)
        elif position <= idle.lowest:
            self._outdated[log.log] = None
        log.lowest = None

    def committed(self, group: CommitGroup) -> None:
        """Note the logs where the slowest cursor may have moved."""
        self._outdated.update((each.log, None) for each in group.passes)

    def find_slowest(self, now: float, medium: Medium, in_use: Callable[[LogState], list[int]]) -> None:
        """Search for the slowest idle cursors where they may have moved. Do not call it during a commit.

        `now`: seconds, monotonic. `in_use` returns the cursors of a log that are objects.
        """
        if not self._outdated or now - self._asked_at_s < SLOWEST_AGAIN_S:
            return
        self._asked_at_s = now
        outdated, self._outdated = self._outdated, {}
        for number in outdated:
            log = self._logs[number]
            if log.idle is not None:
                log.idle.came_lowest = POSITION_MAX
                but = [*in_use(log), *self._gatherer.open.dropped]
                medium.slowest(number, but, partial(self._found_slowest, log, log.idle))

    def _found_slowest(self, log: LogState, idle: IdlePositions, position: int) -> None:
        """Update the lower bound: no cursor that was idle at the query is below this position."""
        if log.idle is not idle:
            return
        if position == UNREAD:
            self._outdated[log.log] = None
            return
        found = min(max(position, log.first), idle.came_lowest)
        if found > idle.lowest:
            idle.lowest, log.lowest = found, None
            self._logs.to_reclaim[log.log] = None

    def _passes(self) -> Iterator[CursorPass]:
        for group in self._gatherer.groups:
            yield from group.passes
        yield from self._gatherer.passes

    def _is_dropped(self, cursor: int) -> bool:
        """Return True for a dropped cursor that may still be on the medium."""
        return any(cursor in group.dropped for group in self._gatherer.groups)
