"""The cursors of a store, as it remembers them: who is done with what of which log."""

from __future__ import annotations

import heapq
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from operator import itemgetter
from typing import Final

from bridge.message import Run
from edge.broker.store.cursor_rows import CursorRows
from edge.broker.store.damage import Damage
from edge.broker.store.errors import StoreDamaged
from edge.broker.store.gatherer import Gatherer
from edge.broker.store.group import CommitGroup, CursorRow, SkippedRange
from edge.broker.store.idle_cursors import IdleCursors
from edge.broker.store.limits import CURSORS_LOOKED_AT_MAX, POSITION_MAX
from edge.broker.store.logs import IdlePositions, LogState, LogTable, check_text
from edge.broker.store.losses import Claim
from edge.broker.store.medium import Medium
from edge.broker.store.progress import CursorProgress
from edge.broker.store.records import CursorInfo, CursorRecord, Loss
from edge.broker.store.ticket import Ticket

logger = logging.getLogger(__name__)

_CURSOR_BITS: Final = 40
"""Of an entry of `LogState.slowest`; the position is above them."""
_STALE_MAX: Final = 256
"""Entries of it beyond two for each cursor; with more of them it is made anew, as cursors come and go."""

Wants = Callable[[Run], bool]
"""Whether a cursor is owed a run, by everything but bodies; called on any thread."""


@dataclass(slots=True, eq=False)
class CursorState:
    """A cursor with what is remembered of it, committed or not."""

    cursor: int
    name: str
    log: LogState
    progress: CursorProgress
    wants: Wants | None = None
    """What it is owed of its log; None: everything."""

    def record(self) -> CursorRecord:
        return CursorRecord(self.cursor, self.name, self.log.log, self.progress.position, self.progress.above)


class CursorTable:
    """Runs on the event loop's thread; what changes joins the open group.

    An *idle* cursor is a row and not an object. `get` makes a state of the row, and `look` drops it again when the row
    says the same.
    """

    def __init__(self, logs: LogTable, gatherer: Gatherer, rows: CursorRows) -> None:
        self._logs = logs
        self._gatherer = gatherer
        self._idle = IdleCursors(logs, gatherer, rows)
        self._states: dict[int, CursorState] = {}
        """Of logs that are in use."""
        self._unused: dict[int, None] = {}
        """Those that are to be idle once their rows say all of them."""
        self._last = 0
        self._name = ""
        """Of the cursor that was added last."""
        self._before_opening: Callable[[], None] = lambda: None
        self._wants_of: Callable[[str], Wants | None] = lambda _name: None
        """Filter of an idle cursor, by its name."""

    def call_before_opening(self, call: Callable[[], None]) -> None:
        """Have `call` remove what every cursor has passed before a new cursor gets its place."""
        self._before_opening = call

    def set_filters(self, wants_of: Callable[[str], Wants | None]) -> None:
        """See `contract.Cursors`."""
        self._wants_of = wants_of

    def __getitem__(self, cursor: int) -> CursorState:
        state = self.get(cursor)
        if state is None:
            raise KeyError(cursor)
        return state

    def __contains__(self, cursor: object) -> bool:
        if not isinstance(cursor, int):
            return False
        return cursor in self._states or self._idle.row(cursor) is not None

    def get(self, cursor: int) -> CursorState | None:
        """None when there is no such cursor."""
        state = self._states.get(cursor)
        if state is None:
            row = self._idle.row(cursor)
            if row is not None:
                return self._wake(row)
        return state

    def backlog(self, cursor: int) -> int:
        """Committed positions it is not done with. Raises KeyError when there is no such cursor."""
        if cursor not in self._states:
            row = self._idle.row(cursor)
            if row is not None:
                return self._idle.progress(row).backlog(self._logs.bounds(row.log)[1])
        state = self[cursor]
        return state.progress.backlog(state.log.next)

    def infos(self) -> Iterator[CursorInfo]:
        """Every cursor, by log and number."""
        records = [self._record(row) for row in self._idle.all() if row.cursor not in self._states]
        records += [state.record() for state in self._states.values()]
        for cursor, name, log, position, above in sorted(records, key=itemgetter(2, 0)):
            done = sum(last + 1 - first for first, last in above)
            yield CursorInfo(cursor, name, log, position, max(0, self._logs.bounds(log)[1] - position - done))

    def name(self, cursor: int) -> str:
        """See `contract.Cursors`."""
        row = None if cursor in self._states else self._idle.row(cursor)
        return self[cursor].name if row is None else row.name

    def named(self, name: str) -> list[CursorRecord]:
        """Return the cursors of one name; those that are rows only stay so."""
        found = [self._record(row) for row in self._idle.named(name)]
        known = {record.cursor for record in found}
        for cursor in chain.from_iterable(group.opened for group in self._gatherer.groups):
            state = self._states.get(cursor)
            if state is not None and state.name == name and cursor not in known:
                found.append(state.record())
        return found

    def _record(self, row: CursorRow) -> CursorRecord:
        """Return what is remembered of a cursor that has this row."""
        state = self._states.get(row.cursor)
        progress = self._idle.progress(row) if state is None else state.progress
        return CursorRecord(row.cursor, row.name, row.log, progress.position, progress.above)

    def of(self, log: LogState) -> list[CursorState]:
        """The cursors of a log, oldest first; none of them is a row only then."""
        for row in self._idle_rows(log):
            self._wake(row)
        return self.in_use(log)

    def _idle_rows(self, log: LogState, below: int = POSITION_MAX) -> list[CursorRow]:
        """Return the rows of the idle cursors of a log that are below a position."""
        return self._idle.in_log(log, below, self._states)

    def in_use(self, log: LogState) -> list[CursorState]:
        """Return those that are objects."""
        numbers = log.cursors.values() if isinstance(log.cursors, dict) else log.cursors
        return [self._states[cursor] for cursor in sorted(numbers)]

    def _all(self, log: LogState) -> list[tuple[str, CursorProgress, int]]:
        """Name, progress and number of each, the oldest first, and none of them made an object for it."""
        found = [(state.name, state.progress, state.cursor) for state in self.in_use(log)]
        found += [(row.name, self._idle.progress(row), row.cursor) for row in self._idle_rows(log)]
        return sorted(found, key=itemgetter(2))

    def lowest(self, log: LogState, end: int) -> int:
        """The first position of `log`, which ends at `end`, that some cursor still wants."""
        if log.lowest is None:
            slowest, idle = self._slowest(log), None if log.idle is None else log.idle.lowest
            log.lowest = slowest if idle is None else idle if slowest is None else min(slowest, idle)
        return end if log.lowest is None else min(log.lowest, end)

    def _slowest(self, log: LogState) -> int | None:
        """The position of the slowest cursor in use; None when there is none. Of many only those are looked at that
        were the slowest and have moved."""
        if not isinstance(log.cursors, dict):
            return self._states[log.cursors[0]].progress.position if log.cursors else None
        if log.slowest is None or len(log.slowest) > 2 * len(log.cursors) + _STALE_MAX:
            log.slowest = [_entry(self._states[cursor]) for cursor in log.cursors.values()]
            heapq.heapify(log.slowest)
        heap = log.slowest
        while heap:
            state = self._states.get(heap[0] & (1 << _CURSOR_BITS) - 1)
            if state is None:
                heapq.heappop(heap)  # dropped, or a row only
            elif _entry(state) != heap[0]:
                heapq.heapreplace(heap, _entry(state))
            else:
                return state.progress.position
        return None

    # --- made and dropped -------------------------------------------------------------------------------------

    def add(self, state: CursorState) -> None:
        if state.name == self._name:  # of queues all are alike
            state.name = self._name
        self._name = state.name
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

    def add_idle(self, log: LogState, count: int, lowest: int) -> None:
        """Count idle cursors of a log, none of which is below a position."""
        idle = log.idle = log.idle or IdlePositions()
        idle.count += count
        idle.lowest = min(idle.lowest, max(lowest, log.first))

    def begin(self, last: int) -> None:
        """Take note of the highest number the medium has."""
        self._last = last

    def _came(self, state: CursorState) -> None:
        """It may be the slowest of its log now."""
        log = state.log
        if log.slowest is not None:
            if len(log.slowest) > 2 * len(log.cursors) + _STALE_MAX:
                log.slowest = None
            else:
                heapq.heappush(log.slowest, _entry(state))
        log.lowest = None

    def number(self, name: str, log: int) -> int | None:
        """None when the log has no such cursor. Raises KeyError when there is no such log."""
        state = self._logs.in_use.get(log)
        if state is None:
            if log not in self._logs:
                raise KeyError(log)
            return self._idle.number(name, log)
        found, cursors = None, state.cursors
        if isinstance(cursors, dict):
            found = cursors.get(name)
        elif cursors and self._states[cursors[0]].name == name:
            found = cursors[0]
        if found is None and state.idle is not None:
            found = self._idle.number(name, log)
        return found

    def open(self, name: str, log: int, position: int) -> int:
        """See `contract.Cursors`; a new one is not made below what may go soon."""
        number = self.number(name, log)
        if number is None:
            self._before_opening()
            check_text("cursor", name)
            state, number = self._logs[log], self._last + 1
            position = max(min(position, state.next), state.first, state.deleting_to)
            self.add(CursorState(number, name, state, CursorProgress(position)))
            self._gatherer.open.opened.add(number)
            self._gatherer.open.urgent = True
        return number

    def drop(self, cursor: int) -> None:
        row = None if cursor in self._states else self._idle.row(cursor)
        if row is not None:
            log = self._logs[row.log]
            self._idle.leave(log, row.position)
        else:
            state = self.get(cursor)
            if state is None:
                return
            log = state.log
            self._leave(state)
        group = self._gatherer.open
        if log.ring is not None:
            self._logs.passed.add(log.log)
        self._gatherer.moved.discard(cursor)
        self._gatherer.moving_with_each.discard(cursor)
        group.opened.discard(cursor)
        group.dropped.add(cursor)
        group.urgent = True
        self._logs.to_reclaim[log.log] = None

    def _leave(self, state: CursorState) -> None:
        """It is none of those in use any more."""
        log = state.log
        del self._states[state.cursor]
        self._unused.pop(state.cursor, None)
        if isinstance(log.cursors, dict) and len(log.cursors) > 1:
            del log.cursors[state.name]
        else:
            log.cursors, log.slowest = (), None  # with all the places of those there were
        log.lowest = None

    def begin_at(self, log: LogState, first: int) -> None:
        """Nothing of the log below is there any more."""
        for state in self.in_use(log):
            state.progress.add(-1, first - 1)
        if log.idle is not None:
            log.idle.lowest = max(log.idle.lowest, first)
        log.lowest = None

    def set_back(self, state: CursorState, position: int) -> None:
        """What it stood behind was never there."""
        state.progress = CursorProgress(position)
        self._came(state)

    # --- at rest ----------------------------------------------------------------------------------------------

    def record(self, cursor: int) -> CursorRecord:
        """See `contract.Cursors`; the cursor is an object until `rest`."""
        record = self[cursor].record()
        self._unused.pop(cursor, None)
        return record

    def rest(self, cursor: int) -> bool:
        """Drop the object of a cursor now, if the row says all of it; later when it does not, and return False."""
        state = self._states.get(cursor)
        if state is None:
            return True
        log = state.log
        outside = log.ring is not None or not state.progress.in_order or state.progress.position > log.next
        if outside or self._is_changing(cursor):
            self._unused[cursor] = None
            return False
        self._unused.pop(cursor, None)
        self._leave(state)
        self._idle.enter(log, state.progress.position)
        return True

    def let_cursors_go(self, log: LogState) -> None:
        """Drop the objects of cursors of a log that are not used. Not while a commit is running."""
        for state in self.in_use(log):
            if state.cursor in self._unused:
                self.rest(state.cursor)

    def _let_unused_go(self) -> None:
        for cursor in list(islice(self._unused, CURSORS_LOOKED_AT_MAX)):
            del self._unused[cursor]
            self.rest(cursor)

    def _is_changing(self, cursor: int) -> bool:
        """Return True while a commit has to write what the object says and the row does not."""
        if cursor in self._gatherer.moved or self._idle.waits_for_pass(cursor):
            return True
        return any(
            cursor in group.opened or cursor in group.moved or any(each.cursor == cursor for each in group.given_up)
            for group in self._gatherer.groups
        )

    def _wake(self, row: CursorRow) -> CursorState:
        """Make an object of a row, until it is used by the way only."""
        log = self._logs[row.log]
        state = CursorState(row.cursor, row.name, log, self._idle.progress(row), self._wants_of(row.name))
        if self._idle.waits_for_pass(row.cursor):
            self._gatherer.moved.add(row.cursor)
        self._idle.leave(log, row.position)
        self._unused[row.cursor] = None
        self.add(state)
        return state

    def look(self, now: float, medium: Medium) -> None:
        """Drop objects that were made for one question, and have the medium find the slowest idle cursors.

        Not while a commit is running. `now`: seconds, monotonic.
        """
        if self._unused:
            self._let_unused_go()
        self._idle.find_slowest(now, medium, lambda log: [state.cursor for state in self.in_use(log)])

    def set_filter(self, cursor: int, wants: Wants) -> None:
        self[cursor].wants = wants
        self._unused.pop(cursor, None)

    # --- moved ------------------------------------------------------------------------------------------------

    def acknowledge(self, cursor: int, first: int, last: int) -> None:
        """Raises ValueError when `last` is not committed yet."""
        state = self.get(cursor)
        if state is None or not self.advance(state, first, last):
            return
        if state.log.ring is None or first < state.log.medium_end:  # over a ring it is worth no commit
            self._gatherer.moved.add(cursor)

    def confirm(self, cursor: int) -> Ticket | None:
        """See `contract.Cursors`."""
        gatherer = self._gatherer
        if cursor in gatherer.moved:
            state = self.get(cursor)
            return gatherer.hurry(cursor, state.log.log) if state is not None else None
        sealed = gatherer.sealed
        return sealed.ticket if sealed is not None and cursor in sealed.moved else None

    def move_with_each_commit(self, cursor: int) -> None:
        """See `contract.Cursors`."""
        self._gatherer.moving_with_each.add(cursor)

    def pass_all(self, log: int, cursors: Iterable[int], position: int) -> None:
        """See `contract.Cursors`."""
        state = self._logs[log]
        if position > state.next:
            raise ValueError(f"log {state.name!r}: {position} is passed, {state.next} is not committed yet")
        rows = []
        for cursor in cursors:
            if cursor in self._states:
                self.acknowledge(cursor, 0, position - 1)
            else:
                rows.append(cursor)
        self._idle.pass_all(log, rows, position)

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
            if before < log.medium_end:
                self._logs.to_reclaim[log.log] = None
            if log.ring is not None:
                self._logs.passed.add(log.log)
        return True

    def give_up(self, cursor: int, first: int, last: int, losses: Sequence[Loss], *, if_kept: bool = False) -> Ticket:
        """Raises ValueError when `last` is not committed yet."""
        state = self.get(cursor)
        if state is None:
            nothing_waits = Ticket()
            nothing_waits.decide(None)
            return nothing_waits
        if last >= state.log.next:
            raise ValueError(f"position {last} given up, {state.log.next} is not committed yet")
        group = self._gatherer.open
        group.given_up.append(SkippedRange(cursor, first, last, losses, if_kept))
        if not if_kept:
            self.advance(state, first, last)
            group.losses += losses
        group.urgent = True
        return group.ticket

    def skip(self, damage: Damage) -> None:
        """Nobody can be given these messages any more: every cursor passes, and the ledger says what it lost."""
        log = self._logs[damage.log]
        first, last = damage.first, min(damage.last, log.next - 1)
        losses = damage.losses(self.claims_of(log), time.time_ns())
        logger.error(
            "log %r: positions %d to %d are damaged and skipped; the ledger says what is lost", log.name, first, last
        )
        for name, progress, cursor in self._all(log):
            if progress.outside(first, last):
                lost = [loss for loss in losses if loss.subscription == name]
                self.give_up(cursor, first, last, lost, if_kept=False)

    # --- for a group ------------------------------------------------------------------------------------------

    def claims_of(self, log: LogState, *, all_: bool = False) -> list[Claim]:
        """Return what each cursor of a log may still ask of it. `all_`: also of idle cursors that have passed it."""
        claims = [Claim(state.name, state.progress, state.wants) for state in self.in_use(log)]
        for row in self._idle_rows(log, POSITION_MAX if all_ else log.next):
            wants = self._wants_of(row.name) if row.position < log.next else None
            claims.append(Claim(row.name, self._idle.progress(row), wants))
        return claims

    def claims(self, log: LogState, group: CommitGroup, *, all_: bool = False) -> list[Claim]:
        """Return what each cursor will have passed with this group, as `claims_of`: what its dead letters replace is
        not lost once more."""
        given_up: dict[str, list[SkippedRange]] = {}
        for given in group.given_up:
            state = self._states.get(given.cursor)
            if state is not None and state.log is log:
                given_up.setdefault(state.name, []).append(given)
        claims = []
        for claim in self.claims_of(log, all_=all_):
            progress = claim.progress.copy()
            for given in given_up.get(claim.name, ()):
                progress.add(max(given.first, -1), given.last)
            claims.append(claim._replace(progress=progress))
        return claims

    def rows(self, group: CommitGroup) -> list[CursorRow]:
        """The cursors this group writes: those that may as well, and those that gave something up."""
        given_up: dict[int, list[SkippedRange]] = {}
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

    def committed(self, group: CommitGroup) -> None:
        """Note what was given up with what the group appended, and which logs may have another slowest cursor."""
        self._idle.committed(group)
        for given in group.given_up:
            if given.if_kept and (state := self.get(given.cursor)) is not None:
                self.advance(state, given.first, given.last)


def _entry(state: CursorState) -> int:
    return state.progress.position << _CURSOR_BITS | state.cursor


def cursor_states(rows: Iterable[CursorRow], logs: LogTable) -> Iterator[CursorState]:
    """Cursors as of the last commit, not below the first position their log keeps. Raises StoreDamaged."""
    for number, name, log, position, above in rows:
        try:
            progress = CursorProgress(position, above)
        except ValueError as error:
            raise StoreDamaged(f"cursor {name!r}: {error}: run `waypost store repair`") from error
        state = logs.get(log)
        if state is None:
            raise StoreDamaged(f"cursor {name!r}: there is no log {log}: run `waypost store repair`")
        progress.add(-1, state.first - 1)
        yield CursorState(number, name, state, progress)


def record_of(row: CursorRow, logs: LogTable) -> CursorRecord:
    """As `cursor_states`, of a cursor that was believed when the store was opened."""
    progress = CursorProgress(row.position, row.acknowledged)
    progress.add(-1, logs.bounds(row.log)[0] - 1)
    return CursorRecord(row.cursor, row.name, row.log, progress.position, progress.above)
