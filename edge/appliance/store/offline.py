"""A stopped gateway's store, opened to be changed: the store's own code writes, without an event loop."""

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
"""Longest wait for one commit; a card that takes longer has failed."""
REST_S: Final = 0.02
"""Pause between looks whether lazy work is due."""
QUIET_LOOKS: Final = 10
"""Looks without anything due before the store is at rest: more than `Limits.moves_delay_s` together."""


class Offline:
    """The store, and commits that are waited for."""

    def __init__(self, store: SqliteStore, posted: queue.SimpleQueue[Callable[[], None]]) -> None:
        """Use `offline`."""
        self.store = store
        self._posted = posted
        self.failure: StoreError | None = None

    def committed(self, commit: Committed) -> None:
        """Listen to the end of a commit of the store."""
        self.failure = commit.error or self.failure

    def commit(self, flush: Callable[[], object] | None = None) -> None:
        """Make durable what was gathered. Raises StoreError when that fails."""
        (flush or self.store.commits.flush)()
        while self.store.commits.committing:
            self.turn()
        if self.failure is not None:
            raise self.failure

    def settle_urgent(self, flush: Callable[[], object]) -> None:
        """Commit through `flush` until nothing gathered is left, also where commits may wait for company."""
        until = time.monotonic() + COMMIT_S_MAX
        self.commit(flush)
        while self.store.commits.gathered:
            if time.monotonic() > until:
                raise StoreError(f"nothing was committed in {COMMIT_S_MAX:g} s")
            time.sleep(REST_S)
            self.commit(flush)

    def turn(self) -> None:
        """Run what the store's threads have posted, waiting for it. Raises StoreError when nothing comes."""
        try:
            self._posted.get(timeout=COMMIT_S_MAX)()
        except queue.Empty:
            raise StoreError(f"no commit ended in {COMMIT_S_MAX:g} s: check the card and the system log") from None

    def settle(self) -> None:
        """Commit until nothing is left to write or to delete. Raises StoreError."""
        quiet = 0
        while quiet < QUIET_LOOKS:
            self.commit()
            quiet += 1
            if self.store.commits.flush():
                quiet = 0
                while self.store.commits.committing:
                    self.turn()
            time.sleep(REST_S)


@contextlib.contextmanager
def offline(data: Path) -> Iterator[Offline]:
    """Open the store of a stopped gateway. Raises StoreBusy when it runs, StoreInaccessible when there is none."""
    if not (data / FILE_NAME).is_file():
        raise StoreInaccessible(f"there is no store in {data}: is this the gateway's data directory?")
    posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    store = open_store(data, post=posted.put)
    opened = Offline(store, posted)
    store.commits.listeners.append(opened.committed)
    try:
        yield opened
    finally:
        store.close()
