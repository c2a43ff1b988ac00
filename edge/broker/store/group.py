"""Group: the contents and the result of one commit."""

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
    """A row of table ``cursor``; `acknowledged` comes from `CursorProgress.pack`."""

    cursor: int
    name: str
    log: int
    position: int
    acknowledged: bytes


class CursorPass(NamedTuple):
    """Idle cursors of one log that have passed everything below a position."""

    log: int
    position: int
    cursors: frozenset[int]


class SweepPart(NamedTuple):
    """Part of a sweep over counters that one commit writes (`counter_sweep`)."""

    counters: dict[str, int]
    """Next sequence by address, after the commit."""
    following: int
    """Index of the next name in the sweep."""


class SkippedRange(NamedTuple):
    """Range that a cursor gives up. `if_kept`: only if the messages of the group are committed."""

    cursor: int
    first: int
    last: int
    losses: Sequence[Loss]
    if_kept: bool


class GroupMark(NamedTuple):
    """Contents of an open group at the start of a block of changes that belong together."""

    runs: int
    size: int
    sizes: dict[int, int]
    given_up: int
    evicting: dict[int, int]
    thinning: dict[int, int]
    at_most: dict[int, int | None]


class CommitOutcome(NamedTuple):
    """Result of a commit."""

    error: StoreError | None
    reclaimed: Sequence[Reclaimed] = ()
    evicted: Sequence[Evicted] = ()
    thinned: Sequence[Thinned] = ()
    entries: Entries = Entries()


@hides("state")
@dataclass(slots=True, eq=False)
class CommitGroup:
    """Everything that one commit writes.

    An open group gathers changes. Sealing adds derived values. The committing thread sets `outcome`. A group holds
    *new* values: the values of the store change only after a successful commit.
    """

    # gathered while open
    ticket: Ticket = field(default_factory=Ticket)
    """Ticket shared by all changes in the group."""
    runs: list[tuple[int, Run]] = field(default_factory=list)
    size: int = 0
    """Bytes of all bodies."""
    sizes: dict[int, int] = field(default_factory=dict)
    """Bytes of bodies by log."""
    new_logs: list[int] = field(default_factory=list)
    freed: set[int] = field(default_factory=set)
    """Logs that released their names. They may have new names by now."""
    opened: set[int] = field(default_factory=set)
    dropped: set[int] = field(default_factory=set)
    state: dict[tuple[str, str], bytes | None] = field(default_factory=dict)
    given_up: list[SkippedRange] = field(default_factory=list)
    confirming: set[int] = field(default_factory=set)
    """Cursors that it must write, because a client waits for the answer."""
    losses: list[Loss] = field(default_factory=list)
    """Losses to enter into the ledger, even if the appended messages are discarded."""
    evicting: dict[int, int] = field(default_factory=dict)
    """Bytes to evict, by log."""
    thinning: dict[int, int] = field(default_factory=dict)
    """Bytes to free by thinning, by log."""
    at_most: dict[int, int | None] = field(default_factory=dict)
    """Limit of bytes to remove, by log; None: no limit."""
    urgent: bool = False
    """True when the group must not wait for more changes."""
    retries: bool = False
    """True when it has changes of a failed urgent commit."""
    due_at_s: float | None = None
    """Latest time to seal the group for messages appended with a delay."""

    # set when the group is sealed
    monotonic_ns: int = 0
    last: bool = False
    """True for the last group before the store closes."""
    while_idle: bool = False
    """True when it writes all counters because no log came into use for a while."""
    packed: set[int] = field(default_factory=set)
    """Logs with delayed commits. Their segments are worth compressing."""
    moved: set[int] = field(default_factory=set)
    all_moved: bool = False
    """True when it writes all pending cursor moves."""
    appended: list[tuple[int, Stored]] = field(default_factory=list)
    ends: dict[int, int] = field(default_factory=dict)
    """Next position by log, after this group."""
    sequences: dict[str, int] = field(default_factory=dict)
    """Next sequence by address, after this group."""
    counting: bool = False
    """True when it writes all counters."""
    part: SweepPart | None = None
    """Part of the counters that it writes."""
    counters: dict[str, int] = field(default_factory=dict)
    counted: set[int] = field(default_factory=set)
    """New logs with their ends and counters written, although the group does not write all counters."""
    swept: dict[int, int] = field(default_factory=dict)
    """Ends of logs at the start of the sweep that this group completes."""
    log_rows: list[LogRow] = field(default_factory=list)
    cursor_rows: list[CursorRow] = field(default_factory=list)
    passes: list[CursorPass] = field(default_factory=list)
    evictions: list[Eviction] = field(default_factory=list)
    thinnings: list[Thinning] = field(default_factory=list)
    reclaims: list[Reclaim] = field(default_factory=list)
    reclaim_bytes_max: int = 0
    ring: RingPart | None = None
    """Numbers that it reserves or releases for logs kept in memory."""
    filled: list[tuple[int, int, int]] = field(default_factory=list)
    """(log, first, end) of positions without messages, to be covered by an empty segment."""

    # result
    outcome: CommitOutcome | None = None

    def mark(self) -> GroupMark:
        """Return the contents that `undo` restores."""
        copies = dict(self.evicting), dict(self.thinning), dict(self.at_most)
        return GroupMark(len(self.runs), self.size, dict(self.sizes), len(self.given_up), *copies)

    def undo(self, mark: GroupMark) -> None:
        """Remove the messages, bound acknowledgements and removals that joined the group since this mark."""
        del self.runs[mark.runs :]
        del self.given_up[mark.given_up :]
        self.size, self.sizes = mark.size, mark.sizes
        self.evicting, self.thinning, self.at_most = mark.evicting, mark.thinning, mark.at_most
