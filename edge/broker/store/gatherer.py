"""The open group and the one that is being committed: what joins, how long it may wait, what a failure leaves."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from itertools import repeat

from bridge.message import Run
from edge.broker.store.errors import StoreError
from edge.broker.store.group import CommitGroup, CursorPass
from edge.broker.store.limits import StoreLimits
from edge.broker.store.reservation import MEMORY, SPILLS
from edge.broker.store.ticket import Ticket


class Gatherer:
    """Runs on the event loop's thread."""

    def __init__(self, limits: StoreLimits, clock: Callable[[], float]) -> None:
        """`clock`: seconds, monotonic."""
        self._limits = limits
        self._clock = clock
        self._delays: dict[int, float] = {}
        """Seconds appends may wait, of logs where they may."""
        self.open = CommitGroup()
        self.sealed: CommitGroup | None = None
        self.moved: set[int] = set()
        """Cursors that moved, and wait for company."""
        self.passes: list[CursorPass] = []
        """Moves of idle cursors, which wait for company as well."""
        self.moving_with_each: set[int] = set()
        """Those whose moves any commit is company for."""

    # --- what joins -------------------------------------------------------------------------------------------

    def append(self, log: int, run: Run, size: int) -> Ticket:
        """`size`: bytes of bodies."""
        self.open.runs.append((log, run))
        return self._grow(log, size)

    def append_all(self, log: int, runs: Sequence[Run], size: int) -> Ticket:
        """`size`: bytes of all bodies."""
        self.open.runs += zip(repeat(log), runs)
        return self._grow(log, size)

    def _grow(self, log: int, size: int) -> Ticket:
        group = self.open
        group.size += size
        sizes = group.sizes
        sizes[log] = sizes.get(log, 0) + size
        if self._delays and log in self._delays:
            due_at_s = self._clock() + self._delays[log]
            if group.due_at_s is None or due_at_s < group.due_at_s:
                group.due_at_s = due_at_s
            if group.size >= self._limits.batch_bytes_max:
                group.urgent = True
        else:
            group.urgent = True
        return group.ticket

    def hurry(self, cursor: int, log: int) -> Ticket:
        """Write where this cursor of a log is with the open group, which waits as long as messages of the log may."""
        group = self.open
        group.confirming.add(cursor)
        delay_s = self._delays.get(log, 0.0)
        due_at_s = self._clock() + delay_s
        if not delay_s:
            group.urgent = True
        elif group.due_at_s is None or due_at_s < group.due_at_s:
            group.due_at_s = due_at_s
        return group.ticket

    @property
    def groups(self) -> tuple[CommitGroup, ...]:
        """Return the open group, and before it the one that is being committed."""
        return (self.open,) if self.sealed is None else (self.sealed, self.open)

    def evict(self, log: int, size: int, at_most: int | None) -> None:
        self._give_way(self.open.evicting, log, size, at_most)

    def thin(self, log: int, size: int, at_most: int | None) -> None:
        self._give_way(self.open.thinning, log, size, at_most)

    def _give_way(self, asked: dict[int, int], log: int, size: int, at_most: int | None) -> None:
        group, before = self.open, asked.get(log, 0)
        unbounded = at_most is None or (log in group.at_most and group.at_most[log] is None)
        group.at_most[log] = None if unbounded or at_most is None else before + at_most
        asked[log] = before + size
        group.urgent = True

    def delay(self, log: int, delay_s: float) -> None:
        if delay_s > 0:
            self._delays[log] = delay_s
        elif self._delays.pop(log, None) is not None:
            self.open.urgent = True  # what waits there waits no longer

    # --- what waits -------------------------------------------------------------------------------------------

    def moves_delay_s(self, logs: Iterable[int]) -> float:
        """How long cursor moves over these logs may wait: no less than the messages, as commits for moves alone would
        cost the card what the delay of the messages saves."""
        delay_s, delays = self._limits.moves_delay_s, self._delays
        return max(delay_s, min((delays.get(log, 0.0) for log in logs), default=0.0)) if delays else delay_s

    @property
    def waits(self) -> bool:
        """There is something to write, however little it hurries; messages have a time of their own."""
        group = self.open
        names = group.opened or group.dropped or group.new_logs or group.freed
        return bool(self.moved or self.passes or group.state or names or group.given_up or group.losses)

    @property
    def pending_bytes(self) -> int:
        return self.open.size + (self.sealed.size if self.sealed is not None else 0)

    def is_changing(self, log: int) -> bool:
        """Return True when the next commit changes the row of a log, whatever comes to it."""
        group = self.open
        return log in group.sizes or log in group.freed or log in group.new_logs

    def is_writing(self, log: int) -> bool:
        """Messages are on their way to a log."""
        return log in self.open.sizes or (self.sealed is not None and log in self.sealed.ends)

    def bytes_of(self, log: int) -> int:
        """Bytes of bodies by which a log is about to grow."""
        group, sealed = self.open, self.sealed
        size = group.sizes.get(log, 0) - group.evicting.get(log, 0) - group.thinning.get(log, 0)
        if sealed is not None:
            size += sealed.sizes.get(log, 0) - sealed.evicting.get(log, 0) - sealed.thinning.get(log, 0)
        return size

    @property
    def changing(self) -> set[int]:
        """Logs that are about to keep more or less."""
        open_, sealed = self.open, self.sealed
        logs = open_.sizes.keys() | open_.evicting.keys() | open_.thinning.keys()
        return logs if sealed is None else logs | sealed.sizes.keys() | sealed.evicting.keys() | sealed.thinning.keys()

    # --- sealing, and the end ---------------------------------------------------------------------------------

    def seal(self, now: float, *, last: bool) -> CommitGroup:
        """The open group is the one to be committed; the next one begins."""
        group, self.open = self.open, CommitGroup()
        self.sealed = group
        group.monotonic_ns = int(now * 1e9)
        group.last = last
        if self._delays:
            group.packed = group.sizes.keys() & self._delays.keys()
        return group

    def failed(self, group: CommitGroup, cursors: Container[int]) -> None:
        """What was appended is given up; the rest joins the open group. `cursors` are those there are by now."""
        following = self.open
        following.retries = group.urgent or group.retries
        following.new_logs[:0] = group.new_logs
        following.freed |= group.freed
        following.opened |= {cursor for cursor in group.opened if cursor in cursors}
        self.moved |= {cursor for cursor in group.moved if cursor in cursors}
        self.passes[:0] = group.passes
        following.dropped |= group.dropped
        following.losses[:0] = group.losses
        following.given_up[:0] = [given for given in group.given_up if not given.if_kept]
        kept = {key: value for key, value in group.state.items() if key[0] not in (MEMORY, SPILLS)}
        following.state = {**kept, **following.state}

    def close(self) -> None:
        """What joined after the last group, or joins from now on, is in none."""
        self.open.ticket.decide(StoreError("the store is closed"))
