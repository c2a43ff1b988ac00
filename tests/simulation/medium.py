"""The gateway's medium: committed data survives, a commit under way may survive, and nothing else does.

The store on it is the real engine (gathering, sealing, numbering, cursors, ledger, removal) over the medium of
`tests.support.memory_store`. This module decides when a commit ends, how it fails, and what opening finds.
"""

from __future__ import annotations

import copy
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec

from bridge import plain
from bridge.command import ReceiptDocument
from bridge.message import Stored
from edge.broker.router.commands.receipts import KIND
from edge.broker.store.engine import StoreEngine, StoreTables
from edge.broker.store.epochs import Epochs
from edge.broker.store.errors import StoreError, StoreFull
from edge.broker.store.group import CommitGroup, CommitOutcome
from edge.broker.store.limits import QUEUE_CURSOR, StoreLimits
from edge.broker.store.logs import LogState, free_name
from edge.broker.store.medium import FAILED, UNREAD, Post, ReadDone
from edge.broker.store.progress import unpack
from edge.broker.store.records import LedgerEntry
from tests.simulation.history import History
from tests.simulation.scheduler import Process, Scheduler
from tests.support.memory_store import MemoryMedium, MemoryRows


@dataclass
class Contents:
    """Durable content. A copy serves as an older copy of the data directory."""

    logs: dict[int, str] = field(default_factory=dict)
    firsts: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    kept: dict[int, list[Stored]] = field(default_factory=dict)
    rows: MemoryRows = field(default_factory=MemoryRows)
    values: dict[str, dict[str, bytes]] = field(default_factory=dict)
    sequences: dict[str, int] = field(default_factory=dict)
    entries: list[LedgerEntry] = field(default_factory=list)
    epochs: list[str] = field(default_factory=list)
    starts: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """(first sequence, number of the epoch) by address, in the form of `Epochs`."""
    files: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    """Files of the gateway's configuration, by name: the count of earlier files, and the content."""
    openings: list[tuple[str, dict[int, int]]] = field(default_factory=list)
    """(id, ends of the logs at that moment)."""

    def name(self, epochs: Epochs) -> None:
        """Name the present messages with `epochs`."""
        if self.epochs:
            epochs.current, epochs._ids = self.epochs[-1], list(self.epochs)
            epochs._starts = {address: sorted(starts) for address, starts in self.starts.items()}

    def copied(self) -> Contents:
        """Return a copy, as in a backup: messages never change and are shared, the rest is copied."""
        twin = copy.copy(self)
        for name in ("logs", "firsts", "ends", "sequences", "starts", "files"):
            setattr(twin, name, dict(getattr(self, name)))
        twin.rows = MemoryRows(self.rows.kept, self.rows.logs)
        twin.kept = {log: list(runs) for log, runs in self.kept.items()}
        twin.values = {kind: dict(values) for kind, values in self.values.items()}
        twin.entries, twin.epochs, twin.openings = list(self.entries), list(self.epochs), list(self.openings)
        return twin


class Card:
    """Medium of one gateway. It outlives the processes that use it."""

    def __init__(self, scheduler: Scheduler, history: History, random: Random) -> None:
        self.contents = Contents()
        self.commit_s = 0.003
        """Mean duration of a commit."""
        self.read_s = 0.001
        self.failure: StoreError | None = None
        """Error with which commits fail, if set."""
        self.read_fails = 0.0
        """Share of reads that fail."""
        self.scheduler = scheduler
        self.history = history
        self.random = random
        self._under_way: tuple[CardMedium, CommitGroup] | None = None
        self._ledgered = 0

    def submit(self, store: CardMedium, group: CommitGroup, finished: Callable[[], None]) -> None:
        """Start a commit."""
        self._under_way = (store, group)
        delay_s = self.commit_s * (0.5 + self.random.random())
        if self.random.random() < 0.05:
            delay_s *= 10
        self.scheduler.after(delay_s, store.process, self._end, store, group, finished)

    def _end(self, store: CardMedium, group: CommitGroup, finished: Callable[[], None]) -> None:
        if self._under_way is None or self._under_way[1] is not group:
            return
        self.apply()
        # The other thread notifies the loop's thread after the commit is durable.
        self.scheduler.after(self.random.random() * 0.001, store.process, finished)

    def apply(self) -> None:
        """End the pending commit: it succeeds or fails."""
        if self._under_way is None:
            return
        (store, group), self._under_way = self._under_way, None
        if self.failure is not None:
            group.outcome = CommitOutcome(self.failure)
            self.history.record("failed", str(self.failure))
        else:
            group.outcome = store.keep(group)
            self._record(store, group)

    def power_cut(self) -> None:
        """Decide whether the pending commit happened."""
        if self._under_way is not None and self.random.random() < 0.5:
            self.apply()
        self._under_way = None

    def put_back(self, older: Contents) -> None:
        """Replace the content by an older copy, while the store is closed."""
        self.contents = older.copied()
        self._ledgered = max((entry.entry for entry in self.contents.entries), default=0)

    def described(self) -> tuple[Any, Any]:
        """Describe all content as (runs, cursors).

        A run is (log, position, epoch, address, sequence, messages). A cursor is (cursor, name, log, position).
        """
        contents = self.contents
        epochs = Epochs(contents.epochs[-1]) if contents.epochs else Epochs("")
        contents.name(epochs)
        runs = tuple(
            (contents.logs[log], place, epochs.of(run.address, sequence), run.address, sequence, ids(run.bodies))
            for log, runs in contents.kept.items()
            for place, sequence, run in runs
        )
        cursors = tuple((r.cursor, r.name, contents.logs[r.log], r.position) for r in contents.rows.kept.values())
        return runs, cursors

    def _record(self, store: CardMedium, group: CommitGroup) -> None:
        record, contents, epochs = self.history.record, self.contents, store.epochs
        for number, name, log, position, _ in group.cursor_rows:
            if number in group.opened:
                record("opened", number, name, contents.logs[log], position)
        for log, stored in group.appended:
            run = stored.run
            epoch = epochs.of(run.address, stored.sequence)
            record("durable", contents.logs[log], stored.position, run.address, epoch, stored.sequence, ids(run.bodies))
        for (kind, _), body in group.state.items():
            if kind == KIND and body is not None:
                record("receipt waits", _id(body))
        for entry in contents.entries:
            if entry.entry > self._ledgered:
                parts = tuple(epochs.parts(entry.address, entry.first, entry.last))
                record("ledger", entry.subscription, entry.address, parts, entry.messages, entry.reason)
        self._ledgered = max((entry.entry for entry in contents.entries), default=0)
        rows = contents.rows.kept
        passed = [rows[each] for one in group.passes for each in one.cursors if each in rows]
        for number, name, log, _, _ in (*group.cursor_rows, *passed):
            kept = contents.rows.kept[number]
            above = tuple(unpack(kept.position, kept.acknowledged))
            record("cursor", number, name, contents.logs[log], kept.position, above)
        for number in sorted(group.dropped):
            record("dropped", number)


class CardMedium(MemoryMedium):
    """A `Card` as seen by the process that has it open."""

    def __init__(self, card: Card, process: Process, tables: StoreTables, post: Post) -> None:
        super().__init__(post=post, ledger=tables.ledger, rows=card.contents.rows)
        self.process = process
        self._card = card
        self._tables = tables
        contents = card.contents
        self._kept, self._values, self._counters = contents.kept, contents.values, contents.sequences
        self._entries = contents.entries
        self._enter_epochs(contents)
        self._count(contents)
        tables.ledger.load(contents.entries, len(contents.entries))
        tables.counters.sequences.update(contents.sequences)
        for number in contents.rows.logs:
            log = tables.logs[number]
            if tables.cursors.lowest(log, log.next) > log.first:
                tables.logs.to_reclaim[number] = None

    def _count(self, contents: Contents) -> None:
        """Compute what the rows of logs lack, and note the present content."""
        rows, tables = contents.rows, self._tables
        for number, row in rows.logs.items():
            first, end = contents.firsts.get(number, 0), contents.ends.get(number, 0)
            size = sum(sum(map(len, stored.run.bodies)) for stored in contents.kept.get(number, ()))
            rows.logs[number] = row._replace(first=first, next=end, bytes=size)
        messages = sum(row.next - row.first for row in rows.logs.values())
        free = [number for number, row in rows.logs.items() if row.name == free_name(number)]
        tables.logs.set_totals(len(rows.logs), messages, sum(row.bytes for row in rows.logs.values()), free)
        tables.cursors.set_last_number(max(rows.kept, default=0))
        for cursor in rows.kept.values():
            if cursor.name != QUEUE_CURSOR:
                tables.cursors.add_idle(tables.logs[cursor.log], 1, cursor.position)

    # --- lineage ----------------------------------------------------------------------------------------------

    def _enter_epochs(self, contents: Contents) -> None:
        if not contents.epochs:
            contents.epochs.append(self.epochs.current)
        contents.openings.append((uuid.uuid4().hex, dict(contents.ends)))
        self.openings = [name for name, _ in contents.openings]
        contents.name(self.epochs)

    def opening_ends(self) -> Iterator[Mapping[int, int] | None]:
        return (ends for _, ends in reversed(self._card.contents.openings))

    def ends_after(self, shared: str) -> Mapping[int, int]:
        after = self.openings.index(shared) + 1 if shared in self.openings else 0
        return self._card.contents.openings[after][1] if after < len(self.openings) else {}

    def appended_since(self, log: int, end: int) -> Iterator[tuple[str, int]]:
        for position, sequence, run in self._kept.get(log, ()):
            if position >= end:
                yield run.address, sequence

    def begin_epoch(self, starts: Mapping[str, int], why: str) -> None:
        contents = self._card.contents
        contents.epochs.append(uuid.uuid4().hex)
        for address, first in starts.items():
            if first:
                contents.starts[address] = [*contents.starts.get(address, ()), (first, len(contents.epochs) - 1)]
        contents.name(self.epochs)
        self._card.history.record("forked", self._card.described()[0])

    # --- the medium -------------------------------------------------------------------------------------------

    def commit(self, group: CommitGroup, finished: Callable[[], None]) -> None:
        self._card.submit(self, group, finished)

    def wait(self) -> None:
        self._card.apply()

    def keep(self, group: CommitGroup) -> CommitOutcome:
        """Make a group durable."""
        contents = self._card.contents
        for log in group.new_logs:
            contents.logs[log] = self._tables.logs[log].name
        outcome = self._keep(group)
        contents.entries = self._entries
        contents.ends.update(group.ends)
        contents.sequences.update(group.sequences)
        for done in (*outcome.reclaimed, *outcome.evicted):
            contents.firsts[done.log] = max(contents.firsts.get(done.log, 0), done.first)
        return outcome

    def read(self, log: LogState, position: int, end: int, bytes_max: int, done: ReadDone) -> None:
        card = self._card
        delay_s = card.read_s * (0.5 + card.random.random())
        if card.random.random() < card.read_fails:
            card.scheduler.after(delay_s, self.process, done, FAILED)
        else:
            card.scheduler.after(delay_s, self.process, super().read, log, position, end, bytes_max, done)

    def slowest(self, log: int, but: Sequence[int], done: Callable[[int], None]) -> None:
        card = self._card
        delay_s = card.read_s * (0.5 + card.random.random())
        if card.random.random() < card.read_fails:
            card.scheduler.after(delay_s, self.process, done, UNREAD)
        else:
            card.scheduler.after(delay_s, self.process, super().slowest, log, but, done)

    def close(self) -> None:
        """Do nothing: the content stays on the card."""


def open_store(card: Card, process: Process, post: Post) -> StoreEngine[CardMedium]:
    """Open the store on the card."""
    limits = StoreLimits(retry_delay_s=0.2, logs_in_use_max=1)

    def clock() -> float:
        return card.scheduler.now_s

    tables = StoreTables.empty(limits, clock, card.contents.rows)
    return StoreEngine(tables, CardMedium(card, process, tables, post), post=post, clock=clock, limits=limits)


def ids(bodies: Sequence[bytes]) -> tuple[str, ...]:
    """Return the names of messages.

    A name is the body, the data section of a message in AMQP encoding, or the command of a receipt.
    """
    return tuple(_id(body) for body in bodies)


def _id(body: bytes) -> str:
    if body.startswith(b"{"):
        return RECEIPT + msgspec.json.decode(body, type=ReceiptDocument).command
    return (plain.body_of(body) if body.startswith(b"\x00") else body).decode()


RECEIPT = "receipt-"
"""Prefix for the names of receipts, before the name of the command."""


FULL = StoreFull("the medium is full")
READ_ONLY = StoreFull("the medium is read-only")
BROKEN = StoreError("the medium fails")
