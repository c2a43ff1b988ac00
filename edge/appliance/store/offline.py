"""Changes to a stopped gateway's store, by the store's own code and without an event loop."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from edge.broker.store.errors import StoreError, StoreInaccessible
from edge.broker.store.records import Committed
from edge.broker.store.sqlite import FILE_NAME, SqliteStore, open_store

COMMIT_S_MAX: Final = 120.0
"""Longest wait for a commit: a card that takes longer has failed."""
POLL_S: Final = 0.02
"""Interval of checks for deferred work."""
QUIET_POLLS: Final = 10
"""Checks without work after which the store is idle: together longer than `Limits.moves_delay_s`."""


class OfflineStore:
    """Store with blocking commits."""

    def __init__(self, store: SqliteStore, posted: queue.SimpleQueue[Callable[[], None]]) -> None:
        """Use `offline` to open one."""
        self.store = store
        self._posted = posted
        self.failure: StoreError | None = None

    def committed(self, commit: Committed) -> None:
        """Handle the end of a commit of the store."""
        self.failure = commit.error or self.failure

    def commit(self, flush: Callable[[], object] | None = None) -> None:
        """Commit the gathered changes. Raises StoreError when that fails."""
        (flush or self.store.commits.flush)()
        while self.store.commits.committing:
            self.run_posted()
        if self.failure is not None:
            raise self.failure

    def settle_urgent(self, flush: Callable[[], object]) -> None:
        """Commit through `flush` until no gathered changes are left, also with delayed commits."""
        until = time.monotonic() + COMMIT_S_MAX
        self.commit(flush)
        while self.store.commits.gathered:
            if time.monotonic() > until:
                raise StoreError(f"nothing was committed in {COMMIT_S_MAX:g} s")
            time.sleep(POLL_S)
            self.commit(flush)

    def run_posted(self) -> None:
        """Wait for a callback of the store's threads and run it. Raises StoreError when none is posted in time."""
        try:
            self._posted.get(timeout=COMMIT_S_MAX)()
        except queue.Empty:
            raise StoreError(f"no commit ended in {COMMIT_S_MAX:g} s: check the card and the system log") from None

    def settle(self) -> None:
        """Commit until no work is left. Raises StoreError."""
        quiet = 0
        while quiet < QUIET_POLLS:
            self.commit()
            quiet += 1
            if self.store.commits.flush():
                quiet = 0
                while self.store.commits.committing:
                    self.run_posted()
            time.sleep(POLL_S)


@contextlib.contextmanager
def offline(data: Path, *, moving: bool = False) -> Iterator[OfflineStore]:
    """Open the store of a stopped gateway; `moving`: of one that was moved, too.

    Raises StoreBusy when it runs, StoreInaccessible without a store.
    """
    if not (data / FILE_NAME).is_file():
        raise StoreInaccessible(f"no store in {data}: is this the gateway's data directory?")
    posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    store = open_store(data, post=posted.put, moving=moving)
    opened = OfflineStore(store, posted)
    store.commits.listeners.append(opened.committed)
    try:
        yield opened
    finally:
        store.close()
