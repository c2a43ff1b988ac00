"""The cursors of a store, as it remembers them: who is done with what of which log."""

from __future__ import annotations

import heapq
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from bridge.message import Run
from edge.broker.store.damage import Damage
from edge.broker.store.errors import StoreDamaged
from edge.broker.store.gatherer import Gatherer
from edge.broker.store.group import CursorRow, GivenUp, Group
from edge.broker.store.logs import LogState, LogTable, check_text
from edge.broker.store.logs_at_rest import RestingLog
from edge.broker.store.losses import Claim
from edge.broker.store.progress import Progress
from edge.broker.store.records import CursorInfo, CursorRecord, Loss
from edge.broker.store.ticket import Ticket

logger = logging.getLogger(__name__)

_CURSOR_BITS: Final = 40
"""Of an entry of `LogState.slowest`; the position is above them."""


@dataclass(slots=True, eq=False)
class CursorState:
    """A cursor with what is remembered of it, committed or not."""

    cursor: int
    name: str
    log: LogState
    progress: Progress
    wants: Callable[[Run], bool] | None = None
    """What it is owed of its log; None: everything."""

    def record(self) -> CursorRecord:
        return CursorRecord(self.cursor, self.name, self.log.log, self.progress.position, self.progress.above)


class CursorTable:
    """Runs on the event loop's thread; what changes joins the open group."""

    def __init__(self, logs: LogTable, gatherer: Gatherer) -> None:
        self._logs = logs
        self._gatherer = gatherer
        self._states: dict[int, CursorState] = {}
        """Of logs that are in use."""
        self._last = 0
        logs.woken = self._woken

    def __getitem__(self, cursor: int) -> CursorState:
        state = self.get(cursor)
        if state is None:
            raise KeyError(cursor)
        return state

    def __contains__(self, cursor: object) -> bool:
        return cursor in self._states or (isinstance(cursor, int) and self._logs.log_of(cursor) is not None)

    def get(self, cursor: int) -> CursorState | None:
        """None when there is no such cursor."""
        state = self._states.get(cursor)
        if state is None:
            log = self._logs.log_of(cursor)
            if log is not None:
                return self.of(self._logs[log])[0]
        return state

    def backlog(self, cursor: int) -> int:
        """Committed positions it is not done with. Raises KeyError when there is no such cursor."""
        log = self._logs.log_of(cursor)
        resting = self._logs.resting(log) if log is not None else None
        if resting is not None:
            return max(0, resting.next - resting.position)
        state = self[cursor]
        return state.progress.backlog(state.log.next)

    def infos(self) -> Iterator[CursorInfo]:
        """Every cursor."""
        for log in range(1, len(self._logs) + 1):
            row = self._logs.resting(log)
            if row is None:
                for state in self.of(self._logs[log]):
                    progress = state.progress
                    yield CursorInfo(state.cursor, state.name, log, progress.position, progress.backlog(state.log.next))
            elif row.cursor:
                yield CursorInfo(row.cursor, row.cursor_name, log, row.position, max(0, row.next - row.position))

    def of(self, log: LogState) -> list[CursorState]:
        """The cursors of a log, oldest first."""
        return [self._states[cursor] for cursor in log.cursor_numbers]

    def lowest(self, log: LogState, end: int) -> int:
        """The first position of `log`, which ends at `end`, that some cursor still wants."""
        if log.lowest is None:
            log.lowest = self._slowest(log)
        return end if log.lowest is None else min(log.lowest, end)

    def _slowest(self, log: LogState) -> int | None:
        """The position of the slowest cursor; None when there is none. Of many only those are looked at that were the
        slowest and have moved."""
        if not isinstance(log.cursors, dict):
            return self._states[log.cursors[0]].progress.position if log.cursors else None
        if log.slowest is None:
            log.slowest = [_entry(self._states[cursor]) for cursor in log.cursors.values()]
            heapq.heapify(log.slowest)
        heap = log.slowest
        while heap:
            state = self._states.get(heap[0] & (1 << _CURSOR_BITS) - 1)
            if state is None:
                heapq.heappop(heap)  # dropped
            elif _entry(state) != heap[0]:
                heapq.heapreplace(heap, _entry(state))
            else:
                return state.progress.position
        return None

    # --- made and dropped -------------------------------------------------------------------------------------

    def add(self, state: CursorState) -> None:
        state.name = sys.intern(state.name)  # of queues all are alike
        log, cursors = state.log, state.log.cursors
        self._states[state.cursor] = state
        self._last = max(self._last, state.cursor)
        if not cursors:
            log.cursors = (state.cursor,)
        elif isinstance(cursors, dict):
            cursors[state.name] = state.cursor
        else:
            log.cursors = {self._states[cursors[0]].name: cursors[0], state.name: state.cursor}
        self._came(state)

    def add_at_rest(self, row: CursorRow) -> bool:
        """As `add`, of a log that is at rest and stays so; False where it does not."""
        found = not row.acknowledged and self._logs.set_resting_cursor(row.log, row.cursor, row.name, row.position)
        if found:
            self._last = max(self._last, row.cursor)
        return found

    def _came(self, state: CursorState) -> None:
        """It may be the slowest of its log now."""
        log = state.log
        if log.slowest is not None:
            heapq.heappush(log.slowest, _entry(state))
        log.lowest = None

    def number(self, name: str, log: int) -> int | None:
        """None when the log has no such cursor. Raises KeyError when there is no such log."""
        resting = self._logs.resting(log)
        if resting is not None:
            return resting.cursor if resting.cursor and resting.cursor_name == name else None
        cursors = self._logs[log].cursors
        if isinstance(cursors, dict):
            return cursors.get(name)
        return cursors[0] if cursors and self._states[cursors[0]].name == name else None

    def open(self, name: str, log: LogState, position: int) -> int:
        """The number of the cursor (name, log), made at `position` when it is new, and not below what may go soon."""
        number = self.number(name, log.log)
        if number is None:
            check_text("cursor", name)
            position = max(min(position, log.next), log.first, log.deleting_to)
            number = self._last + 1
            self.add(CursorState(number, name, log, Progress(position)))
            self._gatherer.open.opened.add(number)
            self._gatherer.open.urgent = True
        return number

    def drop(self, cursor: int) -> None:
        state = self.get(cursor)
        if state is None:
            return
        del self._states[cursor]
        log, group = state.log, self._gatherer.open
        if isinstance(log.cursors, dict):
            del log.cursors[state.name]
        else:
            log.cursors = ()
        log.lowest = None
        if log.buffer is not None:
            log.buffer.moved.discard(cursor)
        self._gatherer.moved.discard(cursor)
        group.opened.discard(cursor)
        group.dropped.add(cursor)
        group.urgent = True
        self._logs.to_reclaim[log.log] = None

    def set_back(self, state: CursorState, position: int) -> None:
        """What it stood behind was never there."""
        state.progress = Progress(position)
        self._came(state)

    # --- at rest ----------------------------------------------------------------------------------------------

    def lay_down(self, log: LogState) -> bool:
        """Keep numbers of a log and its cursor, if that is all there is to know of them; False when it is not. Not
        while a commit is running."""
        if log.buffer is not None or log.counted != log.next or isinstance(log.cursors, dict):
            return False
        row = RestingLog(log.first, log.next, log.bytes)
        for state in self.of(log):
            if state.wants is not None or not state.progress.in_order:
                return False
            row = row._replace(cursor=state.cursor, cursor_name=state.name, position=state.progress.position)
        done = self._logs.lay_down(log, row)
        if done and row.cursor:
            del self._states[row.cursor]
        return done

    def _woken(self, log: LogState, row: RestingLog) -> None:
        if row.cursor:
            self._states[row.cursor] = CursorState(row.cursor, row.cursor_name, log, Progress(row.position))
            log.cursors = (row.cursor,)

    def set_filter(self, cursor: int, wants: Callable[[Run], bool]) -> None:
        self[cursor].wants = wants

    # --- moved ------------------------------------------------------------------------------------------------

    def acknowledge(self, cursor: int, first: int, last: int) -> None:
        """Raises ValueError when `last` is not committed yet."""
        state = self._states.get(cursor) or self.get(cursor)
        if state is None or not self.advance(state, first, last):
            return
        buffer = state.log.buffer
        if buffer is not None and first >= buffer.first:
            buffer.moved.add(cursor)  # what it moved over was never written: it is worth no commit
        else:
            self._gatherer.moved.add(cursor)

    def advance(self, state: CursorState, first: int, last: int) -> bool:
        """The cursor is done with these positions; False when it was before. Raises ValueError."""
        log, progress = state.log, state.progress
        if last >= log.next:
            raise ValueError(f"log {log.name!r}: position {last} acknowledged, {log.next} is not committed yet")
        before = progress.position
        if last < before or last < first:
            return False
        progress.add(max(first, -1), last)
        if progress.position != before and (log.lowest is None or log.lowest == before):
            log.lowest = None
            if log.buffer is None or before < log.buffer.written:
                self._logs.to_reclaim[log.log] = None
        return True

    def give_up(self, cursor: int, first: int, last: int, losses: Sequence[Loss], *, if_kept: bool) -> Ticket:
        """Raises ValueError when `last` is not committed yet."""
        state = self.get(cursor)
        if state is None:
            nothing_waits = Ticket()
            nothing_waits.decide(None)
            return nothing_waits
        if last >= state.log.next:
            raise ValueError(f"position {last} given up, {state.log.next} is not committed yet")
        group = self._gatherer.open
        group.given_up.append(GivenUp(cursor, first, last, losses, if_kept))
        if not if_kept:
            self.advance(state, first, last)
            group.losses += losses
        group.urgent = True
        return group.ticket

    def skip(self, damage: Damage) -> None:
        """Nobody can be given these messages any more: every cursor passes, and the ledger says what it lost."""
        log = self._logs[damage.log]
        first, last = damage.first, min(damage.last, log.next - 1)
        cursors = self.of(log)
        losses = damage.losses([Claim(each.name, each.progress, each.wants) for each in cursors], time.time_ns())
        logger.error(
            "log %r: positions %d to %d are damaged and skipped; the ledger says what is lost", log.name, first, last
        )
        for each in cursors:
            if each.progress.outside(first, last):
                lost = [loss for loss in losses if loss.subscription == each.name]
                self.give_up(each.cursor, first, last, lost, if_kept=False)

    # --- for a group ------------------------------------------------------------------------------------------

    def claims(self, log: LogState, group: Group) -> list[Claim]:
        """What each cursor will have passed with this group: what its dead letters replace is not lost once more."""
        passed = {state.cursor: state.progress.copy() for state in self.of(log)}
        for given in group.given_up:
            if given.cursor in passed:
                passed[given.cursor].add(max(given.first, -1), given.last)
        states = ((self[cursor], progress) for cursor, progress in passed.items())
        return [Claim(state.name, progress, state.wants) for state, progress in states]

    def rows(self, group: Group) -> list[CursorRow]:
        """The cursors this group writes: those that may as well, and those that gave something up."""
        given_up: dict[int, list[GivenUp]] = {}
        for given in group.given_up:
            if given.cursor in self:
                given_up.setdefault(given.cursor, []).append(given)
        rows = []
        for number in sorted(group.moved | group.opened | given_up.keys()):
            state = self[number]
            progress = state.progress
            parts = [given for given in given_up.get(number, ()) if given.if_kept]
            if parts:
                progress = progress.copy()
                for part in parts:
                    progress.add(max(part.first, -1), part.last)
            rows.append(CursorRow(number, state.name, state.log.log, progress.position, progress.pack()))
        return rows

    def committed(self, group: Group) -> None:
        """What was given up with what the group appended."""
        for given in group.given_up:
            if given.if_kept and (state := self.get(given.cursor)) is not None:
                self.advance(state, given.first, given.last)


def _entry(state: CursorState) -> int:
    return state.progress.position << _CURSOR_BITS | state.cursor


def cursor_states(rows: Iterable[CursorRow], logs: LogTable) -> Iterator[CursorState]:
    """Cursors as of the last commit, not below the first position their log keeps. Raises StoreDamaged."""
    for number, name, log, position, above in rows:
        try:
            progress = Progress(position, above)
        except ValueError as error:
            raise StoreDamaged(f"cursor {name!r}: {error}: run `waypost store repair`") from error
        state = logs.get(log)
        if state is None:
            raise StoreDamaged(f"cursor {name!r}: there is no log {log}: run `waypost store repair`")
        progress.add(-1, state.first - 1)
        yield CursorState(number, name, state, progress)


def record_of(row: CursorRow, logs: LogTable) -> CursorRecord:
    """As `cursor_states`, of a cursor that was believed when the store was opened."""
    progress = Progress(row.position, row.acknowledged)
    progress.add(-1, logs.bounds(row.log)[0] - 1)
    return CursorRecord(row.cursor, row.name, row.log, progress.position, progress.above)
