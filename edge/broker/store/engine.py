"""The store on any medium: its parts, and who does what. All of it runs on the event loop's thread."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from typing import Generic, TypeVar

from bridge.message import Run, Stored
from edge.broker.store.commits import GroupCommits
from edge.broker.store.crash_losses import CrashLosses
from edge.broker.store.cursors import record_of
from edge.broker.store.epochs import Epochs
from edge.broker.store.errors import StoreError
from edge.broker.store.limits import TEXT_BYTES_MAX, Limits
from edge.broker.store.log_cache import LogCache
from edge.broker.store.log_reads import LogReads
from edge.broker.store.logs import check_text, free_name
from edge.broker.store.medium import Medium, Post, ReadDone
from edge.broker.store.meter import Meter
from edge.broker.store.records import CursorRecord, LedgerEntry, LogInfo, Loss, StoreInfo, StoreTotals
from edge.broker.store.removals import Removals
from edge.broker.store.reservation import SPILLS_LOG
from edge.broker.store.rings import MemoryRings
from edge.broker.store.tables import Tables
from edge.broker.store.ticket import Ticket

logger = logging.getLogger(__name__)

M = TypeVar("M", bound=Medium)


class StoreEngine(Generic[M]):
    """See `contract.Store` for what each method promises."""

    def __init__(self, tables: Tables, medium: M, *, post: Post, clock: Callable[[], float], limits: Limits) -> None:
        """`tables` are as the medium has them; `clock`: seconds, monotonic, the same for every process of one boot of
        the machine. Raises StoreError, or ValueError when the medium's reservations are damaged."""
        self.medium = medium
        self._clock = clock
        self._gatherer, self._logs, self._cursors = tables.gatherer, tables.logs, tables.cursors
        self._counters, self._ledger = tables.counters, tables.ledger
        self._memory = MemoryRings(limits, tables, medium.sequences_of, clock)
        self._rings = self._memory.rings
        self._crash = CrashLosses(limits, tables, medium)
        self._reads = LogReads(limits, self._logs, medium, post=post, clock=clock)
        self._commits = GroupCommits(
            tables,
            medium,
            rings=self._memory,
            crash=self._crash,
            removals=Removals(limits, self._logs, self._cursors),
            cache=LogCache(limits, self._logs, self._cursors, self._gatherer),
            reads=self._reads,
            post=post,
            clock=clock,
            limits=limits,
        )
        self.commit_listeners = self._commits.listeners
        self._closed = False

    # --- logs and cursors -------------------------------------------------------------------------------------

    def log(self, name: str) -> int:
        state = self._logs.find(name)
        if state is None:
            state = self._logs.make(name)
            self._gatherer.open.new_logs.append(state.log)
            self._gatherer.open.urgent = True
        return state.log

    def find_log(self, name: str) -> int | None:
        return self._logs.number(name)

    def log_name(self, log: int) -> str:
        return self._logs.name(log)

    def free_log(self, log: int) -> bool:
        state, gatherer = self._logs[log], self._gatherer
        cursors = self._cursors.of(state)
        empty = all(cursor.progress.position >= state.next for cursor in cursors)
        if not empty or state.ring is not None or gatherer.is_writing(log):
            return False
        for cursor in cursors:
            self._cursors.drop(cursor.cursor)
        self._logs.free(state)
        gatherer.delay(log, 0)
        gatherer.open.freed.add(log)
        gatherer.open.urgent = True
        return True

    def backlog(self, cursor: int) -> int:
        return self._cursors.backlog(cursor)

    def delay(self, log: int, delay_s: float) -> None:
        self._gatherer.delay(log, delay_s)

    def keep_in_memory(self, log: int, *, keep: bool) -> None:
        if keep:
            self._memory.enter(self._logs[log])
        elif log in self._rings:
            self._memory.leave(self._rings[log])

    def account_for_lost(self) -> None:
        self._crash.account()

    def bounds(self, log: int) -> tuple[int, int]:
        return self._logs.bounds(log)

    def open_cursor(self, name: str, log: int, position: int) -> int:
        number = self._cursors.number(name, log)
        if number is not None:
            return number
        self._memory.settle()
        return self._cursors.open(name, self._logs[log], position)

    def cursor(self, cursor: int) -> CursorRecord:
        return self._cursors.use(cursor)

    def cursor_name(self, cursor: int) -> str:
        return self._cursors.name(cursor)

    def cursors(self, but: str = "") -> Sequence[CursorRecord]:
        return [record_of(row, self._logs) for row in self.medium.cursors() if row.name != but]

    def drop_cursor(self, cursor: int) -> None:
        self._cursors.drop(cursor)

    def cursors_named(self, name: str) -> Sequence[CursorRecord]:
        return self._cursors.named(name)

    def rest_cursor(self, cursor: int) -> bool:
        return self._cursors.rest(cursor)

    def pass_cursors(self, log: int, cursors: Iterable[int], position: int) -> None:
        self._cursors.pass_all(log, cursors, position)

    def set_filter(self, cursor: int, wants: Callable[[Run], bool]) -> None:
        self._cursors.set_filter(cursor, wants)

    def set_filters(self, wants_of: Callable[[str], Callable[[Run], bool] | None]) -> None:
        self._cursors.set_filters(wants_of)

    def acknowledge(self, cursor: int, first: int, last: int) -> None:
        self._cursors.acknowledge(cursor, first, last)

    def confirm(self, cursor: int) -> Ticket | None:
        return self._cursors.confirm(cursor)

    def move_with_each_commit(self, cursor: int) -> None:
        self._gatherer.moving_with_each.add(cursor)

    def give_up(self, cursor: int, first: int, last: int, losses: Sequence[Loss], *, if_kept: bool = False) -> Ticket:
        return self._cursors.give_up(cursor, first, last, losses, if_kept=if_kept)

    def record_losses(self, losses: Sequence[Loss]) -> Ticket:
        group = self._gatherer.open
        group.losses += losses
        group.urgent = True
        return group.ticket

    # --- messages and state -----------------------------------------------------------------------------------

    def append(self, log: int, run: Run) -> Ticket | Stored:
        if self._closed:
            raise StoreError("the store is closed")
        if not (run.address.isascii() and run.device.isascii() and len(run.address) + len(run.device) < TEXT_BYTES_MAX):
            check_text("address", run.address)
            check_text("device", run.device)
        size = sum(map(len, run.bodies))
        if self._rings and (ring := self._rings.get(log)) is not None and not ring.leaving:
            return self._memory.append(ring, run, size)
        return self._gatherer.append(log, run, size)

    def append_all(self, log: int, runs: Sequence[Run], size: int) -> Ticket:
        if self._closed:
            raise StoreError("the store is closed")
        for run in runs:
            if (
                not (run.address.isascii() and run.device.isascii())
                or len(run.address) + len(run.device) >= TEXT_BYTES_MAX
            ):
                check_text("address", run.address)
                check_text("device", run.device)
        return self._gatherer.append_all(log, runs, size)

    def in_memory(self, log: int) -> bool:
        ring = self._rings.get(log)
        return ring is not None and not ring.leaving

    def read(self, log: int, position: int, bytes_max: int, done: ReadDone) -> None:
        self._reads.read(log, position, bytes_max, done)

    def put(self, kind: str, key: str, value: bytes) -> Ticket:
        return self._gatherer.put(kind, key, value)

    def delete(self, kind: str, key: str) -> Ticket:
        return self._gatherer.delete(kind, key)

    def get(self, kind: str, key: str) -> bytes | None:
        found, value = self._gatherer.find(kind, key)
        return value if found else self.medium.value(kind, key)

    def items(self, kind: str) -> Iterator[tuple[str, bytes]]:
        put, committed = self._gatherer.put_of(kind), self.medium.items(kind)
        if not put:
            return committed
        kept = (item for item in committed if item[0] not in put)
        return merge(kept, sorted((key, value) for key, value in put.items() if value is not None))

    # --- room -------------------------------------------------------------------------------------------------

    def evict(self, log: int, size: int, at_most: int | None = None) -> None:
        self._give_way(self._gatherer.evict, log, size, at_most)

    def thin(self, log: int, size: int, at_most: int | None = None) -> None:
        self._give_way(self._gatherer.thin, log, size, at_most)

    def _give_way(
        self, of_medium: Callable[[int, int, int | None], None], log: int, size: int, at_most: int | None
    ) -> None:
        """What is on the medium is older than what is in memory, and goes first."""
        ring = self._rings.get(log)
        if ring is not None:
            kept = min(size, max(0, self.log_bytes(log) - ring.size))
            size, rest = kept, size - kept
            if rest:
                self._memory.give_way(ring, rest, None if at_most is None else at_most - kept)
        if size or ring is None:
            of_medium(log, size, at_most)

    def log_bytes(self, log: int) -> int:
        self._memory.settle()
        return max(0, self._logs.kept_bytes(log) + self._gatherer.bytes_of(log))

    def holding(self) -> Iterator[tuple[int, str]]:
        return self._logs.holding()

    def meter(self, log: int, meter: Meter | None) -> bool:
        return self._logs.set_meter(log, meter)

    def meter_of(self, log: int) -> Meter | None:
        return self._logs.meter_of(log)

    def metered_bytes(self, meter: Meter) -> int:
        self._memory.settle()
        mine = (log for log in self._gatherer.changing if self._logs.meter_of(log) is meter)
        return meter.bytes + sum(self.log_bytes(log) - self._logs.kept_bytes(log) for log in mine)

    def metered(self, meter: Meter) -> Iterator[int]:
        return self._logs.metered(meter)

    def largest(self, meter: Meter, count: int) -> Sequence[int]:
        return self._logs.largest(meter, count)

    def free_bytes(self) -> int | None:
        return self.medium.free_bytes()

    def losses(self, after: int, entries_max: int, subscriptions: str = "") -> Sequence[LedgerEntry]:
        entries = self.medium.ledger(after, entries_max, subscriptions)
        if entries:
            self._ledger.read_up_to(entries[-1].entry, subscriptions)
        return entries

    def lost(self, subscriptions: str) -> Mapping[str, Mapping[str, int]]:
        return self.medium.lost(subscriptions)

    # --- lineage ----------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> str:
        return self.medium.epochs.current

    @property
    def epochs(self) -> Epochs:
        return self.medium.epochs

    @property
    def openings(self) -> Sequence[str]:
        return self.medium.openings

    def opening_ends(self) -> Iterator[Mapping[int, int] | None]:
        return self.medium.opening_ends()

    def sequences(self) -> Iterator[tuple[str, int]]:
        return iter({**dict(self.medium.sequences()), **self._counters.known}.items())

    @property
    def reached(self) -> Mapping[int, int]:
        return {SPILLS_LOG: self._counters.spills} if self._counters.spills else {}

    def fork(self, shared: str) -> None:
        ends = self.medium.ends_after(shared)
        since = {log: ends.get(log, 0) for log in range(1, len(self._logs) + 1)}
        self._begin_epoch(since, "the hub knows of a later opening")

    def begin_epoch(self) -> None:
        """What comes from now on is of a new epoch, as somebody knows that this is an older copy. Raises StoreError."""
        self._begin_epoch({}, "by command")

    def _begin_epoch(self, since: Mapping[int, int], why: str) -> None:
        """`since`: by log, the position from which on messages are of the new epoch, too."""
        starts = dict(self.sequences())
        for log, end in since.items():
            for address, sequence in self._appended_since(log, end):
                starts[address] = min(starts.get(address, sequence), sequence)
        self.medium.begin_epoch(starts, why)

    def _appended_since(self, log: int, end: int) -> Iterator[tuple[str, int]]:
        yield from self.medium.appended_since(log, end)
        ring = self._rings.get(log)
        for kept in ring.runs if ring is not None else ():
            if kept.stored.position >= end:
                yield kept.stored.run.address, kept.stored.sequence

    # --- commits ----------------------------------------------------------------------------------------------

    @property
    def pending_bytes(self) -> int:
        return self._gatherer.pending_bytes + self._memory.waiting_bytes

    @property
    def committing(self) -> bool:
        return self._gatherer.sealed is not None

    @property
    def moves_kept(self) -> int:
        return self._commits.moves_kept

    @property
    def gathered(self) -> int:
        return len(self._gatherer.open.runs)

    @property
    def entered(self) -> Mapping[str, int]:
        """How often something was entered into the loss ledger since the start, by reason."""
        return self._ledger.entered

    def due_in(self) -> float | None:
        return self._commits.due_in()

    def flush(self) -> bool:
        return self._commits.flush()

    # --- the whole --------------------------------------------------------------------------------------------

    def info(self) -> StoreInfo:
        self._memory.settle()
        logs = [LogInfo(*row) for row in self._logs.rows() if row.name != free_name(row.log)]
        cursors = list(self._cursors.infos())
        messages, size = sum(log.next - log.first for log in logs), sum(log.bytes for log in logs)
        files = self.medium.file_bytes()
        return StoreInfo(self.epoch, messages, size, files, self.pending_bytes, self._memory_bytes, logs, cursors)

    @property
    def _memory_bytes(self) -> int:
        return sum(ring.size for ring in self._rings.values())

    def totals(self) -> StoreTotals:
        self._memory.settle()
        return StoreTotals(self._logs.messages, self._logs.bytes, self.medium.file_bytes(), self._memory_bytes)

    def close(self) -> None:
        if self._closed:
            return
        try:
            self._commits.close()
        finally:
            self._closed = True
            self._gatherer.close()
            self._reads.close()
            self.medium.close()
