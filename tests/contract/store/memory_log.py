"""Store with a log in memory, and a clock that can be advanced."""

from __future__ import annotations

import shutil
from pathlib import Path

from bridge.message import Stored
from edge.appliance.store.recovery.verification import verify
from edge.broker.store.limits import StoreLimits
from edge.broker.store.sqlite import FILE_NAME
from edge.broker.store.sqlite_medium import SqliteMedium
from tests.contract.store.rig import Rig, memory_rig, run_of, sqlite_rig

LIMITS = StoreLimits(memory_bytes_max=4000, memory_total_bytes_max=10_000, memory_addresses_max=3)


def made_rig(kind: str, folder: Path) -> Rig:
    """Open a store on disk (`sqlite`), in its own folder, or the one in memory."""
    return sqlite_rig(folder / "store", LIMITS) if kind == "sqlite" else memory_rig(LIMITS)


class MemoryLog:
    """Log in memory with one cursor, after its first commit, with reserved numbers for its address."""

    def __init__(self, rig: Rig, name: str = "topic plant/#", address: str = "plant/7/temp") -> None:
        self.rig, self.name, self.address = rig, name, address
        self.log = rig.store.logs.open(name)
        self.cursor = rig.store.cursors.open("c", self.log, 0)
        rig.store.logs.keep_in_memory(self.log, keep=True)
        rig.store.logs.append(self.log, run_of(b"first", address=address))
        assert flush(rig)
        self.rig.store.cursors.acknowledge(self.cursor, 0, 0)
        finish_due_work(rig)

    def take(self, *bodies: bytes, address: str | None = None) -> Stored:
        stored = self.rig.store.logs.append(self.log, run_of(*bodies, address=address or self.address))
        assert isinstance(stored, Stored)
        return stored

    def segments(self) -> int:
        """Return the messages of the log on the medium."""
        medium = self.rig.store.medium
        if isinstance(medium, SqliteMedium):
            rows = medium._queries.rows("SELECT count(*) FROM segment WHERE key >> 44 = ?", (self.log,))
            return int(rows[0][0])
        return len(medium.kept(self.log))


def flush(rig: Rig) -> bool:
    """Flush once with everything that is due now."""
    started = rig.store.commits.flush()
    while rig.store.commits.committing:
        rig.turn()
    return started


def finish_due_work(rig: Rig) -> None:
    """Complete due cursor moves and deletions."""
    rig.now += 1
    while flush(rig):
        pass
    rig.now += 1
    while flush(rig):
        pass


def wait(rig: Rig, seconds: float) -> int:
    """Advance the clock, with four ticks of the owner a second; return the commits."""
    before = len(rig.commits)
    for _ in range(round(seconds * 4)):
        rig.now += 0.25
        flush(rig)
    return len(rig.commits) - before


def reopen_after_crash(rig: Rig, place: Path) -> Rig:
    """Reopen the store from the medium's current content; no cursor has a filter."""
    assert isinstance(rig.store.medium, SqliteMedium)
    while rig.store.commits.committing:
        rig.turn()
    shutil.copytree(rig.store.medium.path.parent, place)
    assert not verify(place / FILE_NAME).damaged
    return sqlite_rig(place, LIMITS)
