"""The committer: gathers what gateways send and lands it, one group at a time, on a thread of its own.

What is larger than others is cut into parts, and a landing takes of every gateway some (`cloud.hub.queue`), as
much as its time allows: who sends little waits for two landings at most, whatever others send.

The loop's thread gathers and answers; the landing's thread (`cloud.hub.lander`) does everything that touches a disk, so
the loop stays responsive whatever the disk does. An answer leaves only after its entry is on the medium.

What cannot be landed is *held*: it stays in the queue, is tried again with backoff, and is not answered, so the
gateway's credit runs out and it waits. While nothing at all can be landed, everything waits for the same retry. What is
held is dropped when its connection ends, because it comes again; everything else lands, whether its connection is still
there or not: landing goes on whatever connections do. Only what is much of one that is gone is forgotten, too.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, NamedTuple, TypeVar

from cloud.hub.groups import (
    Answer,
    AnswerOfParts,
    Content,
    Entry,
    Group,
    Key,
    LedgerDocument,
    Presence,
    Report,
    Session,
    Verdict,
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
from cloud.hub.memory import give_back
from cloud.hub.queue import EntryQueue
from cloud.hub.registry.registry import Registry
from cloud.lake.limits import (
    HELD_BYTES_MAX,
    LANDING_BYTES_MAX,
    LANDING_ROWS_MAX,
    LEFT_BEHIND_BYTES_MAX,
    QUIET_BYTES_MIN,
    QUIET_MS,
    RETRY_S_FIRST,
    RETRY_S_MAX,
    STANDS_S,
)
from cloud.lake.parts import parts_of
from cloud.lake.rows import ReceivedBatch
from edge.output.logs import describe_error

log = logging.getLogger(__name__)

T = TypeVar("T")


class Fault(NamedTuple):
    """Why landing does not go on, or not for some."""

    since_s: float
    """Monotonic seconds."""
    reason: str


class Committer:
    """Gathers and lands. All methods are for the loop's thread."""

    def __init__(
        self,
        lander: Lander,
        *,
        loop: asyncio.AbstractEventLoop,
        executor: Executor,
        now_us: Callable[[], int],
        gather_ms: int,
    ) -> None:
        """`executor` has one thread, which is the landing's alone. `now_us`: UTC microseconds."""
        self.reported: list[Callable[[Group, Report], None]] = []
        """Called after each group, before its answers."""
        self._lander = lander
        self._loop = loop
        self._executor = executor
        self._now_us = now_us
        self._gather_s = gather_ms / 1_000
        self._queue = EntryQueue()
        self._presence: dict[Key, Presence] = {}
        self._states: list[Mapping[str, Any]] = []
        self._seen: dict[Key, int] = {}
        self._presence_due = self._states_due = self._seen_due = 0.0
        self._under_way: Group | None = None
        self._final = False
        """There will be no further turn."""
        self._took_all = False
        """The turn under way has taken all there was, and nothing may be put in any more."""
        self._timer: asyncio.Handle | None = None
        self._timer_s = 0.0
        self._gather_until = self._last_put_s = 0.0
        self._begun_s = -math.inf
        """When the last turn with fresh batches began: a trickle has one in twice the time batches are gathered."""
        self._was_backlog = False
        """That turn had much of backlogs to land: what comes next may be the end of one, and nothing is to follow."""
        self._urgent = False
        self._failing: Fault | None = None
        self._landed_s = 0.0
        """When something has landed last; monotonic seconds."""
        self._retry_s = self._retry_at = 0.0
        self._closing: asyncio.Future[None] | None = None
        self._give_back: asyncio.TimerHandle | None = None
        self._give_back_by_s = 0.0
        self._freed_bytes = 0
        """Since memory was given back."""

    # --- what the service puts in ---------------------------------------------------------------------------------

    def connect(self, session: Session) -> None:
        """A gateway has connected."""
        presence = self._presence_of(session)
        presence.connected, presence.remote = True, session.remote
        presence.connects += 1

    def disconnect(self, session: Session, *, replaced: bool = False) -> None:
        """That connection is over, or `replaced` by a later one: what is held of it will come again."""
        session.gone = True
        if not replaced:
            self._presence_of(session).connected = False
        before = self._queue.bytes
        self._queue.drop_held(session)
        self._queue.drop_gone(session, LEFT_BEHIND_BYTES_MAX)
        self._freed(before - self._queue.bytes)

    def put(self, session: Session, content: Content, answer: Answer) -> None:
        """Land this."""
        now = self._loop.time()
        parts = _parts_of(content)
        if len(parts) > 1:
            answer = AnswerOfParts(answer, len(parts))
        for part in parts:
            entry = Entry(session, part, answer, now)
            if not entry.rows:
                self._urgent = True
            elif not self._queue.fresh_rows:
                self._gather_until = max(now + self._gather_s, self._begun_s + 2 * self._gather_s)
            self._queue.put(entry)
        self._last_put_s = now
        self._schedule()

    def put_state(self, row: Mapping[str, Any]) -> None:
        """Land a row of `gateway_status`, within `STATUS_EVERY_S`."""
        if len(self._states) >= STATUS_ROWS_MAX:
            del self._states[: STATUS_ROWS_MAX // 10]
        if not self._states:
            self._states_due = self._loop.time() + STATUS_EVERY_S
        self._states.append(row)
        self._schedule()

    def heard(self, key: Key) -> None:
        """A (tenant, gateway) has been heard of now."""
        if not self._seen:
            self._seen_due = self._loop.time() + SEEN_EVERY_S
        self._seen[key] = self._now_us()
        self._schedule()

    async def read(self, query: Callable[[Registry], T]) -> T:
        """Ask the registry something, on its thread; raises `RegistryError`."""
        return await self._loop.run_in_executor(self._executor, query, self._lander.registry)

    async def close(self) -> None:
        """Land what has been gathered, answer it, and stop. Nothing may be put in afterwards."""
        self._closing = self._loop.create_future()
        if self._give_back is not None:
            self._give_back.cancel()
        self._schedule()
        await self._closing

    # --- what is shown --------------------------------------------------------------------------------------------

    @property
    def pending_bytes(self) -> int:
        """Bytes that have no answer yet."""
        return self._queue.bytes + (self._under_way.bytes if self._under_way is not None else 0)

    @property
    def pending_rows(self) -> int:
        """Messages that have no answer yet."""
        return self._queue.rows + (self._under_way.rows if self._under_way is not None else 0)

    @property
    def pressing_bytes(self) -> int:
        """Bytes that keep the hub from taking more: all while nothing can be landed, else without what is held."""
        return self.pending_bytes - (0 if self._failing else self._queue.held_bytes)

    @property
    def failing(self) -> bool:
        """True while nothing can be landed."""
        return self._failing is not None

    @property
    def fault(self) -> Fault | None:
        """Why landing stands: nothing can be landed; or something has had no answer for `STANDS_S`, and nothing
        else has landed meanwhile, or it is held."""
        if self._failing is not None:
            return self._failing
        oldest = self._oldest()
        if oldest is None:
            return None
        since_s = oldest.at_s if oldest.attempts else max(oldest.at_s, self._landed_s)
        if self._loop.time() - since_s < STANDS_S:
            return None
        return Fault(since_s, oldest.words or "the landing under way does not end")

    @property
    def held(self) -> list[tuple[Session, Fault]]:
        """Connections of which something is held, with the oldest of each."""
        found: dict[Session, Fault] = {}
        for entry in self._queue.held:
            found.setdefault(entry.session, Fault(entry.at_s, entry.words))
        return list(found.items())

    @property
    def oldest_s(self) -> float:
        """How long the oldest thing has had no answer; 0 when all have one."""
        oldest = self._oldest()
        return 0.0 if oldest is None else self._loop.time() - oldest.at_s

    def _oldest(self) -> Entry | None:
        waiting = [*(self._under_way.entries if self._under_way is not None else ()), *self._queue.oldest]
        return min(waiting, key=lambda entry: entry.at_s, default=None)

    # --- when the next turn begins --------------------------------------------------------------------------------

    def _presence_of(self, session: Session) -> Presence:
        if not self._presence:
            self._presence_due = self._loop.time() + PRESENCE_EVERY_S
        presence = self._presence.setdefault(session.key, Presence(session.remote, connected=True, at_us=0))
        presence.at_us = self._now_us()
        self._schedule()
        return presence

    def _due_s(self) -> float | None:
        """When the next turn is to begin; None: there is nothing to do."""
        if self._closing is not None:
            return 0.0
        dues = [0.0] if self._urgent else []
        if self._queue.fresh_rows:
            # What else is due goes with them: by itself it would cut their gathering off.
            dues.append(self._gathered_s())
        else:
            dues += [self._presence_due] if self._presence else []
            dues += [self._states_due] if self._states else []
            dues += [self._seen_due] if self._seen else []
        if self._queue.held:
            dues.append(self._queue.held_due_s)
        return max(min(dues), self._retry_at) if dues else None

    def _gathered_s(self) -> float:
        """When the batches have waited for company long enough: by time, by size, or by quiet, with much of backlogs
        or the end of one."""
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
        self._timer, self._timer_s = self._loop.call_at(due, self._begin), due

    # --- a turn ---------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._timer = None
        now, due = self._loop.time(), self._due_s()
        if due is None or due > now:  # what was waited for has waited for more since
            self._schedule()
            return
        if self._queue.fresh_rows:
            self._begun_s, self._was_backlog = now, self._queue.backlog_bytes >= QUIET_BYTES_MIN
        self._under_way = group = self._take(now)
        self._took_all = self._closing is not None and not (self._queue.fresh or self._queue.held)
        self._urgent = False
        work = self._loop.run_in_executor(self._executor, self._land, group)
        work.add_done_callback(partial(self._ended, group))

    def _land(self, group: Group) -> Report:
        """On the landing's thread."""
        return self._lander.land(group, self._now_us())

    def _take(self, now: float) -> Group:
        """Cut off the next group: what is due, but no more than one landing takes."""
        closing = self._closing is not None
        group = Group(self._queue.take(now, everything=closing), self._presence)
        self._presence = {}
        if closing or now >= self._states_due:
            group.states, self._states = self._states, []
        if closing or now >= self._seen_due:
            group.seen, self._seen = self._seen, {}
        return group

    def _ended(self, group: Group, work: asyncio.Future[Report]) -> None:
        self._under_way = None
        error = work.exception()
        if error is not None:
            log.error("landing met a fault of our own", exc_info=error)
        report = work.result() if error is None else Report(fault=describe_error(error))
        took_all = self._took_all and not any(entry.untried for entry in group.entries)
        self._put_back(group, report)
        self._freed(max(group.bytes, group.landing_bytes))
        for listener in self.reported:
            listener(group, report)
        for entry in group.entries:
            if entry.verdict is not None:
                entry.answer(entry.verdict, entry.words)
        if self._closing is not None and (took_all or self._failing is not None or self._closing.done()):
            self._final = True
            if not self._closing.done():  # else the hub has waited long enough, and stops without it
                self._closing.set_result(None)
        else:
            compacting = self._loop.run_in_executor(self._executor, self._lander.compact)
            compacting.add_done_callback(self._compacted)
            self._release_surplus()
            self._urgent = self._urgent or self._queue.urgent
            self._schedule()

    def _put_back(self, group: Group, report: Report) -> None:
        """What could not be done goes back into what waits, and is tried again later."""
        now = self._loop.time()
        untried = [entry for entry in group.entries if entry.untried]
        left = [entry for entry in group.entries if entry.verdict is None and not entry.untried]
        progress = report.fault is None or len(left) + len(untried) < len(group.entries)
        self._put_untried_back(untried, now)
        self._queue.charge(report.landed.spent_s)
        if any(entry.verdict is Verdict.LANDED for entry in group.entries):
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
                log.error("gateway %s: held, and tried again: %s", entry.session.gateway, entry.words)
            entry.attempts += 1
            entry.due_s = now + min(RETRY_S_FIRST * 2 ** (entry.attempts - 1), RETRY_S_MAX) if progress else now
        self._queue.put_back([entry for entry in left if not entry.session.gone])
        released = [entry for entry in group.entries if entry.verdict is Verdict.RELEASED]
        self._queue.drop_behind([*released, *(entry for entry in left if entry.session.gone)])
        for key, presence in group.presence.items():
            later = self._presence.setdefault(key, presence)
            if later is not presence:
                later.connects += presence.connects
        self._states[:0] = group.states[: max(0, STATUS_ROWS_MAX - len(self._states))]
        self._seen = {**group.seen, **self._seen}

    def _put_untried_back(self, untried: Sequence[Entry], now: float) -> None:
        """There was no time for them: they come first the next time, those that were held at once."""
        for entry in untried:
            entry.untried = False
            entry.due_s = now if entry.attempts else 0.0
        self._queue.put_first([entry for entry in untried if not entry.attempts])
        self._queue.put_back([entry for entry in untried if entry.attempts and not entry.session.gone])

    def _compacted(self, work: asyncio.Future[int]) -> None:
        """Rows that files were put together of may be as much as some landings."""
        if error := work.exception():
            log.error("putting files together met a fault of our own", exc_info=error)
        elif work.result():
            self._freed(GIVEN_BACK_BYTES_MIN)

    def _freed(self, freed_bytes: int) -> None:
        """What was much goes back to the system, once nothing large follows."""
        self._freed_bytes += freed_bytes
        if self._freed_bytes < GIVEN_BACK_BYTES_MIN or self._closing is not None:
            return
        now = self._loop.time()
        if self._give_back is None:
            self._give_back_by_s = now + GIVEN_BACK_WITHIN_S
        elif freed_bytes < GIVEN_BACK_BYTES_MIN:
            return  # it is due already
        else:
            self._give_back.cancel()
        self._give_back = self._loop.call_at(min(now + GIVEN_BACK_AFTER_S, self._give_back_by_s), self._give_back_now)

    def _give_back_now(self) -> None:
        self._give_back, self._freed_bytes = None, 0
        self._executor.submit(give_back)

    def _release_surplus(self) -> None:
        """Give back what is held beyond its bound, so that it does not crowd out what can be landed."""
        if self._failing is not None:
            return
        surplus = self._queue.surplus(HELD_BYTES_MAX)
        self._queue.drop_behind(surplus)
        for entry in surplus:
            entry.answer(Verdict.RELEASED, entry.words)


def _parts_of(content: Content) -> Sequence[Content]:
    if isinstance(content, ReceivedBatch):
        return parts_of(content)
    return content.parts() if isinstance(content, LedgerDocument) else (content,)
