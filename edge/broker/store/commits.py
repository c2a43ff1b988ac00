"""Group commit: seals the open group, prepares its contents, and handles the result.

A group holds *new* values. The values of the store change only after a successful commit, in `_finish`.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from itertools import chain

from edge.broker.store.crash_losses import CrashLosses
from edge.broker.store.errors import StoreError
from edge.broker.store.group import CommitGroup, CommitOutcome
from edge.broker.store.limits import StoreLimits
from edge.broker.store.log_cache import LogCache
from edge.broker.store.log_reads import LogReads
from edge.broker.store.medium import Medium, Post
from edge.broker.store.records import Committed
from edge.broker.store.removals import Removals
from edge.broker.store.rings import MemoryRings
from edge.broker.store.tables import StoreTables
from edge.broker.store.ticket import Ticket
from edge.output.logs import describe_error

logger = logging.getLogger(__name__)


class GroupCommits:
    """Runs one commit at a time. `contract.StoreCommits` documents the public methods."""

    def __init__(
        self,
        tables: StoreTables,
        medium: Medium,
        *,
        rings: MemoryRings,
        crash: CrashLosses,
        removals: Removals,
        cache: LogCache,
        reads: LogReads,
        post: Post,
        clock: Callable[[], float],
        limits: StoreLimits,
    ) -> None:
        self.listeners: list[Callable[[Committed], None]] = []
        self.moves_kept = 0
        self._gatherer, self._logs, self._cursors = tables.gatherer, tables.logs, tables.cursors
        self._counters, self._ledger = tables.counters, tables.ledger
        self._medium = medium
        self._rings = rings
        self._crash = crash
        self._removals = removals
        self._cache = cache
        self._reads = reads
        self._post = post
        self._clock = clock
        self._limits = limits
        self._closing = False
        self._refused: int | None = None
        """Messages refused since commits began to fail: one log line for each failure period, not for each commit."""
        self._lazy_since_s: float | None = None
        """Time since which lazy work waits for a commit."""
        self._retry_at_s = 0.0

    @property
    def committing(self) -> bool:
        return self._gatherer.sealed is not None

    @property
    def pending_bytes(self) -> int:
        return self._gatherer.pending_bytes + self._rings.waiting_bytes

    @property
    def gathered(self) -> int:
        return len(self._gatherer.open.runs)

    def together(self) -> AbstractContextManager[Ticket]:
        return self._gatherer.adding_together()

    def due_in(self) -> float | None:
        due_at_s = self._gatherer.open.due_at_s
        if due_at_s is None or self._gatherer.sealed is not None:
            return None
        return max(0.0, due_at_s - self._clock())

    def flush(self) -> bool:
        if self._gatherer.sealed is not None or self._gatherer.together or self._closing:
            return False
        now, waiting, group = self._clock(), self._waiting, self._gatherer.open
        self._reads.retry(now)
        self._cursors.maintain(now, self._medium)
        self._cache.maintain(now)
        self._counters.age(now, self._rings.numbers.reservations)
        if not waiting:
            self._lazy_since_s = None
        elif self._lazy_since_s is None:
            self._lazy_since_s = now
        if self._rings.rings:
            self._rings.maintain(now)
        may_retry = now >= self._retry_at_s
        rings_due = may_retry and self._rings.is_due(now)
        batch_due = group.due_at_s is not None and now >= group.due_at_s
        lazy_due = waiting and may_retry and (group.retries or self._lazy_is_due(now) or self._removals.unfinished)
        group.while_idle = may_retry and self._counters.keeps_many_logs and self._cache.is_idle(now)
        if not (group.urgent or batch_due or lazy_due or rings_due or group.while_idle):
            return False
        self._start(now, with_moves=lazy_due or batch_due, last=False)
        return True

    @property
    def _waiting(self) -> bool:
        return self._gatherer.waits or bool(self._logs.to_reclaim)

    def _lazy_is_due(self, now: float) -> bool:
        """Return True when lazy work has waited long enough."""
        moved = (self._cursors[cursor].log.log for cursor in self._gatherer.moved)
        logs = chain(moved, (each.log for each in self._gatherer.passes))
        return self._lazy_since_s is not None and now >= self._lazy_since_s + self._gatherer.moves_delay_s(logs)

    def _start(self, now: float, *, with_moves: bool, last: bool) -> None:
        """Seal the open group and hand it to the medium. `last`: before closing."""
        group = self._gatherer.seal(now, last=last)
        try:
            self._counters.number(group, self._medium.sequences_of)
            if self._rings.rings:
                self._rings.choose(group, now, accounted=self._crash.accounted)
            if self._crash.pending:
                self._crash.join(group)
            self._counters.count(group)
            if self._rings.rings or group.ring is not None:
                self._rings.numbers.reserve(group)
            self._removals.choose(group)
            if with_moves or group.reclaims or group.ring or group.filled:
                group.moved |= self._gatherer.moved
                self._gatherer.moved = set()
                group.passes, self._gatherer.passes = self._gatherer.passes, []
                self._lazy_since_s = None
            elif self._gatherer.moving_with_each or group.confirming:
                group.moved |= self._gatherer.moved & (self._gatherer.moving_with_each | group.confirming)
                self._gatherer.moved -= group.moved
            group.all_moved = not self._gatherer.moved
            group.cursor_rows = self._cursors.rows(group)
            self._medium.commit(group, partial(self._finish, group))
        except Exception as error:
            # Every commit must end, or no later message would be answered.
            group.outcome = CommitOutcome(_failure(error))
            self._post(partial(self._finish, group))

    def _finish(self, group: CommitGroup) -> None:
        """Handle the end of the commit of `group`. Runs once, on the loop's thread."""
        if self._gatherer.sealed is not group or group.outcome is None:
            return
        self._gatherer.sealed = None
        error = group.outcome.error
        group.ticket.decide(error)
        if error is None:
            if self._refused is not None:
                logger.warning("commits succeed again; %d messages were refused", self._refused)
                self._refused = None
            self._succeeded(group, group.outcome)
            group.appended += self._rings.take_waiting()
            self._notify(Committed(group.appended, None, bool(group.outcome.entries.added)))
        else:
            if self._refused is None:
                logger.error("%s; messages are refused until commits succeed again", error)
            self._refused = (self._refused or 0) + sum(len(run) for _, run in group.runs)
            self._failed(group, error)
            self._notify(Committed((), error))

    def _notify(self, commit: Committed) -> None:
        """Call every listener, then raise the first exception of one."""
        raised: list[Exception] = []
        for listener in self.listeners:
            try:
                listener(commit)
            except Exception as error:
                raised.append(error)
        if raised:
            raise raised[0]

    def _succeeded(self, group: CommitGroup, outcome: CommitOutcome) -> None:
        self._medium.committed(group)
        for log, end in group.ends.items():
            self._logs.move(self._logs[log], end=end, size=group.sizes[log])
        if group.ring is not None:
            self._rings.committed(group.ring)
        self._crash.committed(group)
        self._retry_at_s = 0.0
        self.moves_kept += group.all_moved
        self._ledger.committed(outcome.entries)
        self._cursors.committed(group)
        self._counters.committed(group, self._rings.numbers.reservations)
        self._logs.came += len(group.log_rows)  # these can be evicted from now on
        self._removals.committed(outcome)

    def _failed(self, group: CommitGroup, error: StoreError) -> None:
        """Discard appended messages, and move the rest to the next group."""
        self._gatherer.failed(group, self._cursors)
        self._rings.failed(group, error)
        self._removals.failed(group)
        self._lazy_since_s = self._clock()
        self._retry_at_s = self._lazy_since_s + self._limits.retry_delay_s

    # --- closing ----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Commit the open group, and nothing after it. Blocks. Raises the exception of a listener, and RuntimeError
        inside a block of `together`."""
        if self._gatherer.together:
            raise RuntimeError("the store is closed between changes that belong together")
        self._closing = True  # further changes by listeners join the last group
        self._wait()
        group = self._gatherer.open
        waiting = group.urgent or group.runs or self._waiting or self._rings.rings
        if waiting or self._counters.lag or self._medium.writes_at_close:
            self._start(self._clock(), with_moves=True, last=True)
            self._wait()

    def _wait(self) -> None:
        """Wait for the running commit and handle its end."""
        group = self._gatherer.sealed
        if group is not None:
            self._medium.wait()
            self._finish(group)


def _failure(error: Exception) -> StoreError:
    """Return the error for a group that could not be sealed."""
    if isinstance(error, StoreError):
        return error
    if isinstance(error, struct.error | OverflowError | UnicodeError):
        return StoreError(f"a message cannot be stored: {error}")
    logger.error("a group could not be sealed", exc_info=error)
    return StoreError(f"a group could not be sealed: {describe_error(error)}: see the log")
