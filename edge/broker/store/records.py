"""What a store and its users tell one another: values, and nothing that acts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from bridge.message import Run, Stored
from edge.broker.store.errors import StoreError


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
    """(log, stored run) in the order appended; empty when `error` is set. With those of logs kept in memory for which
    it reserved numbers: they are in memory now."""
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


class StoreTotals(NamedTuple):
    """What a store holds in all, for status pages."""

    messages: int
    bytes: int
    """Bytes of bodies."""
    file_bytes: int
    """Bytes of the files on the medium, 0 in memory."""
    memory_bytes: int
    """Bytes of bodies, part of `bytes`, that are in memory only."""


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
