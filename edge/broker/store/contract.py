"""The interfaces of a store: seven parts, each with what its users need, and the whole.

```
Store ─┬─ logs        MessageLogs   append and read messages; how each log is kept
       ├─ cursors     Cursors       places of consumer groups in logs
       ├─ state       SmallState    durable values by kind and key
       ├─ retention   Retention     bytes that logs keep, and dropping what is too much
       ├─ ledger      LossLedger    dropped messages, with reasons
       ├─ lineage     Lineage       epochs and openings: which store this is
       └─ commits     Commits       the group commit, and its listeners
```

Words: a *log* is an append-only sequence of messages (one for each queue; one for each `Address` resource of type
topic, whatever number of topic names it covers). A *position* is a message's place in its log, dense from 0. A
*sequence* is a message's number in (epoch, address), dense from 0. A *cursor* is one consumer group's place in one
log: everything below its position is acknowledged, plus ranges above it. A *group* is what one commit writes.

Nothing is durable until the group it joined is committed. Positions and sequences are given when a group is sealed, so
a group that fails to commit leaves no hole. What a failed group had appended is given up (its senders are told);
everything else it held (new logs and cursors, acknowledgements, dropped cursors, small state) is kept and joins the
next group, so that no number handed out ever becomes invalid. `engine.StoreEngine` makes the parts over a medium that
is a file or, in tests, memory; one contract suite runs over both.

A log may be *kept in memory*, in a bounded ring: its messages are named and handed on at once, and never written. What
a full ring drops, and what the store loses when it is closed, is in the ledger. A crash takes what is in the ring;
which messages they may have been is in the ledger then.

All methods are called from the event loop's thread only and return at once, unless they say otherwise. A class is given
the parts that it needs; only its owner has the whole store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from bridge.message import Run, Stored
from edge.broker.store.epochs import Epochs
from edge.broker.store.meter import ByteMeter
from edge.broker.store.records import Committed, CursorRecord, LedgerEntry, Loss, StoreInfo, StoreTotals
from edge.broker.store.ticket import Ticket


class MessageLogs(Protocol):
    """The logs, by number: how each is kept, and the messages in it."""

    def open(self, name: str) -> int:
        """The number of the log called `name`; made (in the open group) when it is new, of a free one if it can be.

        Raises StoreError when there are 524 287 logs.
        """
        ...

    def find(self, name: str) -> int | None:
        """The number of the log called `name`; None when there is none."""
        ...

    def name(self, log: int) -> str:
        """What a log is called. Raises IndexError when there is none of this number."""
        ...

    def free(self, log: int) -> bool:
        """Drop the cursors of an empty log and give its number to the next log that is made; positions go on there, so
        none comes twice. False, and nothing happens, while something is in it or on its way to it.

        Its name is free at once. Nobody may go on using the number.
        """
        ...

    def delay(self, log: int, delay_s: float) -> None:
        """Appends to this log may wait up to `delay_s` for company before their group is sealed; 0 (as for a new log)
        seals at the next `flush`."""
        ...

    def keep_in_memory(self, log: int, *, keep: bool) -> None:
        """Appends to this log are taken in memory from now on, or written before they are acknowledged (as for a new
        log). To be said again when the addresses of the log may have changed.

        A message leaves the ring when every cursor has passed it. Beyond `Limits.memory_bytes_max` of the log, or
        `Limits.memory_total_bytes_max` of all, the oldest go (reason ``evicted``). What is in the ring when it is not
        `keep` any more is lost (reason ``memory``). What is on the medium is delivered first either way.
        """
        ...

    def in_memory(self, log: int) -> bool:
        """The log is kept in memory: `append` may return what it took."""
        ...

    def bounds(self, log: int) -> tuple[int, int]:
        """(first position kept, next position to be given), both of what is committed."""
        ...

    def append(self, log: int, run: Run) -> Ticket | Stored:
        """Add a run to the open group. It gets position and sequence when the group is sealed.

        Returns the ticket of the group; or the run with both numbers when it was taken in memory: it is in no group and
        in no `Committed`, can be read and acknowledged from now on, and comes after everything told or returned before.
        A log in memory may have to reserve numbers first. Then the ticket is decided by that commit, and its
        `Committed` has the run.

        Raises StoreError when its address or device is over 65 535 bytes of UTF-8 or not valid Unicode, or when the
        store is closed.
        """
        ...

    def append_all(self, log: int, runs: Sequence[Run], size: int) -> Ticket:
        """As `append`, for runs to a log that is written (`in_memory`); `size`: bytes of their bodies."""
        ...

    def read(self, log: int, position: int, bytes_max: int, done: Callable[[Sequence[Stored]], None]) -> None:
        """Read committed runs from `position` on: at least one when there is one, then up to `bytes_max` of bodies.

        The first run is trimmed so that it starts at `position` (or at the first position kept, when that is
        later). `done` is called on the loop's thread; an empty sequence means there is nothing from there on by then,
        neither told by a commit nor taken while it was read. What the medium fails to read (which is logged) is read
        again until it does, by a `flush` `Limits.retry_delay_s` later: nobody may take that for the end of the log.
        Positions may be missing between two runs: a segment that fails its checksum is logged, skipped, and counts as
        acknowledged by every cursor.
        """
        ...


class Cursors(Protocol):
    """The cursors of consumer groups in the logs.

    Cursor moves (`acknowledge`) are lazy, because losing one only delivers a message again: they are written by the
    first group sealed `moves_delay_s` (50 ms) or more after they were remembered.
    """

    def open(self, name: str, log: int, position: int) -> int:
        """The number of the cursor (name, log); made when it is new, else left as it stands.

        It is made at `position`, or at the first position kept when that is later, or at the end of what is committed
        when that is earlier: positions beyond it are given anew when a commit fails.
        """
        ...

    def record(self, cursor: int) -> CursorRecord:
        """One cursor as remembered, with what is not committed yet. Raises KeyError when there is none."""
        ...

    def name(self, cursor: int) -> str:
        """Return the name of a cursor. Raises KeyError, StoreError."""
        ...

    def named(self, name: str) -> Sequence[CursorRecord]:
        """Return the cursors of one name as remembered, one for each log at most. Idle ones stay so.

        Blocks for a short read of the medium. Raises StoreError.
        """
        ...

    def drop(self, cursor: int) -> None:
        """The consumer group is gone; a log without cursors keeps nothing."""
        ...

    def rest(self, cursor: int) -> bool:
        """Make a cursor idle, which is not used for now: it is its row and takes no memory. `set_filters` gives its
        filter. It is used like any other one, and its row is read for that.

        False, and nothing happens, while its row does not say all: it is not on disk yet, something above its position
        is acknowledged, or its log is kept in memory.
        """
        ...

    def set_filter(self, cursor: int, wants: Callable[[Run], bool]) -> None:
        """Of its log this cursor is owed only what `wants` says (by everything but bodies); called on any thread."""
        ...

    def set_filters(self, wants_of: Callable[[str], Callable[[Run], bool] | None]) -> None:
        """Who says what a cursor at rest is owed, by its name: as `set_filter`; None: everything."""
        ...

    def backlog(self, cursor: int) -> int:
        """Committed positions the cursor is not done with. Raises KeyError when there is no such cursor."""
        ...

    def acknowledge(self, cursor: int, first: int, last: int) -> None:
        """Positions ``first <= p <= last`` are done with for this cursor. Idempotent, any order.

        Segments wholly below every cursor of their log are deleted by a later commit. Nothing happens when the cursor
        was dropped. Raises ValueError when `last` is not committed yet.
        """
        ...

    def pass_all(self, log: int, cursors: Iterable[int], position: int) -> None:
        """Acknowledge everything below a position, for several cursors of one log. Idle ones stay idle.

        Raises ValueError when what is below is not committed yet.
        """
        ...

    def confirm(self, cursor: int) -> Ticket | None:
        """Return the ticket of the commit that writes all that was acknowledged for this cursor; None when nothing of
        it waits for a commit. The commit waits for no company, unless messages of the log may wait (``batch``)."""
        ...

    def move_with_each_commit(self, cursor: int) -> None:
        """From now on each commit writes where this cursor is, whatever it is for: a page more of each, and a crash
        delivers nothing again that was settled before the last one. For whoever keeps no account of what came."""
        ...

    def give_up(self, cursor: int, first: int, last: int, losses: Sequence[Loss], *, if_kept: bool = False) -> Ticket:
        """Positions ``first <= p <= last`` are done with for this cursor, and the ledger says why: one commit for both.

        `if_kept`: only if what was appended to the open group is committed with it (a dead letter takes the place of
        the message); nothing happens when that commit fails. Without it the two wait for the next commit that succeeds.
        Idempotent like `acknowledge`, but for the losses. Nothing waits when the cursor was dropped: its ticket is
        decided then. Raises ValueError when `last` is not committed yet.
        """
        ...


class SmallState(Protocol):
    """Durable values by kind and key: sessions, subscriptions, retained messages."""

    def put(self, kind: str, key: str, value: bytes) -> Ticket:
        """Set small durable state (sessions, subscriptions, retained messages); joins the open group.

        When that group fails its ticket says so, and the value joins the next one all the same. On a closed store
        nothing joins, and the ticket says that.

        Raises StoreError when the value is over 512 MiB or a name is not valid Unicode.
        """
        ...

    def delete(self, kind: str, key: str) -> Ticket:
        """Remove small durable state; otherwise as `put`. Nothing happens when there is none."""
        ...

    def get(self, kind: str, key: str) -> bytes | None:
        """Return one value, with what was put so far; None if it is not found.

        Blocks for a short read of the medium. Raises StoreError.
        """
        ...

    def items(self, kind: str) -> Iterator[tuple[str, bytes]]:
        """All (key, value) of a kind, in the order of the keys, with what was put so far: whoever is made anew while a
        commit is under way goes on from what the one before has put. That it is on disk is a ticket's to say."""
        ...


class Retention(Protocol):
    """Bytes that logs keep, counted by meters, and dropping what is too much."""

    def log_bytes(self, log: int) -> int:
        """Bytes of bodies the log keeps, with those on their way to the medium, as far as deleting has come."""
        ...

    def holding(self) -> Iterator[tuple[int, str]]:
        """Logs that keep bytes of messages, as committed, and their names; O(logs). There may be very many: one after
        the other, and one that comes into use meanwhile may come twice."""
        ...

    def free_bytes(self) -> int | None:
        """Bytes that can be written before the medium is full: its free space, and pages of the file that are free,
        less what the file has yet to grow by. None where there is no medium."""
        ...

    def evict(self, log: int, size: int, at_most: int | None = None) -> None:
        """Give up the oldest messages of a log, `size` bytes of bodies or a little more, in the open group. Of a log
        kept in memory they are gone at once, after those on the medium.

        With `at_most` no byte beyond that goes: less than `size` may, if the next message is too large. Without it
        whole segments go.

        What some cursor had not acknowledged (and its filter wants it) becomes ledger entries of that commit, with
        reason ``evicted``. Asking again before the commit adds up. Less is evicted when the log holds less, or more
        than one commit may delete.
        """
        ...

    def thin(self, log: int, size: int, at_most: int | None = None) -> None:
        """Free `size` bytes of bodies of a log or a little more by summing up its oldest messages (`Summary` says how;
        without one not at all), and by evicting the oldest where that is not enough. Otherwise as `evict`; the reason
        is ``thinned``.

        Positions go missing: what was summed up is not there any more for any cursor, and nothing is summed up that a
        cursor has acknowledged.
        """
        ...

    def meter(self, log: int, meter: ByteMeter | None) -> bool:
        """What the log keeps counts in this meter from now on, and in no other one; False when it does already.

        Raises KeyError."""
        ...

    def meter_of(self, log: int) -> ByteMeter | None:
        """The meter of a log; None when it has none."""
        ...

    def metered_bytes(self, meter: ByteMeter) -> int:
        """`log_bytes` of every log that has the meter, added up; O(logs that messages are on their way to)."""
        ...

    def metered(self, meter: ByteMeter) -> Iterator[int]:
        """The logs that have the meter; O(logs)."""
        ...

    def largest(self, meter: ByteMeter, count: int) -> Sequence[int]:
        """Those of them that keep the most bytes as committed, the largest first; O(logs)."""
        ...


class LossLedger(Protocol):
    """The loss ledger: ranges of dropped messages, each with its reason."""

    @property
    def entered(self) -> Mapping[str, int]:
        """Count of entries since the start, by reason."""
        ...

    def record(self, losses: Sequence[Loss]) -> Ticket:
        """Enter losses of messages that never were in the store: they are in the ledger with the open group, or with
        the next one that succeeds. What is put together with them is in the same commit."""
        ...

    def entries(self, after: int, entries_max: int, subscriptions: str = "") -> Sequence[LedgerEntry]:
        """Committed ledger entries numbered above `after`, of subscriptions whose name begins with `subscriptions`,
        oldest first; what was read here does not change any more.

        Blocks for a short read of the medium. Raises StoreError.
        """
        ...

    def lost(self, subscriptions: str) -> Mapping[str, Mapping[str, int]]:
        """Messages in the committed ledger of subscriptions whose name begins so, by address and reason.

        Blocks for a read of the whole ledger. Raises StoreError.
        """
        ...

    def account_for_crash(self) -> None:
        """Write into the ledger, with reason ``memory``, the sequences that may have been given to messages that were
        in memory only when the store was last closed by a crash. To be called once, when every cursor has its
        filter."""
        ...


class EpochLineage(Protocol):
    """Which store this is, and which of its messages have which names."""

    @property
    def epochs(self) -> Epochs:
        """Names of its epochs, and which one a message belongs to."""
        ...

    @property
    def epoch(self) -> str:
        """The current epoch: 32 hex digits, random, made with the store."""
        ...

    @property
    def openings(self) -> Sequence[str]:
        """Ids of the times the store was opened, as far as it remembers, the newest last."""
        ...

    def opening_ends(self) -> Iterator[Mapping[int, int] | None]:
        """Of each of `openings`, the newest first, the next position of each log at that moment, and `reached`; None
        when that is damaged; fewer when they cannot be read. To be taken at once."""
        ...

    @property
    def reached(self) -> Mapping[int, int]:
        """How far the store has come besides the ends of logs, as if it were the end of one: a copy that has less is
        older. Where a log is kept in memory the copy's end of it is reserved ahead, and tells nothing."""
        ...

    def sequences(self) -> Iterator[tuple[str, int]]:
        """(address, next sequence) of every address that ever had a message; for rare questions: it reads them all."""
        ...

    def fork(self, shared: str) -> None:
        """Somebody knows of openings of this store that it does not know itself: it is an older copy, put back. What
        was appended since the opening after `shared`, the last one both know, is of a new epoch.

        Reads what was appended since. Raises StoreError.
        """
        ...

    def begin_epoch(self) -> None:
        """Name new messages in a new epoch, as the operator knows that this is an older copy. Raises StoreError."""
        ...


class StoreCommits(Protocol):
    """The group commit: what joined the open group, and when it goes to the medium.

    `flush` seals the open group and hands it to the medium, unless a commit is running (then the group stays open and
    grows) or nothing is in it. When a commit ends, the `listeners` are called on the loop's thread, and then the
    next `flush` may seal. Callbacks reach that thread through the `post` function given at construction
    (``loop.call_soon_threadsafe`` in the product, a list in tests).

    For cursor moves alone `flush` seals a group when they have waited, and not before; so the owner calls it from a
    periodic tick as well. Deleting what every cursor has passed is bounded work a commit and goes on in later ones:
    `flush` by a listener drives it.
    """

    listeners: list[Callable[[Committed], None]]
    """Told of the end of each commit, in the order they were added."""

    def flush(self) -> bool:
        """Seal the open group and start its commit; False when a commit is running or nothing is due."""
        ...

    @property
    def committing(self) -> bool:
        """True while a sealed group is with the writer."""
        ...

    @property
    def pending_bytes(self) -> int:
        """Bytes of bodies gathered and not yet durable; the server stops reading sockets above a limit."""
        ...

    @property
    def gathered(self) -> int:
        """Runs in the open group: tells whether somebody appended."""
        ...

    def due_in(self) -> float | None:
        """Seconds until a `flush` would seal what waits for company; None when nothing does. 0 or more."""
        ...

    @property
    def moves_kept(self) -> int:
        """Commits that held every cursor move there was. A move remembered while no commit runs is on disk once this
        has grown."""
        ...


class Store(Protocol):
    """The whole store, as its owner has it."""

    @property
    def logs(self) -> MessageLogs:
        """The message logs."""
        ...

    @property
    def cursors(self) -> Cursors:
        """The cursors in them."""
        ...

    @property
    def state(self) -> SmallState:
        """Small durable state."""
        ...

    @property
    def retention(self) -> Retention:
        """The bytes that logs keep."""
        ...

    @property
    def ledger(self) -> LossLedger:
        """The loss ledger."""
        ...

    @property
    def lineage(self) -> EpochLineage:
        """The names of the store and of its messages."""
        ...

    @property
    def commits(self) -> StoreCommits:
        """The group commit."""
        ...

    def cursor_records(self, but: str = "") -> Sequence[CursorRecord]:
        """Every cursor, as of the last commit, less those of one name."""
        ...

    def info(self) -> StoreInfo:
        """What the store holds; O(logs + cursors)."""
        ...

    def totals(self) -> StoreTotals:
        """What it holds in all; O(logs kept in memory)."""
        ...

    def close(self) -> None:
        """Commit what is gathered, stop the threads, close the file. Blocks; idempotent.

        The listeners of `commits` are called from within; reads under way are not answered. What joins while they are
        told of the last commit is not committed: its ticket says so.
        """
        ...
