"""Removal of messages: selected when a group is sealed, and recorded when its commit ends."""

from __future__ import annotations

import time

from edge.broker.store.cursors import CursorTable
from edge.broker.store.group import CommitGroup, CommitOutcome
from edge.broker.store.limits import StoreLimits
from edge.broker.store.logs import LogTable
from edge.broker.store.removal_jobs import Evicted, Eviction, Reclaim, Reclaimed, Thinned, Thinning


class Removals:
    """Selects a bounded amount of removals for each commit. The rest follows in later commits."""

    def __init__(self, limits: StoreLimits, logs: LogTable, cursors: CursorTable) -> None:
        self._limits = limits
        self._logs = logs
        self._cursors = cursors
        self._unfinished: set[int] = set()
        """Logs with deletions that did not fit into the last commit."""

    @property
    def unfinished(self) -> bool:
        return bool(self._unfinished)

    def choose(self, group: CommitGroup) -> None:
        """Select the removals of a group. A group with evictions writes all counters (see `decisions/0007`)."""
        if group.evicting or group.thinning:
            now_ns = time.time_ns()
            self._choose_evictions(group, now_ns)
            self._choose_thinnings(group, now_ns)
        self._choose_reclaims(group)

    def _choose_evictions(self, group: CommitGroup, now_ns: int) -> None:
        left = max(self._limits.evict_bytes_max, 2 * group.size)
        for log, size in group.evicting.items():
            state = self._logs[log]
            claims, most = self._cursors.claims(state, group), group.at_most[log]
            group.evictions.append(Eviction(log, state.first, state.medium_end, min(size, left), claims, now_ns, most))
            left = max(0, left - size)

    def _choose_thinnings(self, group: CommitGroup, now_ns: int) -> None:
        for log, size in group.thinning.items():
            state = self._logs[log]
            level, position = state.thinned_to
            thinning = Thinning(
                log,
                level,
                position,
                state.first,
                state.medium_end,
                size,
                self._limits.thin_bytes_max,
                self._cursors.claims(state, group, all_=True),  # messages that any cursor has passed are not thinned
                now_ns,
                group.at_most[log],
                self._limits.thin_messages_max,
            )
            group.thinnings.append(thinning)

    def _choose_reclaims(self, group: CommitGroup) -> None:
        """Select segments to delete: only counted ones, and on a busy store only when the log is counted anyway."""
        waiting = self._logs.to_reclaim
        group.reclaim_bytes_max = max(self._limits.reclaim_bytes_max, 2 * group.size)
        for log in list(waiting):
            if len(group.reclaims) >= self._limits.reclaim_logs_max:
                break
            state = self._logs[log]
            end = group.ends.get(log, state.medium_end)
            lowest = self._cursors.lowest(state, end)
            limit = min(lowest, end if group.counting else group.swept.get(log, state.counted))
            counts = group.counting or log in group.swept
            if lowest <= state.first:
                del waiting[log]
                self._unfinished.discard(log)
            elif limit > state.first and (counts or not group.runs or log in self._unfinished):
                del waiting[log]
                if limit < lowest:
                    waiting[log] = None  # the rest follows once it is counted
                state.deleting_to = limit
                group.reclaims.append(Reclaim(log, state.first, limit))

    # --- the end of a commit ----------------------------------------------------------------------------------

    def committed(self, outcome: CommitOutcome) -> None:
        for evicted in outcome.evicted:
            self._evicted(evicted)
        for thinned in outcome.thinned:
            self._thinned(thinned)
        for reclaimed in outcome.reclaimed:
            self._reclaimed(reclaimed)

    def _evicted(self, evicted: Evicted) -> None:
        state = self._logs[evicted.log]
        self._logs.move(state, first=evicted.first, size=-evicted.bytes)
        if state.ring is not None:
            self._logs.passed.add(state.log)
        self._cursors.move_all_to(state, state.first)

    def _thinned(self, thinned: Thinned) -> None:
        state = self._logs[thinned.log]
        self._logs.move(state, size=-thinned.freed)
        state.thinned_to = (0, 0) if thinned.ended else (thinned.level, thinned.position)

    def _reclaimed(self, reclaimed: Reclaimed) -> None:
        log, first, size, finished = reclaimed
        state = self._logs[log]
        self._logs.move(state, first=first, size=-size)
        if state.ring is not None:
            self._logs.passed.add(log)  # its first message may be in memory now
        if finished:
            self._unfinished.discard(log)
        else:
            self._unfinished.add(log)
            self._logs.to_reclaim[log] = None

    def failed(self, group: CommitGroup) -> None:
        """Retry deletions later, and move back cursors that were created beyond the committed messages."""
        for reclaim in group.reclaims:
            state = self._logs[reclaim.log]
            state.deleting_to = 0
            self._logs.to_reclaim[reclaim.log] = None
            for cursor in self._cursors.in_use(state):
                if cursor.progress.position > state.next:
                    self._cursors.move_back(cursor, state.next)
