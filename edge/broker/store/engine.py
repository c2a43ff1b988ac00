"""The store on any medium: its parts, and the way of a group from gathering to the end of its commit.

All of it runs on the event loop's thread. The rule that keeps this right: a group holds *new* values; the store's own
are changed only when the group's commit succeeded, in `_finish`.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, Self, TypeVar

from bridge.message import Run, Stored
from edge.broker.store.buffer import MemoryBuffer
from edge.broker.store.counters import Counters
from edge.broker.store.crash import CrashLosses
from edge.broker.store.cursors import CursorTable, cursor_states
from edge.broker.store.epochs import Epochs
from edge.broker.store.errors import StoreError
from edge.broker.store.gathering import Gatherer
from edge.broker.store.group import Group, Outcome
from edge.broker.store.ledger import OpenLedger
from edge.broker.store.limits import POSITION_MAX, TEXT_BYTES_MAX, Limits
from edge.broker.store.logs import LogTable, check_text
from edge.broker.store.medium import Medium, Post, ReadDone
from edge.broker.store.reading import LogReads
from edge.broker.store.records import Committed, CursorInfo, CursorRecord, LedgerEntry, LogInfo, Loss, StoreInfo
from edge.broker.store.removals import Removals
from edge.broker.store.reservation import MEMORY, unpack_range
from edge.broker.store.spilling import Spiller
from edge.broker.store.ticket import Ticket

logger = logging.getLogger(__name__)

M = TypeVar("M", bound=Medium)


@dataclass(frozen=True, slots=True)
class Tables:
    """What a store keeps in memory of its medium: loaded from there when it is opened."""

    gatherer: Gatherer
    logs: LogTable
    cursors: CursorTable
    counters: Counters
    ledger: OpenLedger

    @classmethod
    def empty(cls, limits: Limits, clock: Callable[[], float]) -> Self:
        gatherer, logs = Gatherer(limits, clock), LogTable()
        return cls(gatherer, logs, CursorTable(logs, gatherer), Counters(limits, logs), OpenLedger(limits))


class StoreEngine(Generic[M]):
    """See `contract.Store` for what each method promises."""

    def __init__(self, tables: Tables, medium: M, *, post: Post, clock: Callable[[], float], limits: Limits) -> None:
        """`tables` are as the medium has them; `clock`: seconds, monotonic, the same for every process of one boot of
        the machine. Raises StoreError, or ValueError when the medium's reservations are damaged."""
        self.medium = medium
        self.commit_listeners: list[Callable[[Committed], None]] = []
        self._post = post
        self._clock = clock
        self._limits = limits
        self._gatherer, self._logs, self._cursors = tables.gatherer, tables.logs, tables.cursors
        self._counters, self._ledger = tables.counters, tables.ledger
        self._removals = Removals(limits, self._logs, self._cursors)
        self._buffer = MemoryBuffer(limits, self._logs, self._cursors, self._counters, self._gatherer)
        self._spiller = Spiller(limits, self._logs, self._cursors, self._counters, self._gatherer, self._buffer)
        reserved = [unpack_range(key, value) for key, value in medium.items(MEMORY)]
        self._crash = CrashLosses(
            limits, self._logs, self._cursors, self._gatherer, reserved, medium.written_end, medium.ledger
        )
        self._reads = LogReads(limits, self._logs, medium, post=post, clock=clock)
        self._closing = self._closed = False
        self._refused: int | None = None
        """Messages since commits began to fail: one line for each trouble, not for each commit."""
        self._lazy_since_s: float | None = None
        """Since when something waits for company."""
        self._retry_at_s = 0.0
        self._moves_kept = 0

    # --- logs and cursors -------------------------------------------------------------------------------------

    def log(self, name: str) -> int:
        number = self._logs.number(name)
        if number is None:
            number = self._logs.make(name).log
            self._gatherer.open.new_logs.append(number)
            self._gatherer.open.urgent = True
        return number

    def delay(self, log: int, delay_s: float) -> None:
        self._gatherer.delay(log, delay_s)

    def keep_in_memory(self, log: int, *, keep: bool) -> None:
        state = self._logs[log]
        if state.buffer is not None:  # its addresses may have moved: their numbers are free again
            self._buffer.leave(state.buffer, returns=keep)
        elif keep:
            try:
                written = self.medium.written_end(log, POSITION_MAX)
            except StoreError as error:
                logger.warning("log %r is not kept in memory but written, as it cannot be read: %s", state.name, error)
                return
            self._buffer.add(state, max(written, self._crash.filled_to(log)))

    def account_for_lost(self) -> None:
        self._crash.account()

    def bounds(self, log: int) -> tuple[int, int]:
        state = self._logs[log]
        return state.first, state.next

    def open_cursor(self, name: str, log: int, position: int) -> int:
        state = self._logs[log]
        if state.buffer is not None:
            position = max(position, self._buffer.kept_from(state))  # what went before was never written
        return self._cursors.open(name, state, position)

    def cursor(self, cursor: int) -> CursorRecord:
        return self._cursors[cursor].record()

    def cursors(self) -> Sequence[CursorRecord]:
        return [state.record() for state in cursor_states(self.medium.cursors(), self._logs)]

    def drop_cursor(self, cursor: int) -> None:
        self._cursors.drop(cursor)

    def set_filter(self, cursor: int, wants: Callable[[Run], bool]) -> None:
        self._cursors.set_filter(cursor, wants)

    def acknowledge(self, cursor: int, first: int, last: int) -> None:
        self._cursors.acknowledge(cursor, first, last)

    def give_up(self, cursor: int, first: int, last: int, losses: Sequence[Loss], *, if_kept: bool = False) -> Ticket:
        return self._cursors.give_up(cursor, first, last, losses, if_kept=if_kept)

    # --- messages and state -----------------------------------------------------------------------------------

    def append(self, log: int, run: Run) -> Ticket | Stored:
        if self._closed:
            raise StoreError("the store is closed")
        if not (run.address.isascii() and run.device.isascii() and len(run.address) + len(run.device) < TEXT_BYTES_MAX):
            check_text("address", run.address)
            check_text("device", run.device)
        size = sum(map(len, run.bodies))
        if self._buffer.logs and (buffered := self._buffer.logs.get(log)) is not None:
            stored = self._buffer.take(buffered, run, size, self._clock())
            if stored is not None:
                return stored
        return self._gatherer.append(log, run, size)

    def read(self, log: int, position: int, bytes_max: int, done: ReadDone) -> None:
        self._reads.read(log, position, bytes_max, done)

    def put(self, kind: str, key: str, value: bytes) -> Ticket:
        return self._gatherer.put(kind, key, value)

    def delete(self, kind: str, key: str) -> Ticket:
        return self._gatherer.delete(kind, key)

    def items(self, kind: str) -> Iterator[tuple[str, bytes]]:
        return self.medium.items(kind)

    # --- room -------------------------------------------------------------------------------------------------

    def evict(self, log: int, size: int, at_most: int | None = None) -> None:
        self._gatherer.evict(log, size, at_most)

    def thin(self, log: int, size: int, at_most: int | None = None) -> None:
        self._gatherer.thin(log, size, at_most)

    def log_bytes(self, log: int) -> int:
        state = self._logs[log]
        return max(0, state.bytes + self._gatherer.bytes_of(log) + self._buffer.bytes_of(state))

    def free_bytes(self) -> int | None:
        return self.medium.free_bytes()

    def losses(self, after: int, entries_max: int, subscriptions: str = "") -> Sequence[LedgerEntry]:
        entries = self.medium.ledger(after, entries_max, subscriptions)
        if entries:
            self._ledger.read_up_to(entries[-1].entry, subscriptions)
        return entries

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

    def sequences(self) -> Iterator[tuple[str, int]]:
        return iter({**dict(self.medium.sequences()), **self._counters.sequences}.items())

    def fork(self, shared: str) -> None:
        ends = self.medium.ends_after(shared)
        since = {state.log: ends.get(state.log, 0) for state in self._logs}
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
        buffer = self._logs[log].buffer
        for buffered in buffer.runs if buffer is not None else ():
            if buffered.stored.position >= end:
                yield buffered.stored.run.address, buffered.stored.sequence

    # --- commits ----------------------------------------------------------------------------------------------

    @property
    def pending_bytes(self) -> int:
        return self._gatherer.pending_bytes

    @property
    def committing(self) -> bool:
        return self._gatherer.sealed is not None

    @property
    def moves_kept(self) -> int:
        return self._moves_kept

    @property
    def gathered(self) -> int:
        return len(self._gatherer.open.runs)

    def due_in(self) -> float | None:
        due_at_s = self._gatherer.open.due_at_s
        if due_at_s is None or self._gatherer.sealed is not None:
            return None
        return max(0.0, due_at_s - self._clock())

    def flush(self) -> bool:
        if self._gatherer.sealed is not None or self._closing:
            return False
        now, waiting, group = self._clock(), self._waiting, self._gatherer.open
        self._reads.retry(now)
        if not waiting:
            self._lazy_since_s = None
        elif self._lazy_since_s is None:
            self._lazy_since_s = now
        if self._buffer.logs:
            self._buffer.look(now)
        may_retry = now >= self._retry_at_s
        spill_due = may_retry and bool(self._buffer.due or self._buffer.low)
        batch_due = group.due_at_s is not None and now >= group.due_at_s
        lazy_due = waiting and may_retry and (self._lazy_over(now) or self._removals.unfinished)
        if not (group.urgent or batch_due or lazy_due or spill_due):
            return False
        self._start(now, with_moves=lazy_due or batch_due, last=False)
        return True

    @property
    def _waiting(self) -> bool:
        return self._gatherer.waits or bool(self._logs.to_reclaim)

    def _lazy_over(self, now: float) -> bool:
        """What can wait has waited."""
        logs = (self._cursors[cursor].log.log for cursor in self._gatherer.moved)
        return self._lazy_since_s is not None and now >= self._lazy_since_s + self._gatherer.moves_delay_s(logs)

    def _start(self, now: float, *, with_moves: bool, last: bool) -> None:
        """Seal the open group and hand it to the medium. `last`: before closing."""
        group = self._gatherer.seal(now, last=last)
        try:
            self._counters.number(group, self.medium.sequences_of)
            if self._buffer.logs:
                self._spiller.choose(group, now)
            if self._crash.pending:
                self._crash.join(group)
            self._counters.count(group)
            self._spiller.reserve(group)
            self._removals.choose(group)
            if with_moves or group.reclaims or group.spills or group.filled:
                group.moved |= self._gatherer.moved
                self._gatherer.moved = set()
                self._lazy_since_s = None
            group.cursor_rows = self._cursors.rows(group)
            self.medium.commit(group, partial(self._finish, group))
        except (StoreError, struct.error, OverflowError, UnicodeError) as error:
            failure = error if isinstance(error, StoreError) else StoreError(f"a message cannot be stored: {error}")
            group.outcome = Outcome(failure)
            group.done.set()
            self._post(partial(self._finish, group))

    def _finish(self, group: Group) -> None:
        """The commit of `group` is over; runs once, on the loop's thread."""
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
            if group.spills:
                group.appended += self._buffer.take_waiting(self._clock())
            self._tell(Committed(group.appended, None, bool(group.outcome.entries.added)))
        else:
            if self._refused is None:
                logger.error("%s; messages are refused until commits succeed again", error)
            self._refused = (self._refused or 0) + sum(len(run) for _, run in group.runs)
            self._failed(group)
            self._tell(Committed((), error))

    def _tell(self, commit: Committed) -> None:
        for listener in self.commit_listeners:
            listener(commit)

    def _succeeded(self, group: Group, outcome: Outcome) -> None:
        self.medium.committed(group)
        for log, end in group.ends.items():
            state = self._logs[log]
            state.next = end
            state.bytes += group.sizes[log]
        for spill in group.spills:
            self._spiller.committed(spill)
        self._crash.committed(group)
        self._retry_at_s = 0.0
        self._moves_kept += bool(group.moved)
        self._ledger.kept(outcome.entries)
        self._cursors.committed(group)
        self._counters.committed(group, self._buffer.reservations)
        self._removals.committed(outcome)

    def _failed(self, group: Group) -> None:
        """Give up what was appended; keep the rest for the next group."""
        self._gatherer.failed(group, self._cursors)
        self._spiller.failed(group)
        self._removals.failed(group)
        self._lazy_since_s = self._clock()
        self._retry_at_s = self._lazy_since_s + self._limits.retry_delay_s

    # --- the whole --------------------------------------------------------------------------------------------

    def info(self) -> StoreInfo:
        logs = [
            LogInfo(s.log, s.name, self._buffer.kept_from(s), s.next, s.bytes + self._buffer.bytes_of(s))
            for s in self._logs
        ]
        cursors = [
            CursorInfo(s.cursor, s.name, s.log.log, s.progress.position, s.progress.backlog(s.log.next))
            for s in self._cursors
        ]
        messages, size = sum(log.next - log.first for log in logs), sum(log.bytes for log in logs)
        memory = sum(buffered.size for buffered in self._buffer.logs.values())
        files = self.medium.file_bytes()
        return StoreInfo(self.epoch, messages, size, files, self.pending_bytes, memory, logs, cursors)

    def close(self) -> None:
        if self._closed:
            return
        self._closing = True  # what a listener flushes from here on is in the last group
        self._wait()
        group = self._gatherer.open
        waiting = group.urgent or group.runs or self._waiting or self._buffer.logs
        if waiting or self._counters.lag or self.medium.last_words:
            self._start(self._clock(), with_moves=True, last=True)
            self._wait()
        self._closed = True
        self._gatherer.close()
        self._reads.close()
        self.medium.close()

    def _wait(self) -> None:
        """Block until the running commit is over, and finish it here."""
        group = self._gatherer.sealed
        if group is not None:
            group.done.wait()
            self._finish(group)
