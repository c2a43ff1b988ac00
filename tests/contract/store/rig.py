"""Store under test with its own clock, and a queue instead of an event loop."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from bridge.message import Run, Stored
from edge.broker.store.engine import StoreEngine
from edge.broker.store.errors import StoreFull
from edge.broker.store.limits import StoreLimits
from edge.broker.store.records import Committed, Summary
from edge.broker.store.sqlite import open_store
from edge.broker.store.sqlite_medium import SqliteMedium
from tests.support.memory_store import MemoryMedium, MemoryStore
from tests.support.writer_thread import execute_on

DEADLINE_S = 20.0

AnyStore: TypeAlias = StoreEngine[SqliteMedium] | StoreEngine[MemoryMedium]


class Rig:
    """Owner of a store; `make` opens it with this rig's `post` and `clock`."""

    def __init__(self, make: Callable[[Rig], AnyStore]) -> None:
        self.now = 1000.0
        self.posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.commits: list[Committed] = []
        self._make = make
        self.store = self._open()

    def _open(self) -> AnyStore:
        store = self._make(self)
        store.commits.listeners.append(self.commits.append)
        return store

    def reopen(self) -> None:
        self.store.close()
        self.store = self._open()

    def clock(self) -> float:
        return self.now

    def turn(self) -> None:
        """Wait for a callback and run it."""
        self.posted.get(timeout=DEADLINE_S)()

    def commit(self) -> Committed:
        """Flush the pending group, including lazy changes, and wait for the end of that commit."""
        self.now += 3600.0
        before = len(self.commits)
        if not self.store.commits.flush():
            self.now += 3600.0  # the first flush registers lazy changes
            assert self.store.commits.flush()
        while len(self.commits) == before:
            self.turn()
        return self.commits[-1]

    def settle(self) -> None:
        """Commit until no work is left."""
        for _ in range(1000):
            while self.store.commits.committing:
                self.turn()
            self.now += 3600.0
            if not self.store.commits.flush():
                self.now += 3600.0
                if not self.store.commits.flush() and not self._has_slowest_moved():
                    return
        raise AssertionError("the store never comes to rest")

    def _has_slowest_moved(self) -> bool:
        """Wait until the medium has found the slowest idle cursors; return True when that allows a deletion."""
        answers: list[int] = []
        self.store.medium.slowest(0, [], answers.append)  # answered after earlier requests
        while not answers:
            self.turn()
        return bool(self.store._logs.to_reclaim or self.store.cursors._idle._outdated)

    def read(self, log: int, position: int, bytes_max: int = 1 << 20) -> Sequence[Stored]:
        """Return the messages; none when the medium cannot be read."""
        answers: list[Sequence[Stored]] = []
        self.store.logs.read(log, position, bytes_max, answers.append)
        while not (answers or self.store.logs._reads.failed):
            self.turn()
        return answers[0] if answers else ()

    def read_all(self, log: int, position: int = 0, bytes_max: int = 1 << 20) -> list[tuple[int, str, int, bytes]]:
        """Return (position, address, sequence, body) of every message from `position` on."""
        messages: list[tuple[int, str, int, bytes]] = []
        while runs := self.read(log, position, bytes_max):
            messages += flat(runs)
            position = messages[-1][0] + 1
        return messages


def flat(runs: Sequence[Stored]) -> list[tuple[int, str, int, bytes]]:
    return [
        (stored.position + i, stored.run.address, stored.sequence + i, body)
        for stored in runs
        for i, body in enumerate(stored.run.bodies)
    ]


def run_of(*bodies: bytes, address: str = "plant/7/temp", device: str = "device", properties: bytes = b"") -> Run:
    return Run(address, device, 1, properties, list(bodies), 1_700_000_000_000_000_000)


def sqlite_rig(directory: Path, limits: StoreLimits | None = None, summary: Summary | None = None) -> Rig:
    return Rig(lambda rig: open_store(directory, post=rig.posted.put, clock=rig.clock, limits=limits, summary=summary))


def memory_rig(limits: StoreLimits | None = None, summary: Summary | None = None) -> Rig:
    return Rig(lambda rig: MemoryStore(post=rig.posted.put, clock=rig.clock, limits=limits, summary=summary))


def fail_commits(rig: Rig) -> None:
    """Make commits fail as on a full medium, by the medium itself if it can."""
    medium = rig.store.medium
    if isinstance(medium, MemoryMedium):
        medium.failure = StoreFull("the medium is full")
    else:
        execute_on(medium.writer, "PRAGMA max_page_count = 1")  # SQLite limits it to the current pages


def heal(rig: Rig) -> None:
    medium = rig.store.medium
    if isinstance(medium, MemoryMedium):
        medium.failure = None
    else:
        execute_on(medium.writer, "PRAGMA max_page_count = 1000000")
