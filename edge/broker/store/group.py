"""What one commit writes, from the first thing that joins it to its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from bridge.hidden import hides
from bridge.message import Run, Stored
from edge.broker.store.errors import StoreError
from edge.broker.store.ledger import Entries
from edge.broker.store.log_rows import LogRow
from edge.broker.store.records import Loss
from edge.broker.store.removal_jobs import Evicted, Eviction, Reclaim, Reclaimed, Thinned, Thinning
from edge.broker.store.ring_part import RingPart
from edge.broker.store.ticket import Ticket


class CursorRow(NamedTuple):
    """A row of table ``cursor``; `acknowledged` is `Progress.pack`."""

    cursor: int
    name: str
    log: int
    position: int
    acknowledged: bytes


class CursorPass(NamedTuple):
    """Cursors of one log that are rows only, and have passed everything below a position."""

    log: int
    position: int
    cursors: frozenset[int]


class SweepPart(NamedTuple):
    """What one commit writes of a sweep over counters (`counter_sweep`)."""

    counters: dict[str, int]
    """Next sequence by address, with what the commit makes of it."""
    following: int
    """Where the next part begins."""


class SkippedRange(NamedTuple):
    """Positions a cursor is done with; `if_kept`: only with what the group appends."""

    cursor: int
    first: int
    last: int
    losses: Sequence[Loss]
    if_kept: bool


class CommitOutcome(NamedTuple):
    """How a commit ended."""

    error: StoreError | None
    reclaimed: Sequence[Reclaimed] = ()
    evicted: Sequence[Evicted] = ()
    thinned: Sequence[Thinned] = ()
    entries: Entries = Entries()


@hides("state")
@dataclass(slots=True, eq=False)
class CommitGroup:
    """It gathers while it is open; sealing works out the rest; the committing thread sets `outcome`.

    It holds *new* values: the store's own change only when the commit has succeeded.
    """

    # what joined
    ticket: Ticket = field(default_factory=Ticket)
    """Of everybody who joined it."""
    runs: list[tuple[int, Run]] = field(default_factory=list)
    size: int = 0
    """Bytes of all bodies."""
    sizes: dict[int, int] = field(default_factory=dict)
    """Bytes of bodies by log."""
    new_logs: list[int] = field(default_factory=list)
    freed: set[int] = field(default_factory=set)
    """Logs that gave up their names; they may have others by now."""
    opened: set[int] = field(default_factory=set)
    dropped: set[int] = field(default_factory=set)
    state: dict[tuple[str, str], bytes | None] = field(default_factory=dict)
    given_up: list[SkippedRange] = field(default_factory=list)
    confirming: set[int] = field(default_factory=set)
    """Cursors that it writes in any case, as a client waits for the answer."""
    losses: list[Loss] = field(default_factory=list)
    """For the ledger, whatever becomes of what is appended."""
    evicting: dict[int, int] = field(default_factory=dict)
    """Bytes asked to be evicted, by log."""
    thinning: dict[int, int] = field(default_factory=dict)
    """Bytes asked to be freed by thinning, by log."""
    at_most: dict[int, int | None] = field(default_factory=dict)
    """The most that may go of a log that gives way."""
    urgent: bool = False
    """Something in it waits for no company."""
    retries: bool = False
    """A commit failed that waited for no company, and left something to this one."""
    due_at_s: float | None = None
    """When it is to be sealed at the latest for what was appended with a delay."""

    # what sealing works out
    monotonic_ns: int = 0
    last: bool = False
    """The store closes after it."""
    calm: bool = False
    """No logs have come into use for a while, and it writes the counters of those that did."""
    packed: set[int] = field(default_factory=set)
    """Logs whose messages may wait, so that their segments are worth compressing."""
    moved: set[int] = field(default_factory=set)
    all_moved: bool = False
    """There are some, and no other cursor has moved."""
    appended: list[tuple[int, Stored]] = field(default_factory=list)
    ends: dict[int, int] = field(default_factory=dict)
    """Next position by log, after this group."""
    sequences: dict[str, int] = field(default_factory=dict)
    """Next sequence by address, after this group."""
    counting: bool = False
    """It writes all counters."""
    part: SweepPart | None = None
    """It writes some of them."""
    counters: dict[str, int] = field(default_factory=dict)
    counted: set[int] = field(default_factory=set)
    """New logs whose ends it writes, with the counters of what came to them, although it does not write all."""
    swept: dict[int, int] = field(default_factory=dict)
    """Where logs ended when the sweep began that ends with it."""
    log_rows: list[LogRow] = field(default_factory=list)
    cursor_rows: list[CursorRow] = field(default_factory=list)
    passes: list[CursorPass] = field(default_factory=list)
    evictions: list[Eviction] = field(default_factory=list)
    thinnings: list[Thinning] = field(default_factory=list)
    reclaims: list[Reclaim] = field(default_factory=list)
    reclaim_bytes_max: int = 0
    ring: RingPart | None = None
    """Numbers it reserves or gives back for logs that are kept in memory."""
    filled: list[tuple[int, int, int]] = field(default_factory=list)
    """(log, first, end) of positions that nothing is at, to be covered by a segment of their own."""

    # its end
    outcome: CommitOutcome | None = None
