"""Interface of a medium for a store: commits one at a time, reads, and a few queries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Protocol

from bridge.message import Stored
from edge.broker.store.epochs import Epochs
from edge.broker.store.group import CommitGroup, CursorRow
from edge.broker.store.logs import LogState
from edge.broker.store.records import LedgerEntry

Post = Callable[[Callable[[], None]], object]
"""Schedules a callback on the event loop's thread. Callable from any thread."""

ReadDone = Callable[[Sequence[Stored]], None]
"""Callback for the result of a read."""

FAILED: Final[list[Stored]] = []
"""Result of a failed read, compared by identity. Always empty."""


UNREAD: Final = -1
"""Returned instead of a position when the medium could not be read."""


class Medium(Protocol):
    """Medium of a store. Called on the event loop's thread. Reads return the state of the last commit."""

    @property
    def epochs(self) -> Epochs:
        """Epochs of the store."""
        ...

    @property
    def openings(self) -> Sequence[str]:
        """Ids of the openings of the store, newest last."""
        ...

    def opening_ends(self) -> Iterator[Mapping[int, int] | None]:
        """See `contract.EpochLineage`."""
        ...

    def commit(self, group: CommitGroup, finished: Callable[[], None]) -> None:
        """Start the commit of a sealed group. When it ends, set `CommitGroup.outcome` and post `finished`.

        Raises StoreError when the commit cannot start.
        """
        ...

    def wait(self) -> None:
        """Block until the last started commit is over and its group has an outcome."""
        ...

    def committed(self, group: CommitGroup) -> None:
        """Handle the successful commit of `group`, on the loop's thread."""
        ...

    @property
    def writes_at_close(self) -> bool:
        """True when the medium has data of its own to write in the last commit."""
        ...

    def read(self, log: LogState, position: int, end: int, bytes_max: int, done: ReadDone) -> None:
        """Read ``position <= p < end`` of a log: at least one run, then about `bytes_max` of bodies. Post `done`, with
        `FAILED` when the medium cannot be read."""
        ...

    def sequences(self) -> Iterator[tuple[str, int]]:
        """Iterate over (address, next sequence) of every address. Raises StoreError."""
        ...

    def sequences_of(self, addresses: Iterable[str]) -> dict[str, int]:
        """Return the counters of `addresses`, without those that have none. Raises StoreError."""
        ...

    def written_end(self, log: int, before: int) -> int:
        """Return the end of the last segment that starts before a position, or 0. Raises StoreError."""
        ...

    def slowest(self, log: int, but: Sequence[int], done: Callable[[int], None]) -> None:
        """Find the lowest position of the cursors of a log, except those in `but`, and post `done`.

        The result is `POSITION_MAX` when the log has no others, and `UNREAD` when the medium cannot be read.
        """
        ...

    def cursors(self) -> Iterable[CursorRow]:
        """Return every cursor. Raises StoreError."""
        ...

    def value(self, kind: str, key: str) -> bytes | None:
        """Return the small state of one kind and key; None if it is not found. Raises StoreError."""
        ...

    def items(self, kind: str) -> Iterator[tuple[str, bytes]]:
        """Iterate over the small state of a kind, by key. Raises StoreError."""
        ...

    def ledger(self, after: int, entries_max: int, subscriptions: str) -> Sequence[LedgerEntry]:
        """Return ledger entries above `after` for subscriptions with a prefix, oldest first. Raises StoreError."""
        ...

    def lost(self, subscriptions: str) -> Mapping[str, Mapping[str, int]]:
        """See `contract.LossLedger`."""
        ...

    def free_bytes(self) -> int | None:
        """See `contract.Retention`."""
        ...

    def file_bytes(self) -> int:
        """Return the bytes of its files."""
        ...

    def ends_after(self, shared: str) -> Mapping[int, int]:
        """Return the ends of the logs at the first opening after `shared`. Raises StoreError."""
        ...

    def appended_since(self, log: int, end: int) -> Iterator[tuple[str, int]]:
        """Iterate over (address, sequence) of runs at or above a position. Raises StoreError."""
        ...

    def begin_epoch(self, starts: Mapping[str, int], why: str) -> None:
        """Start a new epoch, in which each address continues at its `starts`. Raises StoreError."""
        ...

    def close(self) -> None:
        """Close the medium. Running reads are not answered. Blocks."""
        ...
