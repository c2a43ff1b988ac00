"""What the router asks of a store: four verbs on logs, small durable state, and one commit at a time.

Words: a *log* is an append-only sequence of messages (one for each queue; one for each `Address` resource of type
topic, whatever number of topic names it covers). A *position* is a message's place in its log, dense from 0. A
*sequence* is a message's number in (epoch, address), dense from 0. A *cursor* is one consumer group's place in one
log: everything below its position is acknowledged, plus ranges above it. A *group* is what one commit writes.

Nothing is durable until the group it joined is committed. Positions and sequences are given when a group is sealed, so
a group that fails to commit leaves no hole. What a failed group had appended is given up (its senders are told);
everything else it held (new logs and cursors, acknowledgements, dropped cursors, small state) is kept and joins the
next group, so that no number handed out ever becomes invalid. Implementations: `sqlite` (the product) and `memory`
(its twin in tests); one contract suite runs over both.

A log may be *kept in memory*: its messages are named and handed on at once, and written only when they have waited for
their acknowledgements for long. A crash may take them; which they may have been is in the ledger then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from bridge.message import Run, Stored
from edge.broker.store.epochs import Epochs


class StoreError(Exception):
    """The store cannot do what was asked; the message says why and what to do next."""


class StoreBusy(StoreError):
    """Another process holds this data directory."""


class StoreTooNew(StoreError):
    """The store was made by a newer program."""


class StoreFull(StoreError):
    """The medium is full or read-only, or the floor under free space is reached; nothing of the group was kept."""


class StoreDamaged(StoreError):
    """The file is not a store, or what it holds fails its checks."""


class StoreInaccessible(StoreError):
    """The data directory or a file in it cannot be read and written by this process."""


class Ticket:
    """The commit that something joined: shared by all that joined the same group, decided once, by its end.

    Decided before any of the `commit_listeners` is told. One that no commit will decide any more is decided with an
    error when the store closes.
    """

    __slots__ = ("decided", "error")

    def __init__(self) -> None:
        self.decided = False
        self.error: StoreError | None = None
        """Why the commit failed; None once it is decided means: on disk."""

    def decide(self, error: StoreError | None) -> None:
        """The store's alone. Raises RuntimeError when it was decided before."""
        if self.decided:
            raise RuntimeError("the commit is over already")
        self.decided, self.error = True, error


class CursorRecord(NamedTuple):
    """A cursor as it stands in the store: ``position`` is the first position not acknowledged for good."""

    cursor: int
    name: str
    log: int
    position: int
    acknowledged: Sequence[tuple[int, int]]
    """Ranges (first, last) above `position` that are acknowledged already, ascending, disjoint."""


class Committed(NamedTuple):
    """What one commit made durable, or why it did not."""

    appended: Sequence[tuple[int, Stored]]
    """(log, stored run) in the order appended; empty when `error` is set. With those of a log kept in memory that had
    joined the group after it and need not wait any longer."""
    error: StoreError | None
    gave_up: bool = False
    """It wrote entries into the loss ledger."""


class Loss(NamedTuple):
    """Messages given up: sequences ``first..last`` of an address, for one consumer group."""

    subscription: str
    """Name of the cursor that is not given them."""
    address: str
    first: int
    last: int
    messages: int
    """How many of the range were given up; fewer than it holds when entries had to be merged."""
    bytes: int
    """Bytes of their bodies."""
    reason: str
    decided_at: int
    """UTC nanoseconds."""


Summarise = Callable[[Sequence[tuple[Run, bytes]]], Run | None]
"""What several messages of one device and address, oldest first, amount to: a run of one, or None when they cannot be
summed up. ``Run.received_at`` is that of the last."""

Kind = Callable[[Run, bytes], str | None]
"""Messages of the same kind can be summed up together; None: this one stays as it is."""


class Summary(NamedTuple):
    """How messages are told apart and summed up; called on the writer's thread."""

    kind: Kind
    summarise: Summarise


class LedgerEntry(NamedTuple):
    """A row of the loss ledger: a `Loss` with its number, which ascends in the order of the decisions."""

    entry: int
    subscription: str
    address: str
    first: int
    last: int
    messages: int
    bytes: int
    reason: str
    decided_at: int


class LogInfo(NamedTuple):
    """A log as committed: positions ``first <= p < next`` are kept, with `bytes` of bodies."""

    log: int
    name: str
    first: int
    next: int
    bytes: int


class CursorInfo(NamedTuple):
    """A cursor as remembered: `backlog` messages of its log are not acknowledged."""

    cursor: int
    name: str
    log: int
    position: int
    backlog: int


class StoreInfo(NamedTuple):
    """What a store holds; for status pages."""

    epoch: str
    messages: int
    bytes: int
    """Bytes of bodies."""
    file_bytes: int
    """Bytes of the files on the medium, 0 in memory."""
    pending_bytes: int
    memory_bytes: int
    """Bytes of bodies, part of `bytes`, that are in memory only."""
    logs: Sequence[LogInfo]
    cursors: Sequence[CursorInfo]


class Store(Protocol):
    """The gateway's store. All methods are called from the event loop's thread only and return at once.

    `append`, `acknowledge`, `give_up`, `evict`, `put`, `delete`, `log`, `open_cursor` and `drop_cursor` join the open
    group. `flush` seals it and hands it to the writer, unless a commit is running (then the group stays open and grows:
    that is the group commit) or nothing is in it. When a commit ends, the `commit_listeners` are called on the loop's
    thread, and then the next `flush` may seal. Callbacks reach that thread through the `post` function given at
    construction (``loop.call_soon_threadsafe`` in the product, a list in tests).

    Cursor moves (`acknowledge`) are lazy, because losing one only delivers a message again: they are written by the
    first group sealed `moves_delay_s` (50 ms) or more after they were remembered. `flush` seals a group for them alone
    when nothing else is in it, and not before; so the owner calls `flush` from a periodic tick as well. Deleting what
    every cursor has passed is bounded work a commit and goes on in later ones: `flush` by a listener drives it.
    """

    commit_listeners: list[Callable[[Committed], None]]
    """Told of the end of each commit, in the order they were added."""

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

    def fork(self, shared: str) -> None:
        """Somebody knows of openings of this store that it does not know itself: it is an older copy, put back. What
        was appended since the opening after `shared`, the last one both know, is of a new epoch.

        Reads what was appended since. Raises StoreError.
        """
        ...

    @property
    def pending_bytes(self) -> int:
        """Bytes of bodies gathered and not yet durable; the server stops reading sockets above a limit."""
        ...

    @property
    def committing(self) -> bool:
        """True while a sealed group is with the writer."""
        ...

    @property
    def moves_kept(self) -> int:
        """Commits that held cursor moves. A move remembered while no commit runs is on disk once this has grown."""
        ...

    def log(self, name: str) -> int:
        """The number of the log called `name`; made (in the open group) when it is new.

        Raises StoreError when there are 524 287 logs.
        """
        ...

    def delay(self, log: int, delay_s: float) -> None:
        """Appends to this log may wait up to `delay_s` for company before their group is sealed; 0 (as for a new log)
        seals at the next `flush`."""
        ...

    def keep_in_memory(self, log: int, *, keep: bool) -> None:
        """Appends to this log are taken in memory from now on, or written before they are acknowledged (as for a new
        log). To be said again when the addresses of the log may have changed.

        What every cursor acknowledges within `Limits.memory_window_s` is never written. What is not is written by a
        group of its own, as is what a log has in memory beyond `Limits.memory_bytes_max`; with twice as much there, and
        when nothing is reserved yet, appends join the open group.
        """
        ...

    def account_for_lost(self) -> None:
        """Write into the ledger, with reason ``memory``, the sequences that may have been given to messages that were
        in memory only when the store was last closed by a crash. To be called once, when every cursor is `narrow`."""
        ...

    def due_in(self) -> float | None:
        """Seconds until a `flush` would seal what waits for company; None when nothing does. 0 or more."""
        ...

    def bounds(self, log: int) -> tuple[int, int]:
        """(first position kept, next position to be given), both of what is committed."""
        ...

    def sequences(self) -> Iterator[tuple[str, int]]:
        """(address, next sequence) of every address that ever had a message; for rare questions: it reads them all."""
        ...

    def append(self, log: int, run: Run) -> Ticket | Stored:
        """Add a run to the open group. It gets position and sequence when the group is sealed.

        Returns the ticket of the group; or the run with both numbers when it was taken in memory: it is in no group and
        in no `Committed`, can be read and acknowledged from now on, and comes after everything told or returned before.

        Raises StoreError when its address or device is over 65 535 bytes of UTF-8 or not valid Unicode, or when the
        store is closed.
        """
        ...

    def open_cursor(self, name: str, log: int, position: int) -> int:
        """The number of the cursor (name, log); made when it is new, else left as it stands.

        It is made at `position`, or at the first position kept when that is later, or at the end of what is committed
        when that is earlier: positions beyond it are given anew when a commit fails.
        """
        ...

    def cursor(self, cursor: int) -> CursorRecord:
        """One cursor as remembered, with what is not committed yet. Raises KeyError when there is none."""
        ...

    def cursors(self) -> Sequence[CursorRecord]:
        """Every cursor, as of the last commit."""
        ...

    def acknowledge(self, cursor: int, first: int, last: int) -> None:
        """Positions ``first <= p <= last`` are done with for this cursor. Idempotent, any order.

        Segments wholly below every cursor of their log are deleted by a later commit. Nothing happens when the cursor
        was dropped. Raises ValueError when `last` is not committed yet.
        """
        ...

    def give_up(self, cursor: int, first: int, last: int, losses: Sequence[Loss], *, if_kept: bool = False) -> Ticket:
        """Positions ``first <= p <= last`` are done with for this cursor, and the ledger says why: one commit for both.

        `if_kept`: only if what was appended to the open group is committed with it (a dead letter takes the place of
        the message); nothing happens when that commit fails. Without it the two wait for the next commit that succeeds.
        Idempotent like `acknowledge`, but for the losses. Nothing waits when the cursor was dropped: its ticket is
        decided then. Raises ValueError when `last` is not committed yet.
        """
        ...

    @property
    def gathered(self) -> int:
        """Runs in the open group: tells whether somebody appended."""
        ...

    def losses(self, after: int, entries_max: int, subscriptions: str = "") -> Sequence[LedgerEntry]:
        """Committed ledger entries numbered above `after`, of subscriptions whose name begins with `subscriptions`,
        oldest first; what was read here does not change any more.

        Blocks for a short read of the medium. Raises StoreError.
        """
        ...

    def log_bytes(self, log: int) -> int:
        """Bytes of bodies the log keeps, with those on their way to the medium, as far as deleting has come."""
        ...

    def free_bytes(self) -> int | None:
        """Bytes that can be written before the medium is full: its free space, and pages of the file that are free,
        less what the file has yet to grow by. None where there is no medium."""
        ...

    def evict(self, log: int, size: int, at_most: int | None = None) -> None:
        """Give up the oldest messages of a log, `size` bytes of bodies or a little more, in the open group.

        With `at_most` no byte beyond that goes: less than `size` may, if the next message is too large. Without it
        whole segments go.

        What some cursor had not acknowledged (and `narrow` says it wanted) becomes ledger entries of that commit, with
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

    def narrow(self, cursor: int, wants: Callable[[Run], bool]) -> None:
        """Of its log this cursor is owed only what `wants` says (by everything but bodies); called on any thread."""
        ...

    def drop_cursor(self, cursor: int) -> None:
        """The consumer group is gone; a log without cursors keeps nothing."""
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

    def items(self, kind: str) -> Iterator[tuple[str, bytes]]:
        """All (key, value) of a kind as committed; for start-up."""
        ...

    def flush(self) -> bool:
        """Seal the open group and start its commit; False when a commit is running or nothing is due."""
        ...

    def info(self) -> StoreInfo:
        """What the store holds; O(logs + cursors)."""
        ...

    def close(self) -> None:
        """Commit what is gathered, stop the threads, close the file. Blocks; idempotent.

        The `commit_listeners` are called from within; reads under way are not answered. What joins while they are told
        of the last commit is not committed: its ticket says so.
        """
        ...
