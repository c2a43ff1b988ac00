"""Value types of the store interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from bridge.message import Run, Stored
from edge.broker.store.errors import StoreError


class CursorRecord(NamedTuple):
    """Cursor in the store. ``position`` is the first position that is not acknowledged."""

    cursor: int
    name: str
    log: int
    position: int
    acknowledged: Sequence[tuple[int, int]]
    """Acknowledged ranges (first, last) above `position`, ascending and disjoint."""


class Committed(NamedTuple):
    """Result of one commit: the messages it made durable, or the error."""

    appended: Sequence[tuple[int, Stored]]
    """(log, stored run) in the order appended; empty when `error` is set.

    Also contains runs of memory logs that were waiting for this commit to reserve their sequences.
    """
    error: StoreError | None
    gave_up: bool = False
    """True when the commit added entries to the loss ledger."""


class Loss(NamedTuple):
    """Dropped messages: sequences ``first..last`` of an address, for one consumer group."""

    subscription: str
    """Name of the cursor that skips them."""
    address: str
    first: int
    last: int
    messages: int
    """Number of dropped messages in the range. Merged entries have fewer than the size of the range."""
    bytes: int
    """Bytes of their bodies."""
    reason: str
    decided_at: int
    """UTC nanoseconds."""


Summarise = Callable[[Sequence[tuple[Run, bytes]]], Run | None]
"""Summarises several messages of one device and address, oldest first, as a run of one; None when that is impossible.
``Run.received_at`` is that of the last message."""

Kind = Callable[[Run, bytes], str | None]
"""Returns the kind of a message. Messages of the same kind can be summarised together; None: not at all."""


class Summary(NamedTuple):
    """Functions that group and summarise messages. Called on the writer's thread."""

    kind: Kind
    summarise: Summarise


class LedgerEntry(NamedTuple):
    """Row of the loss ledger: a `Loss` with its number (`entry`), which rises with each decision."""

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
    """Committed state of a log: positions ``first <= p < next`` with `bytes` of bodies."""

    log: int
    name: str
    first: int
    next: int
    bytes: int


class CursorInfo(NamedTuple):
    """Cursor with the number of messages that it has not acknowledged (`backlog`)."""

    cursor: int
    name: str
    log: int
    position: int
    backlog: int


class StoreTotals(NamedTuple):
    """Totals of a store, for status pages."""

    messages: int
    bytes: int
    """Bytes of bodies."""
    file_bytes: int
    """Bytes of the files on the medium, 0 in memory."""
    memory_bytes: int
    """Bytes of bodies, part of `bytes`, that are in memory only."""


class StoreInfo(NamedTuple):
    """Contents of a store, for status pages."""

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
