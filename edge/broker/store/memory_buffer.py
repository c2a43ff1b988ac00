"""Logs whose messages stay in memory until somebody has taken them (``durability: memory``).

A message is named, delivered and acknowledged at once. What all consumers acknowledge soon is never written; what they
have not after `Limits.memory_window_s`, or beyond `Limits.memory_bytes_max`, is *spilled* (`spiller.Spiller`): one
commit writes it with the cursors, the counters and a new reservation of numbers (`reservation`).

What cannot be taken (nothing reserved yet, too much in memory) joins the open group like a message of any other log,
and is answered when that is on disk; its group spills the log, so that the next ones can be taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bridge.message import Run, Stored
from edge.broker.model.ranges import Ranges
from edge.broker.store.buffered_log import BufferedLog, cost_of
from edge.broker.store.cursors import CursorState
from edge.broker.store.limits import MEMORY_CURSORS_MAX, MEMORY_LOOK_S, Limits
from edge.broker.store.logs import LogState
from edge.broker.store.reservation import Reservation
from edge.broker.store.tables import Tables


class MemoryBuffer:
    """All logs that are kept in memory: takes, lets go, and says which have to be spilled."""

    def __init__(self, limits: Limits, tables: Tables) -> None:
        self._limits = limits
        self._gatherer, self._logs = tables.gatherer, tables.logs
        self._cursors, self._counters = tables.cursors, tables.counters
        self.logs: dict[int, BufferedLog] = {}
        self.reservations: dict[str, Reservation] = {}
        """Of the sequences of all addresses."""
        self.cost = 0
        """`BufferedLog.cost` of all of them."""
        self.due: set[int] = set()
        """Logs the next group has to spill."""
        self.low: set[int] = set()
        """Logs that are running out of numbers."""
        self._look_at_s: float | None = None
        """When some log may have to be spilled."""

    # --- which logs -------------------------------------------------------------------------------------------

    def add(self, state: LogState, written: int) -> None:
        """Messages of this log are taken from now on; its last segment ends at `written`."""
        state.buffer = self.logs[state.log] = BufferedLog(state.log, state.next, written)

    def leave(self, buffered: BufferedLog, *, returns: bool) -> None:
        """Spill it and give everything back; then begin anew, or go by the medium."""
        buffered.leaving, buffered.returns = True, returns
        self.due.add(buffered.log)

    def left(self, state: LogState, buffered: BufferedLog) -> None:
        """Everything is given back."""
        del self.logs[state.log]
        state.buffer = None
        if buffered.returns:
            state.buffer = self.logs[state.log] = BufferedLog(state.log, buffered.first, buffered.written)

    # --- taking -----------------------------------------------------------------------------------------------

    def take(self, buffered: BufferedLog, run: Run, size: int, now: float) -> Stored | None:
        """Name a run and keep it; None when it has to wait for a commit."""
        log, sealed = buffered.log, self._gatherer.sealed
        if log in self._gatherer.open.sizes:
            return None  # behind what waits for the disk
        if sealed is not None and (log in sealed.ends or run.address in sealed.sequences):
            return None
        return self._name(buffered, run, size, now)

    def _name(self, buffered: BufferedLog, run: Run, size: int, now: float) -> Stored | None:
        address, count = run.address, len(run.bodies)
        reservation = buffered.addresses.get(address)
        if reservation is None or buffered.leaving or buffered.uncertain:
            return None
        full = buffered.cost >= buffered.look_at or self.cost >= self._limits.memory_total_bytes_max
        if full and not self._make_room(buffered):
            return None
        state = self._logs[buffered.log]
        position, sequence = state.next, self._counters.sequences[address]
        end, following = position + count, sequence + count
        if end > buffered.positions.end or following > reservation.end:
            return None
        if end > buffered.positions.low or following > reservation.low:
            self.low.add(buffered.log)
        stored = Stored(position, sequence, run)
        self._logs.move(state, end=end)
        self._counters.sequences[address] = following
        buffered.add(stored, size, now)
        self.cost += cost_of(size, count)
        if self._look_at_s is None or self._look_at_s > now + self._limits.memory_window_s:
            self._look_at_s = now + self._limits.memory_window_s
        return stored

    def take_waiting(self, now: float) -> list[tuple[int, Stored]]:
        """Take what has been waiting in the open group, now that there is something reserved for it: else a log that is
        never quiet would go by the medium for ever."""
        gathered = self._gatherer.open
        waiting = self.logs.keys() & gathered.sizes.keys()
        taken: list[tuple[int, Stored]] = []
        left: list[tuple[int, Run]] = []
        for log, run in gathered.runs if waiting else ():
            stored = None
            if log in waiting:
                stored = self._name(self.logs[log], run, sum(map(len, run.bodies)), now)
            if stored is None:
                waiting.discard(log)  # what comes behind it stays behind it
                left.append((log, run))
            else:
                taken.append((log, stored))
        if taken:
            self._gatherer.replace_runs(left)
        return taken

    # --- letting go -------------------------------------------------------------------------------------------

    def _make_room(self, buffered: BufferedLog) -> bool:
        """Let go of what can go, ask for a spill where that is not enough; True when more can be taken."""
        limits = self._limits
        self.let_go(buffered)
        if buffered.cost >= limits.memory_bytes_max or self.cost >= limits.memory_total_bytes_max:
            self.due.add(buffered.log)
        room = buffered.cost < 2 * limits.memory_bytes_max and self.cost < limits.memory_total_bytes_max
        buffered.look_at = min(buffered.cost + limits.memory_bytes_max // 4, 2 * limits.memory_bytes_max)
        return room

    def drop(self, buffered: BufferedLog, position: int) -> None:
        """Forget every run that ends at or below `position`."""
        self.cost -= buffered.drop(position)

    def let_go(self, buffered: BufferedLog) -> None:
        """Forget the oldest that nobody wants any more."""
        state = self._logs[buffered.log]
        self.drop(buffered, self._cursors.lowest(state, state.next))
        if buffered.runs and len(state.cursors) <= MEMORY_CURSORS_MAX:
            cursors = self._cursors.of(state)
            unwanted = 0
            for stored, _, _ in buffered.runs:
                if _open_ranges(cursors, stored):
                    break
                unwanted = stored.position + len(stored.run.bodies)
            self.drop(buffered, unwanted)

    def look(self, now: float) -> None:
        """Find the logs that have to be spilled by now."""
        if self._look_at_s is None or now < self._look_at_s:
            return
        soonest: float | None = None
        for buffered in self.logs.values():
            self.let_go(buffered)
            due = self._due_at_s(buffered)
            if due is None:
                continue
            if due <= now:
                self.due.add(buffered.log)
            elif soonest is None or due < soonest:
                soonest = due
        self._look_at_s = None if soonest is None else max(soonest, now + MEMORY_LOOK_S)

    def _due_at_s(self, buffered: BufferedLog) -> float | None:
        dues = [] if buffered.changed_at_s is None else [buffered.changed_at_s + self._limits.memory_spill_s]
        if buffered.runs:
            dues.append(buffered.runs[0].at_s + self._limits.memory_window_s)
        if buffered.idle_at_s is not None:
            dues.append(buffered.idle_at_s)
        return min(dues, default=None)

    def look_within_window(self, at_s: float) -> None:
        """Something changed at `at_s`: look `Limits.memory_window_s` later at the latest."""
        latest = at_s + self._limits.memory_window_s
        if self._look_at_s is None or self._look_at_s > latest:
            self._look_at_s = latest

    # --- what is there ----------------------------------------------------------------------------------------

    def bytes_of(self, state: LogState) -> int:
        """Bytes of bodies of a log that are in memory only and that somebody wants."""
        if state.buffer is None:
            return 0
        self.let_go(state.buffer)
        return state.buffer.size

    def kept_from(self, state: LogState) -> int:
        """The first position that is kept, on the medium or in memory."""
        buffered = state.buffer
        if buffered is None or state.first < buffered.written:
            return state.first
        self.let_go(buffered)
        return buffered.runs[0].stored.position if buffered.runs else state.next

    def unacknowledged(self, buffered: BufferedLog) -> Iterator[Stored]:
        """The parts of what is there that some cursor is owed and has not acknowledged."""
        state = self._logs[buffered.log]
        if len(state.cursors) > MEMORY_CURSORS_MAX:
            yield from (each.stored for each in buffered.runs)
            return
        cursors = self._cursors.of(state)
        for stored, _, _ in buffered.runs:
            position, sequence, run = stored
            for first, last in _open_ranges(cursors, stored):
                low, high = first - position, last - position + 1
                yield Stored(first, sequence + low, run.part(low, high))


def _open_ranges(cursors: Sequence[CursorState], stored: Stored) -> Ranges:
    """Positions of a run that some of these cursors is owed and has not acknowledged."""
    first, last = stored.position, stored.position + len(stored.run.bodies) - 1
    found = Ranges()
    for cursor in cursors:
        parts = cursor.progress.outside(first, last)
        if parts and (cursor.wants is None or cursor.wants(stored.run)):
            if parts == [(first, last)]:
                whole = Ranges()
                whole.add(first, last)
                return whole
            for low, high in parts:
                found.add(low, high)
    return found
