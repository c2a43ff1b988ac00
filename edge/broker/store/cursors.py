"""The cursors of a store, as it remembers them: who is done with what of which log."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from bridge.message import Run
from edge.broker.store.damage import Damage
from edge.broker.store.errors import StoreDamaged
from edge.broker.store.gatherer import Gatherer
from edge.broker.store.group import CursorRow, GivenUp, Group
from edge.broker.store.logs import LogState, LogTable, check_text
from edge.broker.store.losses import Claim
from edge.broker.store.progress import Progress
from edge.broker.store.records import CursorRecord, Loss
from edge.broker.store.ticket import Ticket

logger = logging.getLogger(__name__)


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
        self._numbers: dict[tuple[str, int], int] = {}
        self._last = 0

    def __getitem__(self, cursor: int) -> CursorState:
        return self._states[cursor]

    def __contains__(self, cursor: object) -> bool:
        return cursor in self._states

    def __iter__(self) -> Iterator[CursorState]:
        return iter(self._states.values())

    def of(self, log: LogState) -> list[CursorState]:
        """The cursors of a log, oldest first."""
        return [self._states[cursor] for cursor in sorted(log.cursors)]

    def lowest(self, log: LogState, end: int) -> int:
        """The first position of `log`, which ends at `end`, that some cursor still wants."""
        if log.lowest is None:
            log.lowest = min((self._states[cursor].progress.position for cursor in log.cursors), default=None)
        return end if log.lowest is None else min(log.lowest, end)

    # --- made and dropped -------------------------------------------------------------------------------------

    def add(self, state: CursorState) -> None:
        state.name = sys.intern(state.name)  # of queues all are alike
        self._states[state.cursor] = state
        self._numbers[state.name, state.log.log] = state.cursor
        self._last = max(self._last, state.cursor)
        state.log.add_cursor(state.cursor, state.progress.position)

    def open(self, name: str, log: LogState, position: int) -> int:
        """The number of the cursor (name, log), made at `position` when it is new, and not below what may go soon."""
        number = self._numbers.get((name, log.log))
        if number is None:
            check_text("cursor", name)
            position = max(min(position, log.next), log.first, log.deleting_to)
            number = self._last + 1
            self.add(CursorState(number, name, log, Progress(position)))
            self._gatherer.open.opened.add(number)
            self._gatherer.open.urgent = True
        return number

    def drop(self, cursor: int) -> None:
        state = self._states.pop(cursor, None)
        if state is None:
            return
        log, group = state.log, self._gatherer.open
        del self._numbers[state.name, log.log]
        log.remove_cursor(cursor, state.progress.position)
        if log.buffer is not None:
            log.buffer.moved.discard(cursor)
        self._gatherer.moved.discard(cursor)
        group.opened.discard(cursor)
        group.dropped.add(cursor)
        group.urgent = True
        self._logs.to_reclaim[log.log] = None

    def set_filter(self, cursor: int, wants: Callable[[Run], bool]) -> None:
        self._states[cursor].wants = wants

    # --- moved ------------------------------------------------------------------------------------------------

    def acknowledge(self, cursor: int, first: int, last: int) -> None:
        """Raises ValueError when `last` is not committed yet."""
        state = self._states.get(cursor)
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
        state = self._states.get(cursor)
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
        states = ((self._states[cursor], progress) for cursor, progress in passed.items())
        return [Claim(state.name, progress, state.wants) for state, progress in states]

    def rows(self, group: Group) -> list[CursorRow]:
        """The cursors this group writes: those that may as well, and those that gave something up."""
        given_up: dict[int, list[GivenUp]] = {}
        for given in group.given_up:
            if given.cursor in self._states:
                given_up.setdefault(given.cursor, []).append(given)
        rows = []
        for number in sorted(group.moved | group.opened | given_up.keys()):
            state = self._states[number]
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
            if given.if_kept and (state := self._states.get(given.cursor)) is not None:
                self.advance(state, given.first, given.last)


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
