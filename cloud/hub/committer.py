"""The committer: gathers what gateways send and lands it, one landing at a time, on a thread of its own.

The loop's thread gathers and answers; the landing's thread does everything that touches a disk (registry and lake), so
the loop stays responsive whatever the disk does. One *group* is one turn of that thread: connections that came and
went, ledger ranges (first: they explain what will not come), batches, states. An answer leaves only after its group
is done. While the disk refuses, groups are kept and tried again, and nothing is answered: the gateways' credit runs
out, and they wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from cloud.hub.limits import SEEN_EVERY_S, STATUS_EVERY_S, STATUS_ROWS_MAX
from cloud.hub.registry import Registry
from cloud.lake.commits import RegistryError
from cloud.lake.landing import Landed, Landing, LedgerRange
from cloud.lake.limits import (
    LANDING_BYTES_MAX,
    LANDING_ROWS_MAX,
    QUIET_BYTES_MIN,
    QUIET_MS,
    RETRY_S_FIRST,
    RETRY_S_MAX,
)
from cloud.lake.rows import ReceivedBatch
from cloud.lake.tables import LakeError

log = logging.getLogger(__name__)

T = TypeVar("T")


class Verdict(enum.Enum):
    """What became of something put in."""

    LANDED = "landed"
    """On disk: acknowledge it."""
    STALE = "stale"
    """Its gateway has a newer connection: release it."""
    OLDER = "older"
    """The hub has seen a later life of the gateway's store."""
    POISON = "poison"
    """It cannot be written although the lake works: refuse it."""


Answer = Callable[[Verdict], None]
"""Called on the loop's thread, at most once; never when the gateway has gone before."""


LineageAnswer = Callable[[Verdict, str], None]
"""As `Answer`, with the last opening that gateway and hub both know, or an empty text."""


@dataclass(slots=True, eq=False)
class Session:
    """One connection of one gateway. `generation` is 0 until the registry has given it."""

    tenant: str
    gateway: str
    remote: str
    generation: int = 0

    @property
    def key(self) -> tuple[str, str]:
        return (self.tenant, self.gateway)


@dataclass(slots=True)
class Group:
    """What one turn of the landing's thread takes."""

    visits: list[tuple[Session, bool, int]] = field(default_factory=list)
    """(session, connected or gone, UTC microseconds), in order."""
    batches: list[tuple[Session, ReceivedBatch, Answer]] = field(default_factory=list)
    ledger: list[tuple[Session, Sequence[LedgerRange], Answer]] = field(default_factory=list)
    lineages: list[tuple[Session, str, Sequence[str], LineageAnswer]] = field(default_factory=list)
    """(session, epoch, openings, answer)."""
    states: list[Mapping[str, Any]] = field(default_factory=list)
    seen: dict[tuple[str, str], int] = field(default_factory=dict)
    size: int = 0
    rows: int = 0

    def measure(self) -> None:
        """Set `size` (bytes) and `rows` (messages) from the batches."""
        self.size = sum(received.batch.size for _, received, _ in self.batches)
        self.rows = sum(len(received.batch) for _, received, _ in self.batches)


@dataclass(slots=True)
class Report:
    """What a turn did, for the metrics."""

    landed: Landed
    seconds: float
    """Of the landing of batches; 0 when there were none."""
    ledger_ranges: int
    states: int
    stale: set[Session]
    poison: list[ReceivedBatch]
    older: dict[Session, str]
    """Gateways with an older copy of their store, with the last opening both know."""
    versions: dict[str, int]


class Committer:
    """Gathers and lands. All methods but `_land` are for the loop's thread."""

    def __init__(
        self,
        registry: Registry,
        landing: Landing,
        *,
        gather_ms: int,
        on_report: Callable[[Group, Report], None],
        now_us: Callable[[], int] = lambda: time.time_ns() // 1_000,
    ) -> None:
        """`on_report` is called on the loop's thread after each group, before its answers."""
        self._registry = registry
        self._landing = landing
        self._gather_s = gather_ms / 1_000
        self._on_report = on_report
        self._now_us = now_us
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="landing")
        self._open = Group()
        self._work = asyncio.Event()
        self._arrived = asyncio.Event()
        self._closing = asyncio.Event()
        self._states_due = self._seen_due = 0.0
        self._in_flight_bytes = self._in_flight_rows = 0
        self._retry_s = 0.0
        self._task = self._loop.create_task(self._run(), name="committer")

    # --- what the service puts in ---------------------------------------------------------------------------------

    @property
    def pending_bytes(self) -> int:
        """Bytes gathered or being landed."""
        return self._open.size + self._in_flight_bytes

    @property
    def pending_rows(self) -> int:
        """Messages gathered or being landed."""
        return self._open.rows + self._in_flight_rows

    @property
    def failing(self) -> bool:
        """True while the lake or the registry refuses landings."""
        return self._retry_s > 0

    def connect(self, session: Session) -> None:
        """A gateway has connected; every older connection of it is fenced off from here on."""
        self._open.visits.append((session, True, self._now_us()))
        self._work.set()

    def disconnect(self, session: Session) -> None:
        """That connection is gone; what it left gathered will come again, and is dropped."""
        group = self._open
        group.visits.append((session, False, self._now_us()))
        group.batches = [entry for entry in group.batches if entry[0] is not session]
        group.ledger = [entry for entry in group.ledger if entry[0] is not session]
        group.lineages = [entry for entry in group.lineages if entry[0] is not session]
        group.measure()
        self._work.set()

    def put(self, session: Session, received: ReceivedBatch, answer: Answer) -> None:
        """Land a batch."""
        group = self._open
        group.batches.append((session, received, answer))
        group.size += received.batch.size
        group.rows += len(received.batch)
        self._work.set()
        self._arrived.set()

    def put_ledger(self, session: Session, ranges: Sequence[LedgerRange], answer: Answer) -> None:
        """Land ledger ranges."""
        self._open.ledger.append((session, ranges, answer))
        self._work.set()

    def put_lineage(self, session: Session, epoch: str, openings: Sequence[str], answer: LineageAnswer) -> None:
        """Compare a gateway's store with what is known of it, and remember it."""
        self._open.lineages.append((session, epoch, openings, answer))
        self._work.set()

    def put_state(self, row: Mapping[str, Any]) -> None:
        """Land a row of `gateway_status`, within `STATUS_EVERY_S`."""
        states = self._open.states
        if len(states) >= STATUS_ROWS_MAX:
            del states[: STATUS_ROWS_MAX // 10]
        states.append(row)
        if len(states) == 1:
            self._states_due = self._loop.time() + STATUS_EVERY_S
            self._loop.call_later(STATUS_EVERY_S, self._work.set)

    def heard(self, key: tuple[str, str]) -> None:
        """A (tenant, gateway) has been heard of now."""
        seen = self._open.seen
        if not seen:
            self._seen_due = self._loop.time() + SEEN_EVERY_S
            self._loop.call_later(SEEN_EVERY_S, self._work.set)
        seen[key] = self._now_us()

    async def read(self, query: Callable[[Registry], T]) -> T:
        """Ask the registry something, on its thread; raises `RegistryError`."""
        return await self._loop.run_in_executor(self._thread, query, self._registry)

    async def close(self) -> None:
        """Land what has been gathered, answer it, and stop. Nothing may be put in afterwards."""
        self._closing.set()
        self._work.set()
        self._arrived.set()
        await self._task
        self._thread.shutdown()

    # --- the loop -------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await self._work.wait()
            if self._open.batches:
                await self._gather()
            closing = self._closing.is_set()
            self._work.clear()
            await self._turn(self._take(everything=closing))
            if closing:
                return

    async def _gather(self) -> None:
        """Wait for company: until the time, the size, or bulk and then quiet."""
        deadline = self._loop.time() + self._gather_s
        while not self._closing.is_set():
            group = self._open
            left = deadline - self._loop.time()
            if left <= 0 or group.size >= LANDING_BYTES_MAX or group.rows >= LANDING_ROWS_MAX:
                return
            self._arrived.clear()
            bulk = group.size >= QUIET_BYTES_MIN
            try:
                async with asyncio.timeout(min(left, QUIET_MS / 1_000) if bulk else left):
                    await self._arrived.wait()
            except TimeoutError:
                return

    def _take(self, *, everything: bool) -> Group:
        """Cut off the next group: everything, but no more batches than one landing takes."""
        group, self._open = self._open, Group()
        now = self._loop.time()
        if not everything:
            if now < self._states_due:
                self._open.states, group.states = group.states, []
            if now < self._seen_due:
                self._open.seen, group.seen = group.seen, {}
            self._leave_surplus(group)
        self._in_flight_bytes, self._in_flight_rows = group.size, group.rows
        return group

    def _leave_surplus(self, group: Group) -> None:
        size = rows = taken = 0
        for _, received, _ in group.batches:
            size += received.batch.size
            rows += len(received.batch)
            if taken and (size > LANDING_BYTES_MAX or rows > LANDING_ROWS_MAX):
                break
            taken += 1
        self._open.batches = group.batches[taken:]
        if self._open.batches:
            del group.batches[taken:]
            self._open.measure()
            group.measure()
            self._work.set()

    async def _turn(self, group: Group) -> None:
        try:
            report = await self._loop.run_in_executor(self._thread, self._land, group)
        except (LakeError, RegistryError) as error:
            await self._failed(group, str(error))
            return
        except Exception as error:
            log.exception("landing met a fault of our own")
            await self._failed(group, repr(error))
            return
        if self.failing:
            log.info("landing works again")
            self._retry_s = 0.0
        self._in_flight_bytes = self._in_flight_rows = 0
        self._on_report(group, report)
        for session, _, _, told in group.lineages:
            verdict = Verdict.OLDER if session in report.older else Verdict.LANDED
            told(Verdict.STALE if session in report.stale else verdict, report.older.get(session, ""))
        for session, _, answer in group.ledger:
            answer(Verdict.STALE if session in report.stale else Verdict.LANDED)
        for session, received, answer in group.batches:
            if session in report.stale:
                answer(Verdict.STALE)
            else:
                answer(Verdict.POISON if received in report.poison else Verdict.LANDED)

    async def _failed(self, group: Group, why: str) -> None:
        """Put the group back in front of what has come since, and wait."""
        if not self.failing:
            log.error("landing fails, nothing is acknowledged until it works again: %s", why)
        self._retry_s = min(max(RETRY_S_FIRST, self._retry_s * 2), RETRY_S_MAX)
        self._in_flight_bytes = self._in_flight_rows = 0
        later = self._open
        gone = {session for session, connected, _ in later.visits if not connected}
        later.visits[:0] = group.visits
        later.batches[:0] = [entry for entry in group.batches if entry[0] not in gone]
        later.lineages[:0] = [entry for entry in group.lineages if entry[0] not in gone]
        later.ledger[:0] = [entry for entry in group.ledger if entry[0] not in gone]
        later.states[:0] = group.states[: max(0, STATUS_ROWS_MAX - len(later.states))]
        later.seen = {**group.seen, **later.seen}
        later.measure()
        self._work.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._retry_s):
                await self._closing.wait()

    # --- the landing's thread -------------------------------------------------------------------------------------

    def _land(self, group: Group) -> Report:
        for session, connected, when_us in group.visits:
            if not connected:
                self._registry.disconnect(*session.key, session.generation, when_us)
            elif session.generation == 0:
                session.generation = self._registry.connect(*session.key, session.remote, when_us)
        now_us = self._now_us()
        senders = [*(entry[0] for entry in group.lineages), *(entry[0] for entry in group.ledger)]
        stale = self._stale({*senders, *(entry[0] for entry in group.batches)})
        older = self._compare([entry for entry in group.lineages if entry[0] not in stale])
        ledger = [entry for who, ranges, _ in group.ledger if who not in stale for entry in ranges]
        ledger_ranges = self._landing.land_ledger(ledger, now_us)
        batches = [received for who, received, _ in group.batches if who not in stale]
        started = time.perf_counter()
        landed, poison = self._land_batches(batches, now_us)
        seconds = time.perf_counter() - started if batches else 0.0
        states = len(group.states)
        self._landing.land_records("gateway_status", group.states, now_us)
        group.states = []
        if group.seen:
            self._registry.seen(group.seen)
        return Report(landed, seconds, ledger_ranges, states, stale, poison, older, self._landing.versions)

    def _compare(self, lineages: Sequence[tuple[Session, str, Sequence[str], LineageAnswer]]) -> dict[Session, str]:
        """Those whose store is an older copy of one that was seen, with the last opening both know."""
        older: dict[Session, str] = {}
        for session, epoch, openings, _ in lineages:
            shared = self._registry.lineage(*session.key, epoch, openings)
            if shared is not None:
                older[session] = shared
        return older

    def _land_batches(self, batches: list[ReceivedBatch], now_us: int) -> tuple[Landed, list[ReceivedBatch]]:
        """Land them; when that meets a fault of our own, one by one, so that one batch does not stop a fleet."""
        try:
            return self._landing.land(batches, now_us), []
        except (LakeError, RegistryError):
            raise
        except Exception:
            log.exception("a landing of %d batches cannot be written; trying each alone", len(batches))
        landed, poison = Landed(), []
        for received in batches:
            try:
                landed = landed.plus(self._landing.land([received], now_us))
            except (LakeError, RegistryError):
                raise
            except Exception:
                log.exception("gateway %s sent a batch that cannot be written; it is refused", received.gateway)
                poison.append(received)
        return landed, poison

    def _stale(self, sessions: set[Session]) -> set[Session]:
        """Sessions whose gateway has connected anew since."""
        if not sessions:
            return set()
        current = self._registry.current(session.key for session in sessions)
        return {session for session in sessions if current.get(session.key) != session.generation}
