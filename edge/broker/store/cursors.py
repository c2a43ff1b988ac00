"""Cursors of a store in memory: the progress of each consumer group in each log."""

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
from edge.broker.store.limits import CURSORS_CHECKED_MAX, POSITION_MAX
from edge.broker.store.logs import IdlePositions, LogState, LogTable, check_text
from edge.broker.store.losses import Claim
from edge.broker.store.medium import Medium
from edge.broker.store.progress import CursorProgress
from edge.broker.store.records import CursorInfo, CursorRecord, Loss
from edge.broker.store.ticket import Ticket

logger = logging.getLogger(__name__)

_CURSOR_BITS: Final = 40
"""Low bits of an entry of `LogState.slowest` with the cursor number. The position is above them."""
_STALE_MAX: Final = 256
"""Entries of `LogState.slowest` beyond two for each cursor. With more, the heap is rebuilt."""

Wants = Callable[[Run], bool]
"""Filter of a cursor: True if it wants a run. It must not look at bodies, and is called on any thread."""


@dataclass(slots=True, eq=False)
class CursorState:
    """Cursor in memory, including changes that are not committed yet."""

    cursor: int
    name: str
    log: LogState
    progress: CursorProgress
    wants: Wants | None = None
    """Filter; None: it wants everything."""

    def record(self) -> CursorRecord:
        return CursorRecord(self.cursor, self.name, self.log.log, self.progress.position, self.progress.above)


class CursorTable:
    """Cursors of all logs. Used on the event loop's thread; changes join the open group.

    An *idle* cursor is only a row in the database. `get` loads it as an object, and `maintain` drops it again when the
    row is up to date.
    """

    def __init__(self, logs: LogTable, gatherer: Gatherer, rows: CursorRows) -> None:
        self._logs = logs
        self._gatherer = gatherer
        self._idle = IdleCursors(logs, gatherer, rows)
        self._states: dict[int, CursorState] = {}
        """Cursors that are objects, by number."""
        self._unused: dict[int, None] = {}
        """Cursors that become idle once their rows are up to date."""
        self._last = 0
        self._name = ""
        """Name of the cursor that was added last."""
        self._before_opening: Callable[[], None] = lambda: None
        self._wants_of: Callable[[str], Wants | None] = lambda _name: None
        """Filter of an idle cursor, by its name."""

    def call_before_opening(self, call: Callable[[], None]) -> None:
        """Set a function that removes passed messages before a new cursor is created."""
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
        """Return a cursor, loading an idle one, or None."""
        state = self._states.get(cursor)
        if state is None:
            row = self._idle.row(cursor)
            if row is not None:
                return self._wake(row)
        return state

    def backlog(self, cursor: int) -> int:
        """Return the count of committed, unacknowledged positions. Raises KeyError for an unknown cursor."""
        if cursor not in self._states:
            row = self._idle.row(cursor)
            if row is not None:
                return self._idle.progress(row).backlog(self._logs.bounds(row.log)[1])
        state = self[cursor]
        return state.progress.backlog(state.log.next)

    def infos(self) -> Iterator[CursorInfo]:
        """Iterate over every cursor, by log and number."""
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
        """Return the cursors of one name. Idle ones stay idle."""
        found = [self._record(row) for row in self._idle.named(name)]
        known = {record.cursor for record in found}
        for cursor in chain.from_iterable(group.opened for group in self._gatherer.groups):
            state = self._states.get(cursor)
            if state is not None and state.name == name and cursor not in known:
                found.append(state.record())
        return found

    def _record(self, row: CursorRow) -> CursorRecord:
        """Return the record of a cursor with this row, including uncommitted moves."""
        state = self._states.get(row.cursor)
        progress = self._idle.progress(row) if state is None else state.progress
        return CursorRecord(row.cursor, row.name, row.log, progress.position, progress.above)

    def of(self, log: LogState) -> list[CursorState]:
        """Return the cursors of a log, oldest first, loading the idle ones."""
        for row in self._idle_rows(log):
            self._wake(row)
        return self.in_use(log)

    def _idle_rows(self, log: LogState, below: int = POSITION_MAX) -> list[CursorRow]:
        """Return the rows of the idle cursors of a log that are below a position."""
        return self._idle.in_log(log, below, self._states)

    def in_use(self, log: LogState) -> list[CursorState]:
        """Return the cursors of a log that are objects."""
        numbers = log.cursors.values() if isinstance(log.cursors, dict) else log.cursors
        return [self._states[cursor] for cursor in sorted(numbers)]

    def _all(self, log: LogState) -> list[tuple[str, CursorProgress, int]]:
        """Return name, progress and number of each cursor, oldest first, without loading idle ones."""
        found = [(state.name, state.progress, state.cursor) for state in self.in_use(log)]
        found += [(row.name, self._idle.progress(row), row.cursor) for row in self._idle_rows(log)]
        return sorted(found, key=itemgetter(2))

    def lowest(self, log: LogState, end: int) -> int:
        """Return the first position that some cursor of a log still wants. `end` is the end of the log."""
        if log.lowest is None:
            slowest, idle = self._slowest(log), None if log.idle is None else log.idle.lowest
            log.lowest = slowest if idle is None else idle if slowest is None else min(slowest, idle)
        return end if log.lowest is None else min(log.lowest, end)

    def _slowest(self, log: LogState) -> int | None:
        """Return the position of the slowest cursor in use, or None. With many cursors it checks only former slowest
        ones that have moved."""
        if not isinstance(log.cursors, dict):
            return self._states[log.cursors[0]].progress.position if log.cursors else None
        if log.slowest is None or len(log.slowest) > 2 * len(log.cursors) + _STALE_MAX:
            log.slowest = [_entry(self._states[cursor]) for cursor in log.cursors.values()]
            heapq.heapify(log.slowest)
        heap = log.slowest
        while heap:
            state = self._states.get(heap[0] & (1 << _CURSOR_BITS) - 1)
            if state is None:
                heapq.heappop(heap)  # dropped, or idle
            elif _entry(state) != heap[0]:
                heapq.heapreplace(heap, _entry(state))
            else:
                return state.progress.position
        return None

    # --- creation ---------------------------------------------------------------------------------------------

    def add(self, state: CursorState) -> None:
        if state.name == self._name:  # share equal strings: the cursors of queues have the same name
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
        self._note_progress(state)

    def add_idle(self, log: LogState, count: int, lowest: int) -> None:
        """Count idle cursors of a log. None of them is below `lowest`."""
        idle = log.idle = log.idle or IdlePositions()
        idle.count += count
        idle.lowest = min(idle.lowest, max(lowest, log.first))

    def set_last_number(self, last: int) -> None:
        """Set the highest cursor number on the medium."""
        self._last = last

    def _note_progress(self, state: CursorState) -> None:
        """Update the search for the slowest cursor after a cursor was added or moved back."""
        log = state.log
        if log.slowest is not None:
            if len(log.slowest) > 2 * len(log.cursors) + _STALE_MAX:
                log.slowest = None
            else:
                heapq.heappush(log.slowest, _entry(state))
        log.lowest = None

    def number(self, name: str, log: int) -> int | None:
        """Return the number of a cursor, or None. Raises KeyError for an unknown log."""
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
        """See `contract.Cursors`. A new cursor starts after positions that are being deleted."""
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
        """Remove the object of a cursor."""
        log = state.log
        del self._states[state.cursor]
        self._unused.pop(state.cursor, None)
        if isinstance(log.cursors, dict) and len(log.cursors) > 1:
            del log.cursors[state.name]
        else:
            log.cursors, log.slowest = (), None  # a new container, as a dict does not shrink
        log.lowest = None

    def move_all_to(self, log: LogState, first: int) -> None:
        """Move all cursors of a log to `first`: earlier messages were deleted."""
        for state in self.in_use(log):
            state.progress.add(-1, first - 1)
        if log.idle is not None:
            log.idle.lowest = max(log.idle.lowest, first)
        log.lowest = None

    def move_back(self, state: CursorState, position: int) -> None:
        """Move a cursor back, because the messages that it passed were never committed."""
        state.progress = CursorProgress(position)
        self._note_progress(state)

    # --- idle cursors -----------------------------------------------------------------------------------------

    def record(self, cursor: int) -> CursorRecord:
        """See `contract.Cursors`. The cursor stays an object until `make_idle`."""
        record = self[cursor].record()
        self._unused.pop(cursor, None)
        return record

    def make_idle(self, cursor: int) -> bool:
        """Drop the object of a cursor if its row is up to date. Otherwise return False and drop it later."""
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

    def drop_unused_cursors(self, log: LogState) -> None:
        """Drop the objects of unused cursors of a log. Do not call it during a commit."""
        for state in self.in_use(log):
            if state.cursor in self._unused:
                self.make_idle(state.cursor)

    def _drop_unused(self) -> None:
        for cursor in list(islice(self._unused, CURSORS_CHECKED_MAX)):
            del self._unused[cursor]
            self.make_idle(cursor)

    def _is_changing(self, cursor: int) -> bool:
        """Return True while the object has changes that are not in its row."""
        if cursor in self._gatherer.moved or self._idle.waits_for_pass(cursor):
            return True
        return any(
            cursor in group.opened or cursor in group.moved or any(each.cursor == cursor for each in group.given_up)
            for group in self._gatherer.groups
        )

    def _wake(self, row: CursorRow) -> CursorState:
        """Load a cursor from its row. It becomes idle again unless it is opened."""
        log = self._logs[row.log]
        state = CursorState(row.cursor, row.name, log, self._idle.progress(row), self._wants_of(row.name))
        if self._idle.waits_for_pass(row.cursor):
            self._gatherer.moved.add(row.cursor)
        self._idle.leave(log, row.position)
        self._unused[row.cursor] = None
        self.add(state)
        return state

    def maintain(self, now: float, medium: Medium) -> None:
        """Drop objects that were loaded for one query, and search for the slowest idle cursors.

        Do not call it during a commit. `now`: seconds, monotonic.
        """
        if self._unused:
            self._drop_unused()
        self._idle.find_slowest(now, medium, lambda log: [state.cursor for state in self.in_use(log)])

    def set_filter(self, cursor: int, wants: Wants) -> None:
        self[cursor].wants = wants
        self._unused.pop(cursor, None)

    # --- moves ------------------------------------------------------------------------------------------------

    def acknowledge(self, cursor: int, first: int, last: int) -> None:
        """See `contract.Cursors`."""
        state = self.get(cursor)
        if state is None or not self.advance(state, first, last):
            return
        if state.log.ring is None or first < state.log.medium_end:  # a move over a ring does not need a commit
            self._gatherer.moved.add(cursor)

    def confirm(self, cursor: int) -> Ticket | None:
        """See `contract.Cursors`."""
        gatherer = self._gatherer
        if cursor in gatherer.moved:
            state = self.get(cursor)
            return gatherer.write_soon(cursor, state.log.log) if state is not None else None
        sealed = gatherer.sealed
        return sealed.ticket if sealed is not None and cursor in sealed.moved else None

    def move_with_each_commit(self, cursor: int) -> None:
        """See `contract.Cursors`."""
        self._gatherer.moving_with_each.add(cursor)

    def pass_all(self, log: int, cursors: Iterable[int], position: int) -> None:
        """See `contract.Cursors`."""
        state = self._logs[log]
        if position > state.next:
            raise ValueError(f"log {state.name!r}: {position} to be passed, {state.next} is not committed yet")
        rows = []
        for cursor in cursors:
            if cursor in self._states:
                self.acknowledge(cursor, 0, position - 1)
            else:
                rows.append(cursor)
        self._idle.pass_all(log, rows, position)

    def advance(self, state: CursorState, first: int, last: int) -> bool:
        """Acknowledge positions in memory. Return False if they were acknowledged before. Raises ValueError."""
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

    def discard(self, cursor: int, first: int, last: int, losses: Sequence[Loss], *, if_kept: bool = False) -> Ticket:
        """See `contract.Cursors`."""
        state = self.get(cursor)
        if state is None:
            nothing_waits = Ticket()
            nothing_waits.decide(None)
            return nothing_waits
        if last >= state.log.next:
            raise ValueError(f"position {last} is to be skipped, {state.log.next} is not committed yet")
        group = self._gatherer.open
        group.given_up.append(SkippedRange(cursor, first, last, losses, if_kept))
        if not if_kept:
            self.advance(state, first, last)
            group.losses += losses
        group.urgent = True
        return group.ticket

    def skip(self, damage: Damage) -> None:
        """Skip damaged messages: every cursor passes them, and its losses go to the ledger."""
        log = self._logs[damage.log]
        first, last = damage.first, min(damage.last, log.next - 1)
        losses = damage.losses(self.claims_of(log), time.time_ns())
        logger.error(
            "log %r: positions %d to %d are damaged and skipped; the loss ledger names them", log.name, first, last
        )
        for name, progress, cursor in self._all(log):
            if progress.outside(first, last):
                lost = [loss for loss in losses if loss.subscription == name]
                self.discard(cursor, first, last, lost, if_kept=False)

    # --- for a group ------------------------------------------------------------------------------------------

    def claims_of(self, log: LogState, *, all_: bool = False) -> list[Claim]:
        """Return the claims of the cursors of a log. `all_` includes idle cursors that have passed everything."""
        claims = [Claim(state.name, state.progress, state.wants) for state in self.in_use(log)]
        for row in self._idle_rows(log, POSITION_MAX if all_ else log.next):
            wants = self._wants_of(row.name) if row.position < log.next else None
            claims.append(Claim(row.name, self._idle.progress(row), wants))
        return claims

    def claims(self, log: LogState, group: CommitGroup, *, all_: bool = False) -> list[Claim]:
        """Return the claims after this group: messages that it replaces with dead letters are not lost again."""
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
        """Return the cursor rows that this group writes: moved, new, and those that gave up messages."""
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
        """Apply the moves that were bound to the messages of the group."""
        self._idle.committed(group)
        for given in group.given_up:
            if given.if_kept and (state := self.get(given.cursor)) is not None:
                self.advance(state, given.first, given.last)


def _entry(state: CursorState) -> int:
    return state.progress.position << _CURSOR_BITS | state.cursor


def cursor_states(rows: Iterable[CursorRow], logs: LogTable) -> Iterator[CursorState]:
    """Create cursors from rows, not below the first position of their log. Raises StoreDamaged."""
    for number, name, log, position, above in rows:
        try:
            progress = CursorProgress(position, above)
        except ValueError as error:
            raise StoreDamaged(f"cursor {name!r}: {error}: run `waypost store repair`") from error
        state = logs.get(log)
        if state is None:
            raise StoreDamaged(f"cursor {name!r}: log {log} is missing: run `waypost store repair`")
        progress.add(-1, state.first - 1)
        yield CursorState(number, name, state, progress)


def record_of(row: CursorRow, logs: LogTable) -> CursorRecord:
    """Return the record of a row that was already checked when the store was opened."""
    progress = CursorProgress(row.position, row.acknowledged)
    progress.add(-1, logs.bounds(row.log)[0] - 1)
    return CursorRecord(row.cursor, row.name, row.log, progress.position, progress.above)
