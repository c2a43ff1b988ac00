"""Interfaces of a store: seven parts, one for each kind of user, and the whole.

```
Store ─┬─ logs        MessageLogs   append and read messages; how each log is kept
       ├─ cursors     Cursors       positions of consumer groups in logs
       ├─ state       SmallState    durable values by kind and key
       ├─ retention   Retention     bytes that logs keep, and removal of old messages
       ├─ ledger      LossLedger    dropped messages, with reasons
       ├─ lineage     EpochLineage  epochs and openings: identity of the store
       └─ commits     StoreCommits  the group commit, and its listeners
```

Terms: a *log* is an append-only sequence of messages. Each queue has one, and each `Address` resource of type topic has
one for all topic names that it covers. A *position* is the index of a message in its log, dense from 0. A *sequence* is
the number of a message in (epoch, address), dense from 0. A *cursor* is the progress of one consumer group in one log:
everything below its position is acknowledged, plus ranges above it. A *group* is everything that one commit writes.

Nothing is durable until its group is committed. Positions and sequences are assigned when a group is sealed, so a
failed commit leaves no hole. The messages of a failed group are discarded, and their senders are notified. Everything
else in it (new logs and cursors, acknowledgements, dropped cursors, small state) joins the next group, so that no
number that was handed out becomes invalid. `engine.StoreEngine` creates the parts over a medium: a file or, in tests,
memory. One contract suite runs over both.

A log may be *kept in memory*, in a bounded ring. Its messages get their numbers and are delivered at once, and are
never written. Messages that a full ring drops, or that are lost when the store closes, are entered into the ledger.
After a crash the ledger has the range of messages that may have been lost.

All methods are called on the thread of the event loop only and return at once, unless documented otherwise. A class
gets the parts that it needs; only the owner has the whole store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from bridge.message import Run, Stored
from edge.broker.store.epochs import Epochs
from edge.broker.store.meter import ByteMeter
from edge.broker.store.records import Committed, CursorRecord, LedgerEntry, Loss, StoreInfo, StoreTotals
from edge.broker.store.ticket import Ticket


class MessageLogs(Protocol):
    """Message logs, by number: append, read, and durability of each log."""

    def open(self, name: str) -> int:
        """Return the number of the log `name`. Create it in the open group if it is new, from a free log if possible.

        Raises StoreError when there are 524 287 logs.
        """
        ...

    def find(self, name: str) -> int | None:
        """Return the number of the log `name`, or None."""
        ...

    def name(self, log: int) -> str:
        """Return the name of a log. Raises IndexError for an unknown number."""
        ...

    def free(self, log: int) -> bool:
        """Drop the cursors of an empty log, so that the next new log can reuse its number. Positions continue there, so
        none is used twice.

        Return False and do nothing while the log has messages or receives some. The name is free at once. The caller
        must not use the number again.
        """
        ...

    def delay(self, log: int, delay_s: float) -> None:
        """Let appends to this log wait up to `delay_s` for other messages before their group is sealed.

        0, the default of a new log, seals at the next `flush`.
        """
        ...

    def keep_in_memory(self, log: int, *, keep: bool) -> None:
        """Keep new messages of this log in memory, or write them before they are acknowledged (the default).

        Call it again when the addresses of the log may have changed. A message leaves the ring when every cursor has
        passed it. Beyond `StoreLimits.memory_bytes_max` for the log, or `StoreLimits.memory_total_bytes_max` for all
        logs, the oldest messages are dropped (reason ``evicted``). Messages in the ring are lost when `keep` becomes
        False (reason ``memory``). Messages on the medium are delivered first in both cases.
        """
        ...

    def in_memory(self, log: int) -> bool:
        """Return True when the log is kept in memory. Then `append` may return the stored run."""
        ...

    def bounds(self, log: int) -> tuple[int, int]:
        """Return (first position kept, next position) of the committed messages."""
        ...

    def append(self, log: int, run: Run) -> Ticket | Stored:
        """Add a run to the open group. It gets position and sequence when the group is sealed.

        Return the ticket of the group. A run taken in memory is returned with both numbers instead: it is in no group
        and in no `Committed`, it can be read and acknowledged at once, and it follows all runs reported before. If a
        log in memory has to reserve numbers first, the ticket is decided by that commit, and its `Committed` has the
        run.

        Raises StoreError when the address or device is over 65 535 bytes of UTF-8 or not valid Unicode, when the
        store is closed, or for a log in memory inside a block of `StoreCommits.together`.
        """
        ...

    def append_all(self, log: int, runs: Sequence[Run], size: int) -> Ticket:
        """Add several runs to a log that is not kept in memory; see `append`. `size`: bytes of their bodies. Raises
        StoreError as `append`."""
        ...

    def read(self, log: int, position: int, bytes_max: int, done: Callable[[Sequence[Stored]], None]) -> None:
        """Read committed runs from `position` on: at least one if there is one, then up to `bytes_max` of bodies.

        The first run is trimmed to start at `position`, or at the first position kept when that is later. `done` is
        called on the loop's thread. An empty sequence means the end of the log, including messages appended during the
        read. A failed read is logged and repeated by a `flush` `StoreLimits.retry_delay_s` later, so that a failure is
        never taken for the end. Positions may be missing between two runs: a segment that fails its checksum is logged,
        skipped, and counts as acknowledged by every cursor.
        """
        ...


class Cursors(Protocol):
    """Cursors of consumer groups in the logs.

    Cursor moves (`acknowledge`) are written lazily, because losing one only delivers a message again. The first group
    that is sealed `moves_delay_s` (50 ms) or more after a move writes it.
    """

    def open(self, name: str, log: int, position: int) -> int:
        """Return the number of the cursor (name, log). Create it if it is new; an existing one is not moved.

        A new cursor starts at `position`, but not before the first position kept and not after the end of the committed
        messages: positions beyond that are assigned again when a commit fails.
        """
        ...

    def record(self, cursor: int) -> CursorRecord:
        """Return one cursor, with moves that are not committed yet. Raises KeyError for an unknown cursor."""
        ...

    def name(self, cursor: int) -> str:
        """Return the name of a cursor. Raises KeyError, StoreError."""
        ...

    def named(self, name: str) -> Sequence[CursorRecord]:
        """Return the cursors of one name, at most one for each log. Idle cursors stay idle.

        Blocks for a short read of the medium. Raises StoreError.
        """
        ...

    def drop(self, cursor: int) -> None:
        """Delete a cursor. A log without cursors keeps no messages."""
        ...

    def make_idle(self, cursor: int) -> bool:
        """Make an unused cursor idle: only its row in the database remains, and it takes no memory.

        It can be used like any other cursor; then its row is read. `set_filters` provides its filter. Return False and
        do nothing while the row is not up to date: the cursor is not on disk yet, positions above its own are
        acknowledged, or its log is kept in memory.
        """
        ...

    def set_filter(self, cursor: int, wants: Callable[[Run], bool]) -> None:
        """Set the filter of a cursor. `wants` must not look at bodies, and is called on any thread."""
        ...

    def set_filters(self, wants_of: Callable[[str], Callable[[Run], bool] | None]) -> None:
        """Set the function that returns the filter of an idle cursor by its name; a filter of None takes everything."""
        ...

    def backlog(self, cursor: int) -> int:
        """Return the number of committed positions that are not acknowledged. Raises KeyError for an unknown cursor."""
        ...

    def acknowledge(self, cursor: int, first: int, last: int) -> None:
        """Acknowledge positions ``first <= p <= last`` for this cursor. Idempotent, in any order.

        A later commit deletes segments that every cursor of their log has passed. A dropped cursor is ignored. Raises
        ValueError when `last` is not committed yet.
        """
        ...

    def pass_all(self, log: int, cursors: Iterable[int], position: int) -> None:
        """Acknowledge everything below a position, for several cursors of one log. Idle cursors stay idle.

        Raises ValueError when a position below is not committed yet.
        """
        ...

    def confirm(self, cursor: int) -> Ticket | None:
        """Return the ticket of the commit that writes the acknowledgements of this cursor; None when none is pending.

        The commit starts without a delay, unless messages of the log may wait (``batch``).
        """
        ...

    def move_with_each_commit(self, cursor: int) -> None:
        """Write the position of this cursor in every commit, which costs one page each.

        After a crash nothing is delivered again that was settled before the last commit. This is for consumers that do
        not detect duplicates.
        """
        ...

    def discard(self, cursor: int, first: int, last: int, losses: Sequence[Loss], *, if_kept: bool = False) -> Ticket:
        """Acknowledge positions ``first <= p <= last`` and enter the losses into the ledger, in one commit.

        With `if_kept` both happen only if the messages appended to the open group are committed with it, as when a dead
        letter replaces the message. Otherwise both wait for the next commit that succeeds. The acknowledgement is
        idempotent, the losses are not. For a dropped cursor the ticket is decided at once. Raises ValueError when
        `last` is not committed yet.
        """
        ...


class SmallState(Protocol):
    """Durable values by kind and key: sessions, subscriptions, retained messages."""

    def put(self, kind: str, key: str, value: bytes) -> Ticket:
        """Set a value in the open group.

        If the group fails, its ticket has the error, and the value joins the next group. On a closed store the ticket
        has an error.

        Raises StoreError when the value is over 512 MiB or a name is not valid Unicode.
        """
        ...

    def delete(self, kind: str, key: str) -> Ticket:
        """Remove a value, if it exists, in the open group; see `put`."""
        ...

    def restore(self, kind: str, key: str, value: bytes) -> None:
        """Undo a `delete` that no commit has written; `value` is the one that was committed before it.

        Nothing is written if the deletion is still in the open group, as after a failed commit.
        """
        ...

    def get(self, kind: str, key: str) -> bytes | None:
        """Return one value, also if it is not committed yet; None if it is not found.

        Blocks for a short read of the medium. Raises StoreError.
        """
        ...

    def items(self, kind: str) -> Iterator[tuple[str, bytes]]:
        """Return all (key, value) of a kind in key order, including values that are not committed yet.

        So an object that is created again during a commit continues from the values of its predecessor.
        """
        ...


class Retention(Protocol):
    """Bytes that logs keep, counted by meters, and removal of old messages."""

    def log_bytes(self, log: int) -> int:
        """Return the bytes of bodies in the log, including those not committed yet and those not deleted yet."""
        ...

    def holding(self) -> Iterator[tuple[int, str]]:
        """Iterate over the logs with committed messages, and their names; O(logs).

        There may be very many. A log that comes into use during the iteration may be returned twice.
        """
        ...

    def free_bytes(self) -> int | None:
        """Return the bytes that can be written before the medium is full; None without a medium.

        These are its free space and the free pages of the file, less the bytes by which the file has yet to grow.
        """
        ...

    def evict(self, log: int, size: int, at_most: int | None = None) -> None:
        """Drop the oldest messages of a log in the open group: `size` bytes of bodies or a little more.

        Messages of a log kept in memory are dropped at once, after those on the medium. With `at_most`, at most
        that many bytes are dropped: less than `size` if the next message is too large. Without it whole segments are
        dropped.

        Dropped messages that a cursor still wanted are entered into the ledger by the same commit, with reason
        ``evicted``. Several calls before the commit add up. Less is dropped when the log holds less, or when one commit
        may not delete that much.
        """
        ...

    def thin(self, log: int, size: int, at_most: int | None = None) -> None:
        """Free `size` bytes of bodies of a log or a little more by summarising its oldest messages with `Summary`.

        If that is not enough, or without a `Summary`, the oldest messages are evicted. Otherwise see `evict`; the
        reason is ``thinned``. Summarised messages are gone for every cursor, so positions are missing. Messages that a
        cursor has acknowledged are not summarised.
        """
        ...

    def meter(self, log: int, meter: ByteMeter | None) -> bool:
        """Count the bytes of the log in this meter, and in no other one. Return False when it is so already.

        Raises KeyError.
        """
        ...

    def meter_of(self, log: int) -> ByteMeter | None:
        """Return the meter of a log, or None."""
        ...

    def metered_bytes(self, meter: ByteMeter) -> int:
        """Return the sum of `log_bytes` of the logs with this meter; O(logs with uncommitted messages)."""
        ...

    def metered(self, meter: ByteMeter) -> Iterator[int]:
        """Iterate over the logs with this meter; O(logs)."""
        ...

    def largest(self, meter: ByteMeter, count: int) -> Sequence[int]:
        """Return the logs with this meter that have the most committed bytes, largest first; O(logs)."""
        ...


class LossLedger(Protocol):
    """Loss ledger: ranges of dropped messages, each with its reason."""

    @property
    def entered(self) -> Mapping[str, int]:
        """Number of entries since the start, by reason."""
        ...

    def record(self, losses: Sequence[Loss]) -> Ticket:
        """Enter losses of messages that were never in the store, with the open group or the next one that succeeds.

        Values put together with them are in the same commit.
        """
        ...

    def entries(
        self, after: int, entries_max: int, subscriptions: str = "", *, keep_growing: bool = False
    ) -> Sequence[LedgerEntry]:
        """Return committed entries numbered above `after`, oldest first, for subscriptions with the prefix
        `subscriptions`. Returned entries do not change later. `keep_growing`: they may grow, and come again under a
        higher number; for readers that read often, because each entry that cannot grow is a row.

        Blocks for a short read of the medium. Raises StoreError.
        """
        ...

    def lost(self, subscriptions: str) -> Mapping[str, Mapping[str, int]]:
        """Return the number of lost messages by address and reason, for subscriptions with this prefix.

        Blocks for a read of the whole ledger. Raises StoreError.
        """
        ...

    def account_for_crash(self) -> None:
        """Enter the messages that a crash may have lost from memory into the ledger, with reason ``memory``.

        Call it once, when every cursor has its filter.
        """
        ...


class EpochLineage(Protocol):
    """Identity of the store, and names of its messages."""

    @property
    def epochs(self) -> Epochs:
        """Epochs of the store, and the epoch of each message."""
        ...

    @property
    def epoch(self) -> str:
        """Current epoch: 32 random hex digits, created with the store."""
        ...

    @property
    def openings(self) -> Sequence[str]:
        """Ids of the openings of the store, as far as they are recorded, newest last."""
        ...

    def opening_ends(self) -> Iterator[Mapping[int, int] | None]:
        """Return the next position of each log, and `reached`, at each of the `openings`, newest first.

        A damaged record is None. There are fewer when they cannot be read. Consume the iterator at once.
        """
        ...

    @property
    def reached(self) -> Mapping[int, int]:
        """Progress of the store other than the ends of logs, in the same form. A copy with less is older.

        The end of a log that is kept in memory is reserved ahead, so it does not show the age of a copy.
        """
        ...

    def sequences(self) -> Iterator[tuple[str, int]]:
        """Return (address, next sequence) of every address that ever had a message. Reads the whole table."""
        ...

    def fork(self, shared: str) -> None:
        """Start a new epoch, because a peer knows later openings: this store is a restored older copy.

        The new epoch includes the messages since the opening after `shared`, the last opening that both know. Reads
        these messages. Raises StoreError.
        """
        ...

    def begin_epoch(self) -> None:
        """Start a new epoch for new messages: the operator knows that this is an older copy. Raises StoreError."""
        ...


class StoreCommits(Protocol):
    """Group commit: the open group, and the time it goes to the medium.

    `flush` seals the open group and passes it to the medium, unless the group is empty or a commit is running. In the
    latter case the group stays open and grows. When a commit ends, the `listeners` are called on the loop's thread, and
    then the next `flush` may seal. Callbacks reach that thread through the `post` function given at construction
    (``loop.call_soon_threadsafe`` in the product, a list in tests).

    Cursor moves alone are sealed only after their delay, so the owner also calls `flush` periodically. A commit deletes
    a bounded number of segments that every cursor has passed. Listeners call `flush` to continue.
    """

    listeners: list[Callable[[Committed], None]]
    """Called at the end of each commit, in order."""

    def flush(self) -> bool:
        """Seal the open group and start its commit. Return False when a commit is running, when nothing is due, or
        inside a block of `together`."""
        ...

    def together(self) -> AbstractContextManager[Ticket]:
        """Make the changes inside this block in one commit, or none of them; yield its ticket.

        The open group is not sealed inside. If the block raises, its appended messages (`MessageLogs.append`), bound
        acknowledgements (`Cursors.discard` with `if_kept`) and removals (`Retention.evict`, `thin`) leave the group
        again. If the commit fails, all of them are discarded. A crash leaves all of them or none. Other changes stay
        when the block raises, and join the next group when the commit fails. A log in memory takes nothing inside. The
        ticket of a block that changed nothing is decided with the next commit, whenever that is. Raises RuntimeError in
        another block.
        """
        ...

    @property
    def committing(self) -> bool:
        """True while a sealed group is with the writer."""
        ...

    @property
    def pending_bytes(self) -> int:
        """Bytes of bodies that are not durable yet. The server stops reading sockets above a limit."""
        ...

    @property
    def gathered(self) -> int:
        """Number of runs in the open group."""
        ...

    def due_in(self) -> float | None:
        """Return the seconds (0 or more) until a `flush` would seal delayed messages; None without any."""
        ...

    @property
    def moves_kept(self) -> int:
        """Number of commits that wrote every pending cursor move.

        A move made while no commit runs is on disk once this number has grown.
        """
        ...


class Store(Protocol):
    """Whole store, for its owner."""

    @property
    def logs(self) -> MessageLogs:
        """The message logs."""
        ...

    @property
    def cursors(self) -> Cursors:
        """The cursors in the logs."""
        ...

    @property
    def state(self) -> SmallState:
        """Small durable state."""
        ...

    @property
    def retention(self) -> Retention:
        """Retention of messages."""
        ...

    @property
    def ledger(self) -> LossLedger:
        """The loss ledger."""
        ...

    @property
    def lineage(self) -> EpochLineage:
        """Identity of the store."""
        ...

    @property
    def commits(self) -> StoreCommits:
        """The group commit."""
        ...

    def cursor_records(self, but: str = "") -> Sequence[CursorRecord]:
        """Return every cursor as of the last commit, except those named `but`."""
        ...

    def info(self) -> StoreInfo:
        """Return the contents in detail; O(logs + cursors)."""
        ...

    def totals(self) -> StoreTotals:
        """Return the totals; O(logs kept in memory)."""
        ...

    def close(self) -> None:
        """Commit the open group, stop the threads, and close the file. Blocks; idempotent.

        The listeners of `commits` are called. Running reads are not answered. Anything that joins during the callbacks
        of the last commit is not committed, and its ticket has an error.
        """
        ...
