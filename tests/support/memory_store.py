"""Store with a medium in memory: the real engine without durability, for tests."""

from __future__ import annotations

import time
import uuid
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain

from bridge.message import Stored
from edge.broker.store.engine import StoreEngine
from edge.broker.store.epochs import Epochs
from edge.broker.store.errors import StoreError
from edge.broker.store.eviction import EVICTED
from edge.broker.store.group import CommitGroup, CommitOutcome, CursorRow
from edge.broker.store.ledger import Entries, OpenLedger
from edge.broker.store.limits import POSITION_MAX, QUEUE_CURSOR, StoreLimits
from edge.broker.store.log_rows import LogEntry, LogRow
from edge.broker.store.logs import LogState, free_name
from edge.broker.store.losses import Claim, losses_of
from edge.broker.store.medium import Post, ReadDone
from edge.broker.store.records import LedgerEntry, Loss, Summary
from edge.broker.store.removal_jobs import Evicted, Eviction, Reclaim, Reclaimed, Thinned, Thinning
from edge.broker.store.segment import split
from edge.broker.store.tables import StoreTables
from edge.broker.store.thinning import INTERVALS_S, THINNED, rest_of, summarise


class MemoryRows:
    """Rows of tables ``cursor`` and ``log``, by number. See `edge.broker.store.tables.StoreRows`."""

    def __init__(self, kept: dict[int, CursorRow] | None = None, logs: dict[int, LogRow] | None = None) -> None:
        self.kept: dict[int, CursorRow] = dict(kept or {})
        self.logs: dict[int, LogRow] = dict(logs or {})

    def cursor(self, number: int) -> CursorRow | None:
        return self.kept.get(number)

    def cursor_of(self, name: str, log: int) -> CursorRow | None:
        return next((row for row in self.kept.values() if (row.name, row.log) == (name, log)), None)

    def cursors(self) -> Iterable[CursorRow]:
        return [self.kept[cursor] for cursor in sorted(self.kept)]

    def cursors_named(self, name: str) -> Sequence[CursorRow]:
        return [row for row in self.kept.values() if row.name == name]

    def cursors_in(self, log: int, below: int) -> Sequence[CursorRow]:
        return [row for row in self.kept.values() if row.log == log and row.position < below]

    def log(self, number: int) -> LogEntry | None:
        row, cursor = self.logs.get(number), self.cursor_of(QUEUE_CURSOR, number)
        return None if row is None else LogEntry(*row, None if cursor is None else cursor.position)

    def log_named(self, name: str) -> LogEntry | None:
        return next((self.log(row.log) for row in self.logs.values() if row.name == name), None)

    def logs_after(self, number: int, *, holding: bool = False) -> Sequence[LogRow]:
        return [self.logs[log] for log in sorted(self.logs) if log > number and (self.logs[log].bytes or not holding)]

    def keep(self, group: CommitGroup) -> None:
        """Write a group's changes to rows, before it deletes messages."""
        for cursor in group.dropped:
            self.kept.pop(cursor, None)
        for log in group.freed & self.logs.keys():
            self.logs[log] = self.logs[log]._replace(name=free_name(log))
        for row in group.log_rows:
            before = self.logs.get(row.log)
            self.logs[row.log] = row if before is None else row._replace(first=before.first)
        for log, first in (group.ring.firsts if group.ring is not None else {}).items():
            self.logs[log] = self.logs[log]._replace(first=first)
        self.kept.update((row.cursor, row) for row in group.cursor_rows)
        for _, position, cursors in group.passes:
            for cursor in cursors & self.kept.keys():
                if self.kept[cursor].position < position and not self.kept[cursor].acknowledged:
                    self.kept[cursor] = self.kept[cursor]._replace(position=position)

    def delete(self, outcome: CommitOutcome) -> None:
        """Apply a commit's deletions of messages to the rows of logs."""
        for gone in (*outcome.evicted, *outcome.reclaimed):
            row = self.logs[gone.log]
            self.logs[gone.log] = row._replace(first=gone.first, bytes=row.bytes - gone.bytes)
        for thinned in outcome.thinned:
            row = self.logs[thinned.log]
            self.logs[thinned.log] = row._replace(bytes=row.bytes - thinned.freed)


class MemoryMedium:
    """See `edge.broker.store.medium.Medium`. The next callback that `post` runs ends a commit."""

    def __init__(self, *, post: Post, ledger: OpenLedger, rows: MemoryRows, summary: Summary | None = None) -> None:
        self.epochs = Epochs(uuid.uuid4().hex)
        self.openings: Sequence[str] = ()
        self.writes_at_close = False
        self.failure: StoreError | None = None
        """Error of every commit while set, such as that of a full medium."""
        self._post = post
        self._ledger = ledger
        self._summary = summary
        self._kept: dict[int, list[Stored]] = {}
        self._rows = rows
        self._values: dict[str, dict[str, bytes]] = {}
        self._counters: dict[str, int] = {}
        self._entries: list[LedgerEntry] = []

    def kept(self, log: int) -> Sequence[Stored]:
        """Return the stored messages of a log."""
        return self._kept.get(log, ())

    # --- reading ----------------------------------------------------------------------------------------------

    def cursors(self) -> Iterable[CursorRow]:
        return self._rows.cursors()

    def value(self, kind: str, key: str) -> bytes | None:
        return self._values.get(kind, {}).get(key)

    def slowest(self, log: int, but: Sequence[int], done: Callable[[int], None]) -> None:
        rows = self._rows.cursors_in(log, POSITION_MAX)
        self._post(partial(done, min((row.position for row in rows if row.cursor not in but), default=POSITION_MAX)))

    def items(self, kind: str) -> Iterator[tuple[str, bytes]]:
        return iter(sorted(self._values.get(kind, {}).items()))

    def read(self, log: LogState, position: int, end: int, bytes_max: int, done: ReadDone) -> None:
        runs = self._kept.get(log.log, [])
        taken: list[Stored] = []
        size = 0
        for index in range(max(0, bisect_right(runs, position, key=_position) - 1), len(runs)):
            stored = runs[index]
            skipped = max(0, position - stored.position)
            count = len(stored.run.bodies)
            if stored.position >= end:
                break
            if skipped >= count:
                continue
            size += stored.run.size
            if taken and size > bytes_max:
                break
            run = stored.run.part(skipped, count)
            taken.append(Stored(stored.position + skipped, stored.sequence + skipped, run))
        self._post(partial(done, taken))

    def written_end(self, log: int, before: int) -> int:
        kept = [stored for stored in self._kept.get(log, ()) if stored.position < before]
        return kept[-1].position + len(kept[-1].run.bodies) if kept else 0

    def sequences(self) -> Iterator[tuple[str, int]]:
        return iter(list(self._counters.items()))

    def sequences_of(self, addresses: Iterable[str]) -> dict[str, int]:
        return {address: self._counters[address] for address in addresses if address in self._counters}

    def ledger(self, after: int, entries_max: int, subscriptions: str) -> Sequence[LedgerEntry]:
        found = [e for e in self._entries if e.entry > after and e.subscription.startswith(subscriptions)]
        return found[:entries_max]

    def lost(self, subscriptions: str) -> Mapping[str, Mapping[str, int]]:
        found: dict[str, dict[str, int]] = {}
        for entry in self._entries:
            if entry.subscription.startswith(subscriptions):
                reasons = found.setdefault(entry.address, {})
                reasons[entry.reason] = reasons.get(entry.reason, 0) + entry.messages
        return found

    def free_bytes(self) -> int | None:
        return None

    def file_bytes(self) -> int:
        return 0

    # --- lineage: without older copies ---------------------------------------------------------------------------

    def opening_ends(self) -> Iterator[Mapping[int, int] | None]:
        return iter(())

    def ends_after(self, shared: str) -> Mapping[int, int]:
        return {}

    def appended_since(self, log: int, end: int) -> Iterator[tuple[str, int]]:
        return iter(())

    def begin_epoch(self, starts: Mapping[str, int], why: str) -> None:
        pass

    # --- writing ----------------------------------------------------------------------------------------------

    def commit(self, group: CommitGroup, finished: Callable[[], None]) -> None:
        group.outcome = CommitOutcome(self.failure) if self.failure is not None else self._keep(group)
        self._post(finished)

    def wait(self) -> None:
        """Return immediately: the commit has ended."""

    def committed(self, group: CommitGroup) -> None:
        pass

    def close(self) -> None:
        self._kept.clear()

    def _keep(self, group: CommitGroup) -> CommitOutcome:
        for log, stored in group.appended:
            if stored.run.bodies:
                self._kept.setdefault(log, []).append(stored)
        self._counters.update(group.counters)
        self._rows.keep(group)
        for (kind, key), value in group.state.items():
            values = self._values.setdefault(kind, {})
            if value is None:
                values.pop(key, None)
            else:
                values[key] = value
        evicted = [self._evict(eviction) for eviction in group.evictions]
        losses = list(chain(group.losses, *(given.losses for given in group.given_up if given.if_kept)))
        thinned = [self._thin(thinning, evicted) for thinning in group.thinnings]
        losses += chain.from_iterable(part.losses for part in evicted)
        losses += chain.from_iterable(part.losses for part in thinned)
        entries = self._enter(losses)
        outcome = CommitOutcome(None, [self._drop(reclaim) for reclaim in group.reclaims], evicted, thinned, entries)
        self._rows.delete(outcome)
        return outcome

    def _thin(self, job: Thinning, evicted: list[Evicted]) -> Thinned:
        done = Thinned(job.log, 0, 0, ended=True)
        runs = self._kept.get(job.log, [])
        old = [stored for stored in runs if stored.position + len(stored.run.bodies) <= job.limit]
        open_ = [stored for stored in old if not _acknowledged(stored, job.claims)]
        for interval_s in INTERVALS_S if self._summary is not None else ():
            if done.freed >= job.bytes or self._summary is None:
                break
            before = sum(len(body) for stored in open_ for body in stored.run.bodies)
            kept, gone = summarise(open_, interval_s, self._summary)
            freed = before - sum(len(body) for stored in kept for body in stored.run.bodies)
            if job.at_most is not None and done.freed + freed > job.at_most:
                break
            open_ = kept
            done.freed += freed
            done.losses += losses_of(job.claims, gone, THINNED, job.now_ns)
        rest = [stored for stored in runs if stored not in old]
        acknowledged = [stored for stored in old if _acknowledged(stored, job.claims)]
        self._kept[job.log] = sorted([*acknowledged, *open_, *rest], key=_position)
        if done.freed < job.bytes:
            evicted.append(self._evict(rest_of(job, done)))
        return done

    def _enter(self, losses: Sequence[Loss]) -> Entries:
        entries = self._ledger.entries(losses)
        kept = [entry for entry in self._entries if entry.entry not in entries.replaced]
        self._entries = [*kept, *entries.added][entries.oldest_dropped :]
        return entries

    def _evict(self, eviction: Eviction) -> Evicted:
        runs = self._kept.get(eviction.log, [])
        freed, until, gone = 0, eviction.first, list[Stored]()
        while runs and freed < eviction.bytes and runs[0].position < eviction.limit:
            size = sum(map(len, runs[0].run.bodies))
            if eviction.at_most is not None and freed + size > eviction.at_most:
                if len(runs[0].run) == 1:
                    break
                runs[0:1] = split(runs[0], 1)
                continue
            gone.append(runs.pop(0))
            freed += size
            until = gone[-1].position + len(gone[-1].run.bodies)
        losses = list(losses_of(eviction.claims, gone, EVICTED, eviction.now_ns))
        return Evicted(eviction.log, until, freed, losses)

    def _drop(self, reclaim: Reclaim) -> Reclaimed:
        runs = self._kept.get(reclaim.log, [])
        stop = bisect_left(runs, True, key=lambda stored: stored.position + len(stored.run.bodies) > reclaim.limit)
        gone = runs[:stop]
        del runs[:stop]
        first = gone[-1].position + len(gone[-1].run.bodies) if gone else reclaim.first
        return Reclaimed(reclaim.log, first, sum(len(body) for stored in gone for body in stored.run.bodies), True)


class MemoryStore(StoreEngine[MemoryMedium]):
    """See `edge.broker.store.contract.Store`."""

    def __init__(
        self,
        *,
        post: Post,
        clock: Callable[[], float] = time.monotonic,
        limits: StoreLimits | None = None,
        summary: Summary | None = None,
    ) -> None:
        limits = limits or StoreLimits()
        rows = MemoryRows()
        tables = StoreTables.empty(limits, clock, rows)
        medium = MemoryMedium(post=post, ledger=tables.ledger, rows=rows, summary=summary)
        super().__init__(tables, medium, post=post, clock=clock, limits=limits)

    @property
    def failure(self) -> StoreError | None:
        """See `MemoryMedium.failure`."""
        return self.medium.failure

    @failure.setter
    def failure(self, failure: StoreError | None) -> None:
        self.medium.failure = failure


def _acknowledged(stored: Stored, claims: Sequence[Claim]) -> bool:
    """Return True when a cursor has acknowledged part of it."""
    last = stored.position + len(stored.run.bodies) - 1
    return any(claim.progress.within(stored.position, last) for claim in claims)


def _position(stored: Stored) -> int:
    return stored.position
