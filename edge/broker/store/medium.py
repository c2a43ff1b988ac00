"""What a store needs of the medium that keeps it: one commit at a time, reads, and a few questions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol

from bridge.message import Stored
from edge.broker.store.epochs import Epochs
from edge.broker.store.group import CommitGroup, CursorRow
from edge.broker.store.logs import LogState
from edge.broker.store.records import LedgerEntry

Post = Callable[[Callable[[], None]], object]
"""Runs a callback on the event loop's thread, soon; callable from any thread."""

ReadDone = Callable[[Sequence[Stored]], None]
"""Takes the answer of a read."""

FAILED: Final[list[Stored]] = []
"""The answer when the medium could not be read, by identity; empty for ever."""


UNREAD: Final = -1
"""In place of a position, when the medium could not be read."""


class Medium(Protocol):
    """Called on the event loop's thread. What it is asked for is what the last commit left."""

    @property
    def epochs(self) -> Epochs:
        """Which epoch a message belongs to."""
        ...

    @property
    def openings(self) -> Sequence[str]:
        """Ids of the times the store was opened, the newest last."""
        ...

    def opening_ends(self) -> Iterator[Mapping[int, int] | None]:
        """See `contract.EpochLineage`."""
        ...

    def commit(self, group: CommitGroup, finished: Callable[[], None]) -> None:
        """Start making a sealed group durable; sets `CommitGroup.outcome`, then posts `finished`.

        Raises StoreError when that cannot even begin.
        """
        ...

    def wait(self) -> None:
        """Block until the commit that was begun last is over: its group has an outcome."""
        ...

    def committed(self, group: CommitGroup) -> None:
        """The commit of `group` has succeeded; called on the loop's thread."""
        ...

    @property
    def last_words(self) -> bool:
        """It has something of its own to write in the last commit, whatever else that holds."""
        ...

    def read(self, log: LogState, position: int, end: int, bytes_max: int, done: ReadDone) -> None:
        """Read ``position <= p < end`` of a log, about `bytes_max` of bodies but one run at least; posts `done`, with
        `FAILED` when the medium cannot be read."""
        ...

    def sequences(self) -> Iterator[tuple[str, int]]:
        """(address, next sequence) of every address. Raises StoreError."""
        ...

    def sequences_of(self, addresses: Iterable[str]) -> dict[str, int]:
        """Counters of `addresses`; those without one are left out. Raises StoreError."""
        ...

    def written_end(self, log: int, before: int) -> int:
        """Where the last segment of a log ends that begins before a position; 0: there is none. Raises StoreError."""
        ...

    def slowest(self, log: int, but: Sequence[int], done: Callable[[int], None]) -> None:
        """Find the lowest position of the cursors of a log, without some of them, and post `done`.

        It gets `POSITION_MAX` where the log has no others, and `UNREAD` when the medium cannot be read.
        """
        ...

    def cursors(self) -> Iterable[CursorRow]:
        """Every cursor. Raises StoreError."""
        ...

    def value(self, kind: str, key: str) -> bytes | None:
        """Return the small state of one kind and key; None if it is not found. Raises StoreError."""
        ...

    def items(self, kind: str) -> Iterator[tuple[str, bytes]]:
        """Small state of a kind, by key. Raises StoreError."""
        ...

    def ledger(self, after: int, entries_max: int, subscriptions: str) -> Sequence[LedgerEntry]:
        """Ledger entries above `after` of subscriptions that begin so, oldest first. Raises StoreError."""
        ...

    def lost(self, subscriptions: str) -> Mapping[str, Mapping[str, int]]:
        """See `contract.LossLedger`."""
        ...

    def free_bytes(self) -> int | None:
        """See `contract.Retention`."""
        ...

    def file_bytes(self) -> int:
        """Bytes of its files."""
        ...

    def ends_after(self, shared: str) -> Mapping[int, int]:
        """Where the logs ended at the first opening after `shared`. Raises StoreError."""
        ...

    def appended_since(self, log: int, end: int) -> Iterator[tuple[str, int]]:
        """(address, sequence) of runs at or above a position. Raises StoreError."""
        ...

    def begin_epoch(self, starts: Mapping[str, int], why: str) -> None:
        """Go on under a new epoch, in which each address begins at its `starts`. Raises StoreError."""
        ...

    def close(self) -> None:
        """Blocks. Reads under way are not answered."""
        ...
