"""Open group and committing group: adds changes, limits their delay, and keeps changes of a failed commit."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat

from bridge.message import Run
from edge.broker.store.errors import StoreError
from edge.broker.store.group import CommitGroup, CursorPass
from edge.broker.store.limits import StoreLimits
from edge.broker.store.reservation import MEMORY, SPILLS
from edge.broker.store.ticket import Ticket


class Gatherer:
    """Collects the changes for the next commit. Used on the event loop's thread."""

    def __init__(self, limits: StoreLimits, clock: Callable[[], float]) -> None:
        """`clock`: seconds, monotonic."""
        self._limits = limits
        self._clock = clock
        self._delays: dict[int, float] = {}
        """Seconds that appends may wait, for logs with a delay."""
        self.open = CommitGroup()
        self.sealed: CommitGroup | None = None
        self.moved: set[int] = set()
        """Cursors with moves that wait for a commit."""
        self.passes: list[CursorPass] = []
        """Moves of idle cursors that wait for a commit."""
        self.moving_with_each: set[int] = set()
        """Cursors that every commit writes."""
        self.together = False
        """True inside a block of `StoreCommits.together`: the open group must not be sealed."""

    # --- changes ----------------------------------------------------------------------------------------------

    def append(self, log: int, run: Run, size: int) -> Ticket:
        """Add a run. `size`: bytes of its bodies."""
        self.open.runs.append((log, run))
        return self._grow(log, size)

    def append_all(self, log: int, runs: Sequence[Run], size: int) -> Ticket:
        """Add several runs. `size`: bytes of all bodies."""
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

    def write_soon(self, cursor: int, log: int) -> Ticket:
        """Write this cursor with the open group, which may wait as long as messages of the log."""
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
        self._release(self.open.evicting, log, size, at_most)

    def thin(self, log: int, size: int, at_most: int | None) -> None:
        self._release(self.open.thinning, log, size, at_most)

    def _release(self, asked: dict[int, int], log: int, size: int, at_most: int | None) -> None:
        group, before = self.open, asked.get(log, 0)
        unbounded = at_most is None or (log in group.at_most and group.at_most[log] is None)
        group.at_most[log] = None if unbounded or at_most is None else before + at_most
        asked[log] = before + size
        group.urgent = True

    def delay(self, log: int, delay_s: float) -> None:
        if delay_s > 0:
            self._delays[log] = delay_s
        elif self._delays.pop(log, None) is not None:
            self.open.urgent = True  # commit delayed messages now

    @contextmanager
    def adding_together(self) -> Iterator[Ticket]:
        """See `contract.StoreCommits.together`."""
        if self.together:
            raise RuntimeError("changes are added together already")
        group = self.open
        mark = group.mark()
        self.together = True
        try:
            yield group.ticket
        except BaseException:
            group.undo(mark)
            raise
        finally:
            self.together = False

    # --- what waits -------------------------------------------------------------------------------------------

    def moves_delay_s(self, logs: Iterable[int]) -> float:
        """Return how long cursor moves over these logs may wait.

        They wait at least as long as the messages: commits for moves alone would undo what their delay saves.
        """
        delay_s, delays = self._limits.moves_delay_s, self._delays
        return max(delay_s, min((delays.get(log, 0.0) for log in logs), default=0.0)) if delays else delay_s

    @property
    def waits(self) -> bool:
        """True when there are changes other than messages to write."""
        group = self.open
        names = group.opened or group.dropped or group.new_logs or group.freed
        return bool(self.moved or self.passes or group.state or names or group.given_up or group.losses)

    @property
    def pending_bytes(self) -> int:
        return self.open.size + (self.sealed.size if self.sealed is not None else 0)

    def is_changing(self, log: int) -> bool:
        """Return True when the next commit changes the row of a log in any case."""
        group = self.open
        return log in group.sizes or log in group.freed or log in group.new_logs

    def is_writing(self, log: int) -> bool:
        """Return True while messages of a log are not committed yet."""
        return log in self.open.sizes or (self.sealed is not None and log in self.sealed.ends)

    def bytes_of(self, log: int) -> int:
        """Return the growth of a log with the current groups, in bytes of bodies."""
        group, sealed = self.open, self.sealed
        size = group.sizes.get(log, 0) - group.evicting.get(log, 0) - group.thinning.get(log, 0)
        if sealed is not None:
            size += sealed.sizes.get(log, 0) - sealed.evicting.get(log, 0) - sealed.thinning.get(log, 0)
        return size

    @property
    def changing(self) -> set[int]:
        """Logs with a size that changes with the current groups."""
        open_, sealed = self.open, self.sealed
        logs = open_.sizes.keys() | open_.evicting.keys() | open_.thinning.keys()
        return logs if sealed is None else logs | sealed.sizes.keys() | sealed.evicting.keys() | sealed.thinning.keys()

    # --- sealing ----------------------------------------------------------------------------------------------

    def seal(self, now: float, *, last: bool) -> CommitGroup:
        """Seal the open group for its commit, and start the next one. Raises RuntimeError while changes are added
        that belong together."""
        if self.together:
            raise RuntimeError("the open group is sealed between changes that belong together")
        group, self.open = self.open, CommitGroup()
        self.sealed = group
        group.monotonic_ns = int(now * 1e9)
        group.last = last
        if self._delays:
            group.packed = group.sizes.keys() & self._delays.keys()
        return group

    def failed(self, group: CommitGroup, cursors: Container[int]) -> None:
        """Discard the messages of a failed group, and add the rest to the open group. `cursors`: the existing ones."""
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
        """Fail the ticket of changes that joined after the last group."""
        self.open.ticket.decide(StoreError("the store is closed"))
