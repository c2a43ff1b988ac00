"""What a store keeps in memory: logs, cursors, and the group a commit writes. Nothing here grows with the backlog."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from bridge.message import Run, Stored
from edge.broker.store.contract import CursorRecord, Loss, StoreError, Ticket
from edge.broker.store.ledger import Entries
from edge.broker.store.progress import Progress
from edge.broker.store.tail import Settlement


@dataclass(slots=True)
class LogState:
    """A log: positions ``first <= p < next`` are committed and kept."""

    log: int
    name: str
    first: int = 0
    next: int = 0
    bytes: int = 0
    counted: int = 0
    """`next` as it stands in table ``log``; segments from here on are read again at open, so they must not go."""
    floor: int | None = None
    """The lowest cursor's position; None when it has to be worked out again."""
    doomed: int = 0
    """Everything below may be gone once the running commit is done."""
    cursors: set[int] = field(default_factory=set)
    thinned_to: tuple[int, int] = (0, 0)
    """Pass and position at which thinning goes on; forgotten at the end, as finding it again is cheap."""


@dataclass(slots=True)
class CursorState:
    """A cursor with what is remembered of it, committed or not."""

    cursor: int
    name: str
    log: int
    progress: Progress
    wants: Callable[[Run], bool] | None = None
    """What it is owed of its log; None: everything."""

    def record(self) -> CursorRecord:
        return CursorRecord(self.cursor, self.name, self.log, self.progress.position, self.progress.above)


class LogRow(NamedTuple):
    """A row of table ``log``."""

    log: int
    name: str
    first: int
    next: int
    bytes: int


class CursorRow(NamedTuple):
    """A row of table ``cursor``; `acknowledged` is `Progress.pack`."""

    cursor: int
    name: str
    log: int
    position: int
    acknowledged: bytes


class Reclaim(NamedTuple):
    """Delete the segments of `log` that end at or below `limit`; `first` is the first position kept so far."""

    log: int
    first: int
    limit: int


class Reclaimed(NamedTuple):
    """What a `Reclaim` did: `first` is kept now, `bytes` of bodies went; not `finished` when the budget ran out."""

    log: int
    first: int
    bytes: int
    finished: bool


class Holder(NamedTuple):
    """A cursor as an eviction sees it: what it acknowledged, and what it is owed."""

    name: str
    progress: Progress
    wants: Callable[[Run], bool] | None


class Eviction(NamedTuple):
    """Delete the oldest segments of `log`, from `first` on and below `limit`, `bytes` of bodies or a little more."""

    log: int
    first: int
    limit: int
    bytes: int
    holders: Sequence[Holder]
    now_ns: int
    """UTC."""
    at_most: int | None = None
    """Bytes of bodies that may go, to the message; None: whole segments go."""


class Evicted(NamedTuple):
    """What an `Eviction` did: `first` is kept now, `bytes` of bodies went."""

    log: int
    first: int
    bytes: int
    losses: Sequence[Loss] = ()
    cut: bool = False
    """A segment was cut in two, so that one begins where none began."""


class Thinning(NamedTuple):
    """Free `bytes` of bodies of a log, going on at pass `level` and `position`; `limit` is the first position that must
    stay as it is, `read_bytes_max` the most that may be read for it."""

    log: int
    level: int
    position: int
    first: int
    limit: int
    bytes: int
    read_bytes_max: int
    holders: Sequence[Holder]
    now_ns: int
    at_most: int | None = None
    """As in `Eviction`."""
    messages_max: int = 1 << 62
    """Messages that may be read for it, but for the last piece."""


@dataclass(slots=True)
class Thinned:
    """What a `Thinning` did, and where it is to go on; `level` is the number of passes when none is left."""

    log: int
    level: int
    position: int
    ended: bool = False
    """Everything was thinned by every interval."""
    freed: int = 0
    read: int = 0
    messages: int = 0
    """How many were read."""
    losses: list[Loss] = field(default_factory=list)


class GivenUp(NamedTuple):
    """Positions a cursor is done with; `if_kept`: only with what the group appends."""

    cursor: int
    first: int
    last: int
    losses: Sequence[Loss]
    if_kept: bool


class Outcome(NamedTuple):
    """How a commit ended."""

    error: StoreError | None
    reclaimed: Sequence[Reclaimed] = ()
    evicted: Sequence[Evicted] = ()
    thinned: Sequence[Thinned] = ()
    entries: Entries = Entries()


@dataclass(slots=True, eq=False)
class Group:
    """What one commit writes; `outcome` is set by the committing thread before `done`."""

    runs: list[tuple[int, Run]]
    size: int
    """Bytes of all bodies."""
    sizes: dict[int, int]
    """Bytes of bodies by log."""
    new_logs: list[int]
    opened: set[int]
    dropped: set[int]
    state: dict[tuple[str, str], bytes | None]
    ticket: Ticket
    """Of everybody who joined it."""
    moved: set[int] = field(default_factory=set)
    appended: list[tuple[int, Stored]] = field(default_factory=list)
    ends: dict[int, int] = field(default_factory=dict)
    """Next position by log, after this group."""
    sequences: dict[str, int] = field(default_factory=dict)
    """Next sequence by address, after this group."""
    monotonic_ns: int = 0
    counting: bool = False
    counters: dict[str, int] = field(default_factory=dict)
    log_rows: list[LogRow] = field(default_factory=list)
    cursor_rows: list[CursorRow] = field(default_factory=list)
    reclaims: list[Reclaim] = field(default_factory=list)
    given_up: list[GivenUp] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    """Noted for the ledger, whatever becomes of what is appended."""
    evicting: dict[int, int] = field(default_factory=dict)
    """Bytes asked to be evicted, by log."""
    at_most: dict[int, int | None] = field(default_factory=dict)
    """The most that may go of a log that gives way."""
    evictions: list[Eviction] = field(default_factory=list)
    thinning: dict[int, int] = field(default_factory=dict)
    """Bytes asked to be freed by thinning, by log."""
    thinnings: list[Thinning] = field(default_factory=list)
    settled: list[Settlement] = field(default_factory=list)
    """What it settles of logs that are kept in memory."""
    filled: list[tuple[int, int, int]] = field(default_factory=list)
    """(log, first, end) of positions that nothing is at, to be covered by a segment of their own."""
    reclaim_bytes_max: int = 0
    outcome: Outcome | None = None
    done: threading.Event = field(default_factory=threading.Event)
