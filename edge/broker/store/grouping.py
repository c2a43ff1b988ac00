"""The part of a store that is the same on every medium: what joins the open group, sealing it, and what its end means.

All of it runs on the event loop's thread. A medium (`SqliteStore`, `MemoryStore`) adds how a sealed group is made
durable and how it is read. The rule that keeps this right: a group holds *new* values; the store's own are changed only
when the group's commit succeeded, in `_finish`.
"""

from __future__ import annotations

import logging
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from bridge.message import Run, Stored
from edge.broker.store.contract import (
    Committed,
    CursorInfo,
    CursorRecord,
    LedgerEntry,
    LogInfo,
    StoreError,
    StoreInfo,
    Summary,
    Ticket,
)
from edge.broker.store.epochs import Epochs
from edge.broker.store.group import (
    Group,
    LogRow,
    LogState,
    Outcome,
)
from edge.broker.store.limits import POSITION_MAX, TEXT_BYTES_MAX, VALUE_BYTES_MAX, Limits
from edge.broker.store.places import check_text
from edge.broker.store.reader import FAILED
from edge.broker.store.tail import MEMORY
from edge.broker.store.tails import Tails

logger = logging.getLogger(__name__)

Reading = Callable[[Sequence[Stored]], None]
"""Takes the answer of a read."""

Post = Callable[[Callable[[], None]], object]
"""Runs a callback on the event loop's thread, soon; callable from any thread."""


class GroupingStore(Tails, ABC):
    """Gathers, seals and finishes groups (see `contract.Store` for what each method promises)."""

    def __init__(
        self, epoch: str, *, post: Post, clock: Callable[[], float], limits: Limits, summary: Summary | None
    ) -> None:
        """`clock`: seconds, monotonic, the same for every process of one boot of the machine."""
        super().__init__(limits)
        self.epochs = Epochs(epoch)
        self.commit_listeners: list[Callable[[Committed], None]] = []
        self._summary = summary
        self._post = post
        self._clock = clock
        self._closing = self._closed = False
        self._refused: int | None = (
            None  # messages since commits began to fail: one line for each trouble, not each commit
        )
        # the open group
        self._state: dict[tuple[str, str], bytes | None] = {}
        # work that can wait for company
        self._lazy_since: float | None = None
        self._retry_at = 0.0
        self._moves_kept = 0
        # reads the medium failed
        self._unread: list[tuple[int, int, int, Reading]] = []
        self._read_again_at = 0.0
        # counters the medium has not been told
        self._uncounted: dict[str, int] = {}
        self._uncounted_logs: set[int] = set()
        self._uncounted_commits = 0
        self._uncounted_bytes = 0

    @property
    def epoch(self) -> str:
        return self.epochs.current

    # --- the medium -------------------------------------------------------------------------------------------

    @abstractmethod
    def _load_sequences(self, addresses: Iterable[str]) -> dict[str, int]:
        """Counters the medium has for `addresses`; those without one are left out. Raises StoreError."""

    @abstractmethod
    def _commit(self, group: Group) -> None:
        """Start making `group` durable; sets `outcome` and `done`, then posts `_finish`. Raises StoreError."""

    def _last_words(self) -> bool:
        """True when the medium has something to say in the last commit, whatever else it holds."""
        return False

    @abstractmethod
    def _stop(self) -> None:
        """Release the medium."""

    @abstractmethod
    def _file_bytes(self) -> int:
        """Bytes of the files on the medium."""

    @abstractmethod
    def free_bytes(self) -> int | None:
        """See `contract.Store`."""

    @abstractmethod
    def cursors(self) -> Sequence[CursorRecord]:
        """See `contract.Store`."""

    @abstractmethod
    def items(self, kind: str) -> Iterator[tuple[str, bytes]]:
        """See `contract.Store`."""

    @abstractmethod
    def sequences(self) -> Iterator[tuple[str, int]]:
        """See `contract.Store`."""

    @abstractmethod
    def _read(self, log: LogState, position: int, bytes_max: int, done: Callable[[Sequence[Stored]], None]) -> None:
        """Read committed runs from `position` (at least ``log.first``) up to ``log.next``."""

    def losses(self, after: int, entries_max: int, subscriptions: str = "") -> Sequence[LedgerEntry]:
        entries = self._read_ledger(after, entries_max, subscriptions)
        if entries:
            self._ledger.read_up_to(entries[-1].entry, subscriptions)
        return entries

    # --- messages and state -----------------------------------------------------------------------------------

    def append(self, log: int, run: Run) -> Ticket | Stored:
        if self._closed:
            raise StoreError("the store is closed")
        if not (run.address.isascii() and run.device.isascii() and len(run.address) + len(run.device) < TEXT_BYTES_MAX):
            check_text("address", run.address)
            check_text("device", run.device)
        size = sum(map(len, run.bodies))
        if self._tails and log in self._tails:
            stored = self._take(self._tails[log], run, size, self._clock())
            if stored is not None:
                return stored
        self._runs.append((log, run))
        self._size += size
        self._sizes[log] = self._sizes.get(log, 0) + size
        if self._delays and log in self._delays:
            due = self._clock() + self._delays[log]
            if self._batch_due is None or due < self._batch_due:
                self._batch_due = due
            if self._size >= self._limits.batch_bytes_max:
                self._urgent = True
        else:
            self._urgent = True
        return self._ticket

    def put(self, kind: str, key: str, value: bytes) -> Ticket:
        check_text("kind", kind)
        check_text("key", key)
        if len(value) > VALUE_BYTES_MAX:
            raise StoreError(f"value of {kind} {key!r} has {len(value)} bytes, {VALUE_BYTES_MAX} are allowed")
        self._state[kind, key] = value
        self._urgent = True
        return self._ticket

    def delete(self, kind: str, key: str) -> Ticket:
        self._state[kind, key] = None
        self._urgent = True
        return self._ticket

    def read(self, log: int, position: int, bytes_max: int, done: Reading) -> None:
        state = self._logs[log]
        position = max(position, state.first)
        tail = self._tails.get(log)
        if tail is not None and position >= tail.written:
            self._post(partial(self._read_tail, log, position, bytes_max, done))
        else:
            end = state.next if tail is None else tail.written
            self._read(state, position, bytes_max, partial(self._was_read, log, position, bytes_max, done, end))

    def _read_tail(self, log: int, position: int, bytes_max: int, done: Reading) -> None:
        tail = self._tails.get(log)
        if not self._closed and (tail is None or position < tail.written):
            self.read(log, position, bytes_max, done)  # it was written meanwhile
        else:
            done([] if tail is None else tail.read(position, bytes_max))

    def _was_read(
        self, log: int, position: int, bytes_max: int, done: Reading, end: int, runs: Sequence[Stored]
    ) -> None:
        """`end`: what comes from there on was not on the medium when it was read."""
        if self._closed:
            done(runs)
        elif runs is FAILED:
            self._unread.append((log, position, bytes_max, done))
            self._read_again_at = self._clock() + self._limits.retry_delay_s
        elif not runs and self._logs[log].next > end:
            self.read(log, end, bytes_max, done)  # whoever is told of nothing takes it that nothing is there *now*
        else:
            done(runs)

    def _read_again(self, now: float) -> None:
        """What could not be read may be readable by now."""
        if now >= self._read_again_at:
            again, self._unread = self._unread, []
            for log, position, bytes_max, done in again:
                self.read(log, position, bytes_max, done)

    # --- commits ----------------------------------------------------------------------------------------------

    @property
    def pending_bytes(self) -> int:
        return self._size + (self._sealed.size if self._sealed is not None else 0)

    @property
    def committing(self) -> bool:
        return self._sealed is not None

    @property
    def moves_kept(self) -> int:
        return self._moves_kept

    @property
    def gathered(self) -> int:
        return len(self._runs)

    def log_bytes(self, log: int) -> int:
        size = self._logs[log].bytes + self._sizes.get(log, 0)
        if self._tails:
            size += self._in_memory(log)
        size -= self._evicting.get(log, 0) + self._thinning.get(log, 0)
        sealed = self._sealed
        if sealed is not None:
            size += sealed.sizes.get(log, 0) - sealed.evicting.get(log, 0) - sealed.thinning.get(log, 0)
        return max(0, size)

    def flush(self) -> bool:
        if self._sealed is not None or self._closing:
            return False
        waiting = self._waiting()
        now = self._clock()
        if self._unread:
            self._read_again(now)
        if not waiting:
            self._lazy_since = None
        elif self._lazy_since is None:
            self._lazy_since = now
        if self._tails:
            self._look(now)
        settle_due = bool(self._unsettled or self._low) and now >= self._retry_at
        batch_due = self._batch_due is not None and now >= self._batch_due
        lazy_due = waiting and now >= self._retry_at and (self._lazy_over(now) or bool(self._unfinished))
        if not (self._urgent or batch_due or lazy_due or settle_due):
            return False
        self._start(now, due=lazy_due or batch_due, last=False)
        return True

    def due_in(self) -> float | None:
        if self._batch_due is None or self._sealed is not None:
            return None
        return max(0.0, self._batch_due - self._clock())

    def info(self) -> StoreInfo:
        logs = [
            LogInfo(s.log, s.name, self._kept_from(s), s.next, s.bytes + self._in_memory(s.log))
            for s in self._logs.values()
        ]
        cursors = [
            CursorInfo(s.cursor, s.name, s.log, s.progress.position, s.progress.backlog(self._logs[s.log].next))
            for s in self._cursors.values()
        ]
        messages, size = sum(log.next - log.first for log in logs), sum(log.bytes for log in logs)
        memory = sum(tail.size for tail in self._tails.values())
        return StoreInfo(self.epoch, messages, size, self._file_bytes(), self.pending_bytes, memory, logs, cursors)

    def close(self) -> None:
        if self._closed:
            return
        self._closing = True  # what a listener flushes from here on is in the last group
        self._wait()
        waiting = self._urgent or self._runs or self._waiting() or self._tails
        if waiting or self._uncounted or self._uncounted_logs or self._last_words():
            self._start(self._clock(), due=True, last=True)
            self._wait()
        self._closed = True
        if not self._ticket.decided:
            self._ticket.decide(StoreError("the store is closed"))
        self._stop()

    # --- sealing ----------------------------------------------------------------------------------------------

    def _lazy_over(self, now: float) -> bool:
        """True when what can wait has waited: cursor moves no less than the messages of their logs may, as commits for
        moves alone would cost the card what the delay of the messages saves."""
        delay, delays = self._limits.moves_delay_s, self._delays
        if delays and self._moved:
            delay = max(delay, min(delays.get(self._cursors[cursor].log, 0.0) for cursor in self._moved))
        return self._lazy_since is not None and now >= self._lazy_since + delay

    def _waiting(self) -> bool:
        """True when there is something to write, however little it hurries; messages have a time of their own."""
        return bool(
            self._moved
            or self._reclaim
            or self._state
            or self._opened
            or self._dropped
            or self._new_logs
            or self._given_up
        )

    def _start(self, now: float, *, due: bool, last: bool) -> None:
        """Seal the open group and hand it to the medium. `due`: with cursor moves; `last`: before closing."""
        group = Group(
            self._runs, self._size, self._sizes, self._new_logs, self._opened, self._dropped, self._state, self._ticket
        )
        self._ticket = Ticket()
        self._runs, self._size, self._sizes, self._new_logs = [], 0, {}, []
        self._opened, self._dropped, self._state, self._urgent = set(), set(), {}, False
        self._batch_due = None
        group.given_up, self._given_up = self._given_up, []
        group.evicting, self._evicting = self._evicting, {}
        group.thinning, self._thinning = self._thinning, {}
        group.at_most, self._at_most = self._at_most, {}
        group.losses = self._ledger.take()
        self._sealed = group
        group.monotonic_ns = int(now * 1e9)
        try:
            self._number(group)
            if self._tails or self._accounted:
                self._settle(group, now, last=last)
            self._count(group, last=last)
            self._choose_evictions(group)
            self._choose_reclaims(group)
            if due or group.reclaims or group.settled or group.filled:
                group.moved |= self._moved
                self._moved = set()
                self._lazy_since = None
            group.cursor_rows = self._cursor_rows(group)
            self._commit(group)
        except (StoreError, struct.error, OverflowError, UnicodeError) as error:
            failure = error if isinstance(error, StoreError) else StoreError(f"a message cannot be stored: {error}")
            group.outcome = Outcome(failure)
            group.done.set()
            self._post(partial(self._finish, group))

    def _number(self, group: Group) -> None:
        """Give every run its position and sequence."""
        known, sequences, ends = self._sequences, group.sequences, group.ends
        missing = {run.address for _, run in group.runs} - known.keys()
        if missing:
            known.update(dict.fromkeys(missing, 0))
            try:
                known.update(self._load_sequences(missing))
            except StoreError:
                for address in missing:
                    del known[address]
                raise
        for log, run in group.runs:
            address, count = run.address, len(run.bodies)
            position = ends.get(log)
            if position is None:
                position = self._logs[log].next
            sequence = sequences.get(address)
            if sequence is None:
                sequence = known[address]
            group.appended.append((log, Stored(position, sequence, run)))
            ends[log] = position + count
            sequences[address] = sequence + count
        for log, end in ends.items():
            if end > POSITION_MAX:
                raise StoreError(
                    f"log {self._logs[log].name!r} has used up its positions: export it and start a new one"
                )
            if not self._logs[log].cursors:
                self._reclaim[log] = None

    def _count(self, group: Group, *, last: bool) -> None:
        """Decide whether this group writes the counters, and which rows of table ``log`` it writes."""
        limits = self._limits
        group.counting = (
            last
            or bool(group.evicting or group.thinning or group.settled)
            or self._uncounted_commits + 1 >= limits.counted_commits_max
            or self._uncounted_bytes + group.size >= limits.counted_bytes_max
            or len(self._uncounted) + len(group.sequences) >= limits.counted_addresses_max
            or (not group.runs and bool(self._reclaim) and bool(self._uncounted_logs))
        )
        touched = set(group.new_logs)
        if group.counting:
            group.counters = {**self._uncounted, **group.sequences}
            touched |= self._uncounted_logs | group.ends.keys()
            if self._tails:
                group.counters.update(self._reserved_ends(group))
        settled = {settlement.log: settlement for settlement in group.settled}
        touched |= settled.keys()
        for log in sorted(touched):
            state = self._logs[log]
            if group.counting:
                end, size = group.ends.get(log, state.next), state.bytes + group.sizes.get(log, 0)
                if log in settled:
                    end, size = settled[log].end, size + settled[log].size
                group.log_rows.append(LogRow(log, state.name, state.first, end, size))
            else:
                group.log_rows.append(LogRow(log, state.name, 0, 0, 0))

    # --- after a commit ---------------------------------------------------------------------------------------

    def _wait(self) -> None:
        """Block until the running commit is over, and finish it here."""
        if self._sealed is not None:
            self._sealed.done.wait()
            self._finish(self._sealed)

    def _finish(self, group: Group) -> None:
        """The commit of `group` is over; runs once, on the loop's thread."""
        if self._sealed is not group or group.outcome is None:
            return
        self._sealed = None
        error = group.outcome.error
        group.ticket.decide(error)
        if error is None:
            if self._refused is not None:
                logger.warning("commits succeed again; %d messages were refused", self._refused)
                self._refused = None
            self._succeeded(group, group.outcome)
            appended = [*group.appended, *self._taken_after_all()] if group.settled else group.appended
            self._tell(Committed(appended, None, bool(group.outcome.entries.added)))
        else:
            if self._refused is None:
                logger.error("%s; messages are refused until commits succeed again", error)
            self._refused = (self._refused or 0) + sum(len(run) for _, run in group.runs)
            self._failed(group)
            self._tell(Committed((), error))

    def _tell(self, commit: Committed) -> None:
        for listener in self.commit_listeners:
            listener(commit)

    def _taken_after_all(self) -> list[tuple[int, Stored]]:
        """What waited in the open group and is in memory now. When it was all that waits, its ticket is decided, as no
        commit may follow."""
        taken = self._absorb(self._clock())
        if taken and not (self._runs or self._state or self._given_up):
            self._ticket.decide(None)
            self._ticket = Ticket()
        return taken

    def _succeeded(self, group: Group, outcome: Outcome) -> None:
        for log, end in group.ends.items():
            state = self._logs[log]
            state.next = end
            state.bytes += group.sizes[log]
        for settlement in group.settled:
            self._settled(settlement)
        if self._accounted and (MEMORY, next(iter(self._accounted))) in group.state:
            self._accounted.clear()
            self._filled.clear()
        self._retry_at = 0.0
        self._moves_kept += bool(group.moved)
        self._ledger.kept(outcome.entries)
        for given in group.given_up:
            if given.if_kept and (cursor := self._cursors.get(given.cursor)) is not None:
                self._pass(cursor, given.first, given.last)
        self._sequences.update(group.sequences)
        if group.counting:
            self._counted(group)
        else:
            self._uncounted.update(group.sequences)
            self._uncounted_logs.update(group.ends)
            self._uncounted_commits += 1
            self._uncounted_bytes += group.size
        for evicted in outcome.evicted:
            self._evicted(evicted)
        for thinned in outcome.thinned:
            self._thinned(thinned)
        for reclaimed in outcome.reclaimed:
            self._reclaimed(reclaimed)

    def _counted(self, group: Group) -> None:
        for row in group.log_rows:
            self._logs[row.log].counted = row.next
        self._uncounted.clear()
        self._uncounted_logs.clear()
        self._uncounted_commits = self._uncounted_bytes = 0
        if len(self._sequences) > self._limits.addresses_cached_max:
            self._sequences = {address: self._sequences[address] for address in self._blocks}

    def _failed(self, group: Group) -> None:
        """Give up what was appended; keep the rest for the next group."""
        self._new_logs = group.new_logs + self._new_logs
        self._opened |= group.opened & self._cursors.keys()
        self._moved |= group.moved & self._cursors.keys()
        self._dropped |= group.dropped
        self._ledger.failed(group.losses)
        self._given_up[:0] = [given for given in group.given_up if not given.if_kept]
        self._state = {**{key: value for key, value in group.state.items() if key[0] != MEMORY}, **self._state}
        self._not_settled(group)
        for reclaim in group.reclaims:
            self._spared(reclaim)
        self._lazy_since = self._clock()
        self._retry_at = self._lazy_since + self._limits.retry_delay_s
