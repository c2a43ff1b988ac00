"""Logs and the places of cursors in them, as a store keeps them in memory: who is done with what, and what may go.

Runs on the event loop's thread. What changes here joins the open group of `grouping.GroupingStore`, which seals it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from bridge.message import Run
from edge.broker.store.contract import CursorRecord, Loss, StoreError, Ticket
from edge.broker.store.group import (
    CursorRow,
    CursorState,
    Evicted,
    Eviction,
    GivenUp,
    Group,
    Holder,
    LogState,
    Reclaim,
    Reclaimed,
    Thinned,
    Thinning,
)
from edge.broker.store.ledger import OpenLedger
from edge.broker.store.limits import LOGS_MAX, TEXT_BYTES_MAX, Limits
from edge.broker.store.progress import Progress
from edge.broker.store.tail import Tail


class Places:
    """Logs, cursors, and what of them the open group holds (see `contract.Store` for what each method promises)."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._logs: dict[int, LogState] = {}
        self._log_numbers: dict[str, int] = {}
        self._cursors: dict[int, CursorState] = {}
        self._cursor_numbers: dict[tuple[str, int], int] = {}
        self._cursor_last = 0
        self._delays: dict[int, float] = {}
        """Seconds appends may wait, of logs where they may."""
        self._tails: dict[int, Tail] = {}
        """Of logs that are kept in memory."""
        # the open group
        self._ticket = Ticket()
        self._new_logs: list[int] = []
        self._opened: set[int] = set()
        self._dropped: set[int] = set()
        self._given_up: list[GivenUp] = []
        self._evicting: dict[int, int] = {}
        self._thinning: dict[int, int] = {}
        self._at_most: dict[int, int | None] = {}
        self._ledger = OpenLedger(limits)
        self._urgent = False
        self._batch_due: float | None = None
        """When the group is to be sealed at the latest for what was appended with a delay."""
        # work that can wait for company
        self._moved: set[int] = set()
        self._reclaim: dict[int, None] = {}
        self._unfinished: set[int] = set()

    # --- logs and cursors -------------------------------------------------------------------------------------

    def log(self, name: str) -> int:
        number = self._log_numbers.get(name)
        if number is None:
            check_text("log", name)
            number = len(self._logs) + 1
            if number > LOGS_MAX:
                raise StoreError(f"the store has {LOGS_MAX} logs already: no room for {name!r}")
            self._add_log(LogState(number, name))
            self._new_logs.append(number)
            self._urgent = True
        return number

    def delay(self, log: int, delay_s: float) -> None:
        if delay_s > 0:
            self._delays[log] = delay_s
        elif self._delays.pop(log, None) is not None:
            self._urgent = True  # what waits there waits no longer

    def bounds(self, log: int) -> tuple[int, int]:
        state = self._logs[log]
        return state.first, state.next

    def open_cursor(self, name: str, log: int, position: int) -> int:
        number = self._cursor_numbers.get((name, log))
        if number is None:
            check_text("cursor", name)
            state = self._logs[log]
            position = max(min(position, state.next), state.first, state.doomed)
            number = self._cursor_last + 1
            self._add_cursor(CursorState(number, name, log, Progress(position)))
            self._opened.add(number)
            self._urgent = True
        return number

    def cursor(self, cursor: int) -> CursorRecord:
        return self._cursors[cursor].record()

    def drop_cursor(self, cursor: int) -> None:
        state = self._cursors.pop(cursor, None)
        if state is None:
            return
        del self._cursor_numbers[state.name, state.log]
        log = self._logs[state.log]
        log.cursors.discard(cursor)
        log.floor = None
        self._opened.discard(cursor)
        self._moved.discard(cursor)
        self._dropped.add(cursor)
        self._reclaim[log.log] = None
        self._urgent = True

    def narrow(self, cursor: int, wants: Callable[[Run], bool]) -> None:
        self._cursors[cursor].wants = wants

    def give_up(self, cursor: int, first: int, last: int, losses: Sequence[Loss], *, if_kept: bool = False) -> Ticket:
        state = self._cursors.get(cursor)
        if state is None:
            nothing_waits = Ticket()
            nothing_waits.decide(None)
            return nothing_waits
        if last >= self._logs[state.log].next:
            raise ValueError(f"position {last} given up, {self._logs[state.log].next} is not committed yet")
        self._given_up.append(GivenUp(cursor, first, last, losses, if_kept))
        if not if_kept:
            self._pass(state, first, last)
            self._ledger.note(losses)
        self._urgent = True
        return self._ticket

    def evict(self, log: int, size: int, at_most: int | None = None) -> None:
        self._give_way(self._evicting, log, size, at_most)

    def thin(self, log: int, size: int, at_most: int | None = None) -> None:
        self._give_way(self._thinning, log, size, at_most)

    # --- inside -----------------------------------------------------------------------------------------------

    def _give_way(self, asked: dict[int, int], log: int, size: int, at_most: int | None) -> None:
        before = asked.get(log, 0)
        unbounded = at_most is None or (log in self._at_most and self._at_most[log] is None)
        self._at_most[log] = None if unbounded or at_most is None else before + at_most
        asked[log] = before + size
        self._urgent = True

    def _pass(self, state: CursorState, first: int, last: int) -> bool:
        """The cursor is done with these positions; False when it was before. Raises ValueError."""
        log = self._logs[state.log]
        if last >= log.next:
            raise ValueError(f"log {log.name!r}: position {last} acknowledged, {log.next} is not committed yet")
        progress = state.progress
        before = progress.position
        if last < before or last < first:
            return False
        progress.add(max(first, -1), last)
        if progress.position != before and (log.floor is None or log.floor == before):
            log.floor = None
            if not self._tails or log.log not in self._tails or before < self._tails[log.log].written:
                self._reclaim[log.log] = None
        return True

    def _add_log(self, state: LogState) -> None:
        self._logs[state.log] = state
        self._log_numbers[state.name] = state.log

    def _add_cursor(self, state: CursorState) -> None:
        self._cursors[state.cursor] = state
        self._cursor_numbers[state.name, state.log] = state.cursor
        self._cursor_last = max(self._cursor_last, state.cursor)
        log = self._logs[state.log]
        log.cursors.add(state.cursor)
        log.floor = None

    def _floor(self, log: LogState, end: int) -> int:
        """The first position of `log`, which ends at `end`, that some cursor still wants."""
        if log.floor is None:
            log.floor = min((self._cursors[cursor].progress.position for cursor in log.cursors), default=None)
        return end if log.floor is None else min(log.floor, end)

    # --- for a group ------------------------------------------------------------------------------------------

    def _choose_evictions(self, group: Group) -> None:
        """What to evict, with all it takes to name what is lost by it; a group that evicts counts (see README.md)."""
        left, now_ns = max(self._limits.evict_bytes_max, 2 * group.size), time.time_ns()
        for log, size in group.evicting.items():
            state = self._logs[log]
            holders = self._holders(state, group)
            now, most = min(size, left), group.at_most[log]
            group.evictions.append(Eviction(log, state.first, state.next, now, holders, now_ns, most))
            left = max(0, left - size)
        for log, size in group.thinning.items():
            state = self._logs[log]
            level, position = state.thinned_to
            thinning = Thinning(
                log,
                level,
                position,
                state.first,
                state.next,
                size,
                self._limits.thin_bytes_max,
                self._holders(state, group),
                now_ns,
                group.at_most[log],
                self._limits.thin_messages_max,
            )
            group.thinnings.append(thinning)

    def _holders(self, state: LogState, group: Group) -> list[Holder]:
        """What each cursor will have passed with this group: what its dead letters replace is not lost once more."""
        holders = {cursor: self._cursors[cursor] for cursor in sorted(state.cursors)}
        passed = {cursor: holder.progress.copy() for cursor, holder in holders.items()}
        for given in group.given_up:
            if given.cursor in passed:
                passed[given.cursor].add(max(given.first, -1), given.last)
        return [Holder(holder.name, passed[cursor], holder.wants) for cursor, holder in holders.items()]

    def _choose_reclaims(self, group: Group) -> None:
        """Pick logs to delete from: never what is not counted, and on a busy store only when counting anyway."""
        group.reclaim_bytes_max = max(self._limits.reclaim_bytes_max, 2 * group.size)
        for log in list(self._reclaim):
            if len(group.reclaims) >= self._limits.reclaim_logs_max:
                break
            state = self._logs[log]
            end = group.ends.get(log, state.next)
            floor = self._floor(state, end)
            limit = min(floor, end if group.counting else state.counted)
            if floor <= state.first:
                del self._reclaim[log]
                self._unfinished.discard(log)
            elif limit > state.first and (group.counting or not group.runs or log in self._unfinished):
                del self._reclaim[log]
                state.doomed = limit
                group.reclaims.append(Reclaim(log, state.first, limit))

    def _cursor_rows(self, group: Group) -> list[CursorRow]:
        """The cursors this group writes: those that may as well, and those that gave something up."""
        given_up: dict[int, list[GivenUp]] = {}
        for given in group.given_up:
            if given.cursor in self._cursors:
                given_up.setdefault(given.cursor, []).append(given)
        rows = []
        for number in sorted(group.moved | group.opened | given_up.keys()):
            state = self._cursors[number]
            progress = state.progress
            parts = [given for given in given_up.get(number, ()) if given.if_kept]
            if parts:
                progress = progress.copy()
                for part in parts:
                    progress.add(max(part.first, -1), part.last)
            rows.append(CursorRow(number, state.name, state.log, progress.position, progress.pack()))
        return rows

    # --- after its commit -------------------------------------------------------------------------------------

    def _spared(self, reclaim: Reclaim) -> None:
        """The commit failed. A cursor made meanwhile stands behind what was to go with it, and what was never there."""
        state = self._logs[reclaim.log]
        state.doomed = 0
        self._reclaim[reclaim.log] = None
        for cursor in (self._cursors[number] for number in state.cursors):
            if cursor.progress.position > state.next:
                cursor.progress = Progress(state.next)
                state.floor = None

    def _thinned(self, thinned: Thinned) -> None:
        state = self._logs[thinned.log]
        state.bytes -= thinned.freed
        state.thinned_to = (0, 0) if thinned.ended else (thinned.level, thinned.position)

    def _evicted(self, evicted: Evicted) -> None:
        state = self._logs[evicted.log]
        state.first = max(state.first, evicted.first)
        state.bytes -= evicted.bytes
        for cursor in state.cursors:
            self._cursors[cursor].progress.add(-1, state.first - 1)
        state.floor = None

    def _reclaimed(self, reclaimed: Reclaimed) -> None:
        log, first, size, finished = reclaimed
        state = self._logs[log]
        state.first = max(state.first, first)
        state.bytes -= size
        if finished:
            self._unfinished.discard(log)
        else:
            self._unfinished.add(log)
            self._reclaim[log] = None


def check_text(what: str, text: str) -> None:
    """Raises StoreError when `text` cannot be written as at most 65 535 bytes of UTF-8."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise StoreError(f"{what} {text!r} is not valid Unicode") from error
    if size > TEXT_BYTES_MAX:
        raise StoreError(f"{what} has {size} bytes, {TEXT_BYTES_MAX} are allowed")
