"""Committer: gathers the content of gateways and lands it in groups, on a thread of its own.

Large content is cut into parts. A landing takes some of every gateway (`cloud.hub.queue`), as much as fits its time: a
gateway that sends little waits for two landings at most.

The loop's thread gathers and answers. The landing's thread (`cloud.hub.lander`) does all disk access, so the loop stays
responsive whatever the disk does. An answer leaves only after its entry is on disk.

An entry that cannot land is *held*: it stays in the queue without an answer and is retried with backoff, so the
gateway's credit runs out and it waits. While nothing at all can land, everything waits for the same retry. Held entries
are dropped when their connection ends, because the gateway sends them again. Other entries land also after their
connection ended, up to a size limit.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, NamedTuple, TypeVar

from cloud.hub.groups import (
    Answer,
    AnswerOfParts,
    Content,
    GatewaySession,
    GroupReport,
    Key,
    LandingGroup,
    LandingOutcome,
    LedgerDocument,
    Presence,
    QueueEntry,
)
from cloud.hub.lander import Lander
from cloud.hub.limits import (
    GIVEN_BACK_AFTER_S,
    GIVEN_BACK_BYTES_MIN,
    GIVEN_BACK_WITHIN_S,
    PRESENCE_EVERY_S,
    SEEN_EVERY_S,
    STATUS_EVERY_S,
    STATUS_ROWS_MAX,
)
from cloud.hub.memory import release_memory
from cloud.hub.queue import EntryQueue
from cloud.hub.registry.registry import Registry
from cloud.lake.limits import (
    GATHER_MS_MAX,
    HELD_BYTES_MAX,
    HELD_RETRY_S_MAX,
    LANDING_BYTES_MAX,
    LANDING_ROWS_MAX,
    LEFT_BEHIND_BYTES_MAX,
    QUIET_BYTES_MIN,
    QUIET_MS,
    RETRY_S_FIRST,
    RETRY_S_MAX,
    STALLED_S,
)
from cloud.lake.parts import parts_of
from cloud.lake.rows import ReceivedBatch
from edge.output.logs import describe_error

log = logging.getLogger(__name__)

T = TypeVar("T")


class Fault(NamedTuple):
    """Reason why landing is blocked, for all gateways or for some."""

    since_s: float
    """Start, in monotonic seconds."""
    reason: str


class Committer:
    """Gathers entries and lands them. All methods are for the loop's thread."""

    def __init__(
        self,
        lander: Lander,
        *,
        loop: asyncio.AbstractEventLoop,
        executor: Executor,
        now_us: Callable[[], int],
        gather_ms: int,
    ) -> None:
        """`executor`: a pool with one thread, used only for landing. `now_us`: UTC microseconds."""
        self.reported: list[Callable[[LandingGroup, GroupReport], None]] = []
        """Listeners, called after each group and before its answers."""
        self._lander = lander
        self._loop = loop
        self._executor = executor
        self._now_us = now_us
        self._gather_s = gather_ms / 1_000
        self._replicas: Callable[[], int] = lambda: 1
        self._queue = EntryQueue()
        self._presence: dict[Key, Presence] = {}
        self._states: list[Mapping[str, Any]] = []
        self._seen: dict[Key, int] = {}
        self._observed: dict[Key, str] = {}
        self._presence_due = self._states_due = self._seen_due = 0.0
        self._under_way: LandingGroup | None = None
        self._final = False
        """No group follows."""
        self._took_all = False
        """The group in progress is the last one, and nothing may be added."""
        self._timer: asyncio.Handle | None = None
        self._timer_s = 0.0
        self._gather_until = self._last_put_s = 0.0
        self._started_s = -math.inf
        """Start of the last group with fresh batches: a trickle starts one group in twice the gathering time."""
        self._was_backlog = False
        """The last group was mostly backlog: the next one may be its end."""
        self._urgent = False
        self._failing: Fault | None = None
        self._landed_s = 0.0
        """Time of the last landing, in monotonic seconds."""
        self._retry_s = self._retry_at = 0.0
        self._closing: asyncio.Future[None] | None = None
        self._release_memory: asyncio.TimerHandle | None = None
        self._release_memory_by_s = 0.0
        self._freed_bytes = 0
        """Bytes freed since memory was returned to the system."""

    def follow_replicas(self, count: Callable[[], int]) -> None:
        """Gather for as long as the number of hubs of the registry demands from now on."""
        self._replicas = count

    # --- called by the service ------------------------------------------------------------------------------------

    def connect(self, session: GatewaySession) -> None:
        """Record a connect."""
        presence = self._presence_of(session)
        presence.connected, presence.remote = True, session.remote
        presence.connects += 1

    def disconnect(self, session: GatewaySession, *, replaced: bool = False) -> None:
        """Record the end of a connection, or its replacement by a later one. Drops its held entries."""
        session.gone = True
        if not replaced:
            self._presence_of(session).connected = False
        before = self._queue.bytes
        self._queue.drop_held(session)
        self._queue.drop_closed(session, LEFT_BEHIND_BYTES_MAX)
        self._count_freed(before - self._queue.bytes)

    def put(self, session: GatewaySession, content: Content, answer: Answer) -> None:
        """Queue content for landing."""
        now = self._loop.time()
        parts = _parts_of(content)
        if len(parts) > 1:
            answer = AnswerOfParts(answer, len(parts))
        for part in parts:
            entry = QueueEntry(session, part, answer, now)
            if not entry.rows:
                self._urgent = True
            elif not self._queue.fresh_rows:
                self._gather_until = max(now + self.gathering_s, self._started_s + 2 * self.gathering_s)
            self._queue.put(entry)
        self._last_put_s = now
        self._schedule()

    def put_state(self, row: Mapping[str, Any]) -> None:
        """Queue a row of `gateway_status`; it lands within `STATUS_EVERY_S`."""
        if len(self._states) >= STATUS_ROWS_MAX:
            del self._states[: STATUS_ROWS_MAX // 10]
        if not self._states:
            self._states_due = self._loop.time() + STATUS_EVERY_S
        self._states.append(row)
        self._schedule()

    def record_seen(self, key: Key) -> None:
        """Record that a (tenant, gateway) was seen now."""
        if not self._seen:
            self._seen_due = self._loop.time() + SEEN_EVERY_S
        self._seen[key] = self._now_us()
        self._schedule()

    def record_observed(self, key: Key, observed: str, *, soon: bool = False) -> None:
        """Record what was observed of a (tenant, gateway) that was seen now, JSON. `soon`: its condition is another
        one, so that it is written as soon as a connect is."""
        self._observed[key] = observed
        self.record_seen(key)
        if soon:
            self._seen_due = min(self._seen_due, self._loop.time() + PRESENCE_EVERY_S)
            self._schedule()

    def repeat_presence(self, sessions: Iterable[GatewaySession]) -> None:
        """Write again that these gateways are connected."""
        for session in sessions:
            if not session.gone and not session.refused:
                self._presence_of(session).connected = True

    async def read(self, query: Callable[[Registry], T]) -> T:
        """Run a query on the registry's thread; raises `RegistryError`."""
        return await self._loop.run_in_executor(self._executor, query, self._lander.registry)

    async def close(self) -> None:
        """Land and answer everything gathered, fold the log of commits, and stop. Nothing may be added afterwards."""
        self._closing = self._loop.create_future()
        if self._release_memory is not None:
            self._release_memory.cancel()
        self._schedule()
        await self._closing
        await self._loop.run_in_executor(self._executor, self._lander.fold)

    @property
    def gathering_s(self) -> float:
        """Time to gather batches for a landing. It grows by half with each replica, up to the longest configurable
        time: all of them commit to one table, and each reads what the others have committed."""
        stretched = self._gather_s * (1 + self._replicas()) / 2
        return max(self._gather_s, min(stretched, GATHER_MS_MAX / 1_000))

    # --- figures -------------------------------------------------------------------------------------------------

    @property
    def pending_bytes(self) -> int:
        """Unanswered bytes."""
        return self._queue.bytes + (self._under_way.bytes if self._under_way is not None else 0)

    @property
    def pending_rows(self) -> int:
        """Unanswered messages."""
        return self._queue.rows + (self._under_way.rows if self._under_way is not None else 0)

    @property
    def pressing_bytes(self) -> int:
        """Pending bytes that count for back-pressure: all while nothing can land, else without held ones."""
        return self.pending_bytes - (0 if self._failing else self._queue.held_bytes)

    @property
    def failing(self) -> bool:
        """Return whether nothing can land now."""
        return self._failing is not None

    @property
    def fault(self) -> Fault | None:
        """Return why landing is blocked.

        Either nothing can land, or the oldest entry has waited `STALLED_S` while it was held or nothing else landed.
        """
        if self._failing is not None:
            return self._failing
        oldest = self._oldest()
        if oldest is None:
            return None
        since_s = oldest.at_s if oldest.attempts else max(oldest.at_s, self._landed_s)
        if self._loop.time() - since_s < STALLED_S:
            return None
        return Fault(since_s, oldest.words or "the current landing does not finish")

    @property
    def held(self) -> list[tuple[GatewaySession, Fault]]:
        """Connections with held entries, with the oldest entry of each."""
        found: dict[GatewaySession, Fault] = {}
        for entry in self._queue.held:
            found.setdefault(entry.session, Fault(entry.at_s, entry.words))
        return list(found.items())

    @property
    def oldest_s(self) -> float:
        """Age of the oldest unanswered entry in seconds; 0 without one."""
        oldest = self._oldest()
        return 0.0 if oldest is None else self._loop.time() - oldest.at_s

    def _oldest(self) -> QueueEntry | None:
        waiting = [*(self._under_way.entries if self._under_way is not None else ()), *self._queue.oldest]
        return min(waiting, key=lambda entry: entry.at_s, default=None)

    # --- scheduling ---------------------------------------------------------------------------------------------

    def _presence_of(self, session: GatewaySession) -> Presence:
        if not self._presence:
            self._presence_due = self._loop.time() + PRESENCE_EVERY_S
        presence = self._presence.setdefault(session.key, Presence(session.remote, connected=True, at_us=0))
        presence.at_us = self._now_us()
        self._schedule()
        return presence

    def _due_s(self) -> float | None:
        """Return when the next group is due; None if there is nothing to do."""
        if self._closing is not None:
            return 0.0
        dues = [0.0] if self._urgent else []
        if self._queue.fresh_rows:
            # The batches take other changes with them: a group of its own would cut the gathering short.
            dues.append(self._gathered_s())
        else:
            dues += [self._presence_due] if self._presence else []
            dues += [self._states_due] if self._states else []
            dues += [self._seen_due] if self._seen else []
        if self._queue.held:
            dues.append(self._queue.held_due_s)
        return max(min(dues), self._retry_at) if dues else None

    def _gathered_s(self) -> float:
        """Return when gathering of batches ends: by time, by size, or by silence after a backlog."""
        queue = self._queue
        if queue.fresh_bytes >= LANDING_BYTES_MAX or queue.fresh_rows >= LANDING_ROWS_MAX:
            return 0.0
        if self._was_backlog or queue.backlog_bytes >= QUIET_BYTES_MIN:
            return min(self._gather_until, self._last_put_s + QUIET_MS / 1_000)
        return self._gather_until

    def _schedule(self) -> None:
        if self._under_way is not None or self._final:
            return
        due = self._due_s()
        if due is None or (self._timer is not None and self._timer_s <= due):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_s = self._loop.call_at(due, self._start_group), due

    # --- one group ------------------------------------------------------------------------------------------------

    def _start_group(self) -> None:
        self._timer = None
        now, due = self._loop.time(), self._due_s()
        if due is None or due > now:  # the deadline has moved since
            self._schedule()
            return
        if self._queue.fresh_rows:
            self._started_s, self._was_backlog = now, self._queue.backlog_bytes >= QUIET_BYTES_MIN
        self._under_way = group = self._take(now)
        self._took_all = self._closing is not None and not (self._queue.fresh or self._queue.held)
        self._urgent = False
        work = self._loop.run_in_executor(self._executor, self._land, group)
        work.add_done_callback(partial(self._finish_group, group))

    def _land(self, group: LandingGroup) -> GroupReport:
        """Land a group, on the landing's thread."""
        return self._lander.land(group, self._now_us())

    def _take(self, now: float) -> LandingGroup:
        """Take the due entries for one landing."""
        closing = self._closing is not None
        group = LandingGroup(self._queue.take(now, everything=closing), self._presence)
        self._presence = {}
        if closing or now >= self._states_due:
            group.states, self._states = self._states, []
        if closing or now >= self._seen_due:
            group.seen, self._seen = self._seen, {}
            group.observed, self._observed = self._observed, {}
        return group

    def _finish_group(self, group: LandingGroup, work: asyncio.Future[GroupReport]) -> None:
        self._under_way = None
        error = work.exception()
        if error is not None:
            log.error("landing failed with an internal error", exc_info=error)
        report = work.result() if error is None else GroupReport(fault=describe_error(error))
        took_all = self._took_all and not any(entry.untried for entry in group.entries)
        self._requeue(group, report)
        self._count_freed(max(group.bytes, group.landing_bytes))
        for listener in self.reported:
            listener(group, report)
        for entry in group.entries:
            if entry.verdict is not None:
                entry.answer(entry.verdict, entry.words)
        if self._closing is not None and (took_all or self._failing is not None or self._closing.done()):
            self._final = True
            if not self._closing.done():  # else shutdown has stopped waiting
                self._closing.set_result(None)
        else:
            compacting = self._loop.run_in_executor(self._executor, self._lander.tidy)
            compacting.add_done_callback(self._compacted)
            self._release_surplus()
            self._urgent = self._urgent or self._queue.urgent
            self._schedule()

    def _requeue(self, group: LandingGroup, report: GroupReport) -> None:
        """Return entries that did not land to the queue, and schedule their retry."""
        now = self._loop.time()
        untried = [entry for entry in group.entries if entry.untried]
        left = [entry for entry in group.entries if entry.verdict is None and not entry.untried]
        progress = report.fault is None or len(left) + len(untried) < len(group.entries)
        self._requeue_untried(untried, now)
        self._queue.charge(report.landed.spent_s)
        if any(entry.verdict is LandingOutcome.LANDED for entry in group.entries):
            self._landed_s = now
        if progress:
            if self._failing is not None:
                log.info("landing works again")
            self._failing, self._retry_s, self._retry_at = None, 0.0, 0.0
        else:
            if self._failing is None:
                log.error("landing fails, nothing is acknowledged until it works again: %s", report.fault)
            self._failing = Fault(self._failing.since_s if self._failing else now, report.fault or "")
            self._retry_s = min(max(RETRY_S_FIRST, self._retry_s * 2), RETRY_S_MAX)
            self._retry_at = now + self._retry_s
        for entry in left:
            if progress and not entry.attempts:
                log.error("gateway %s: data is held and will be retried: %s", entry.session.gateway, entry.words)
            entry.attempts = entry.attempts + 1 if progress else 1  # the fault is not that of its content
            entry.due_s = now + min(RETRY_S_FIRST * 2 ** (entry.attempts - 1), HELD_RETRY_S_MAX) if progress else now
        self._queue.put_held([entry for entry in left if not entry.session.gone])
        released = [entry for entry in group.entries if entry.verdict is LandingOutcome.RELEASED]
        self._queue.drop_later([*released, *(entry for entry in left if entry.session.gone)])
        for key, presence in group.presence.items():
            later = self._presence.setdefault(key, presence)
            if later is not presence:
                later.connects += presence.connects
        if group.undecided:
            self._presence_due = now + PRESENCE_EVERY_S  # else the next group would follow at once
        if group.states:
            self._states_due = now + STATUS_EVERY_S
            self._states[:0] = group.states[: max(0, STATUS_ROWS_MAX - len(self._states))]
        self._seen, self._observed = {**group.seen, **self._seen}, {**group.observed, **self._observed}

    def _requeue_untried(self, untried: Sequence[QueueEntry], now: float) -> None:
        """Return entries that were not tried for lack of time, in front of the queue."""
        for entry in untried:
            entry.untried = False
            entry.due_s = now if entry.attempts else 0.0
        self._queue.put_first([entry for entry in untried if not entry.attempts])
        self._queue.put_held([entry for entry in untried if entry.attempts and not entry.session.gone])

    def _compacted(self, work: asyncio.Future[int]) -> None:
        """Count the memory of a compaction, which may be that of several landings."""
        if error := work.exception():
            log.error("compaction failed with an internal error", exc_info=error)
        elif work.result():
            self._count_freed(GIVEN_BACK_BYTES_MIN)

    def _count_freed(self, freed_bytes: int) -> None:
        """Schedule the return of freed memory to the system, unless another large group follows."""
        self._freed_bytes += freed_bytes
        if self._freed_bytes < GIVEN_BACK_BYTES_MIN or self._closing is not None:
            return
        now = self._loop.time()
        if self._release_memory is None:
            self._release_memory_by_s = now + GIVEN_BACK_WITHIN_S
        elif freed_bytes < GIVEN_BACK_BYTES_MIN:
            return  # already scheduled
        else:
            self._release_memory.cancel()
        self._release_memory = self._loop.call_at(
            min(now + GIVEN_BACK_AFTER_S, self._release_memory_by_s), self._release_memory_now
        )

    def _release_memory_now(self) -> None:
        self._release_memory, self._freed_bytes = None, 0
        self._executor.submit(release_memory)

    def _release_surplus(self) -> None:
        """Release held entries beyond the limit, so that they do not take room from entries that can land."""
        if self._failing is not None:
            return
        surplus = self._queue.surplus(HELD_BYTES_MAX)
        self._queue.drop_later(surplus)
        for entry in surplus:
            entry.answer(LandingOutcome.RELEASED, entry.words)


def _parts_of(content: Content) -> Sequence[Content]:
    if isinstance(content, ReceivedBatch):
        return parts_of(content)
    return content.parts() if isinstance(content, LedgerDocument) else (content,)
