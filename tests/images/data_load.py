"""Program that fills a gateway's store on a disk of its own, and one that reads it after a power cut.

``write TYPE SEED DISK LOG HISTORY COMMITS`` publishes, commits in groups and deletes what has landed. For each commit
and each deletion it notes how far the log of the disk's writes was by then. ``check TYPE SEED DISK…`` mounts disks
after a cut, and prints what their stores hold.
"""

from __future__ import annotations

import enum
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from bridge.message import Run
from edge.appliance.store.recovery.verification import verify
from edge.broker.store.errors import StoreError
from edge.broker.store.sqlite import FILE_NAME
from images.programs import find
from tests.contract.store.rig import Rig, sqlite_rig

PLACE: Final = Path("/run/data")
OPTIONS: Final = "rw,noatime,nodev,nosuid,noexec"
"""Options of the data partition in the fstab of an image."""
REPAIRED: Final = 1
"""Exit code of fsck (8): errors were repaired."""
LOG: Final = "topic plant/#"
CURSOR: Final = "uplink"
BODY_BYTES: Final = 100
GROUPS: Final = (1, 5, 10, 20, 50)
"""Messages of a commit."""
ADDRESSES: Final = tuple(f"plant/{number}/temp" for number in range(20))
LANDED_EVERY: Final = 20
"""Commits between two deletions of what has landed."""
WARM_COMMITS: Final = 1_500
"""Commits of the warm-up. They fill SQLite's log once; it is overwritten from then on, as in a gateway that runs for
months.
"""
COMMIT_S: Final = 0.1
"""Seconds between two commits by the store's clock."""


class Act(enum.Enum):
    STARTED = "started"
    """The store is open, and its log of SQLite is new, as after each start of a gateway."""
    WARM = "warm"
    """SQLite's log is overwritten from now on."""
    ACKED = "acked"
    """All messages before a position are committed."""
    LANDED = "landed"
    """All messages before a position may be deleted from now on."""


class Noted(msgspec.Struct):
    """Line of the history."""

    act: Act
    position: int
    size: int
    """Size of the log of writes."""


class Found(msgspec.Struct):
    """Content of a disk after a power cut."""

    error: str
    """Error of the mount or the store, or nothing."""
    first: int = 0
    next: int = 0
    """First position, and the one after the last."""
    repaired: bool = False
    """The file system had errors, which fsck has repaired."""


def body_of(position: int, seed: int) -> bytes:
    """Return the message at a position: noise, which does not compress."""
    return b"%012d" % position + random.Random(position ^ seed << 40).randbytes(BODY_BYTES - 12)


def repair(disk: str, kind: str) -> int:
    """Repair a file system as systemd does before it mounts the data partition (``fsck -a``); return the exit code."""
    checker = "e2fsck" if kind == "ext4" else "fsck.f2fs"
    done = subprocess.run([find(checker) or checker, "-a", disk], capture_output=True, check=False)
    return done.returncode


def mount(disk: str, kind: str) -> str:
    """Mount a disk; return the error."""
    PLACE.mkdir(exist_ok=True)
    done = subprocess.run(
        ["mount", "-t", kind, "-o", OPTIONS, disk, str(PLACE)], capture_output=True, text=True, check=False
    )
    return done.stderr.strip() if done.returncode else ""


class Load:
    """Publishes into a store and notes the history."""

    def __init__(self, writes: Path, history: Path, seed: int) -> None:
        self._rig: Rig = sqlite_rig(PLACE / "waypost")
        self._chance = random.Random(seed)
        self._seed = seed
        self._writes = writes
        self._history = history.open("ab", buffering=0)
        self._log = self._rig.store.logs.open(LOG)
        self._cursor = self._rig.store.cursors.open(CURSOR, self._log, 0)
        self._next = 0
        self._landed = 0

    def run(self, commits: int) -> None:
        """Run the warm-up, then three parts of the same size: with an uplink, without, and with it again."""
        self._note(Act.STARTED, 0)
        for number in range(WARM_COMMITS + commits):
            if number == WARM_COMMITS:
                self._note(Act.WARM, self._next)
            self._publish()
            self._commit()
            away = commits // 3 <= number - WARM_COMMITS < 2 * commits // 3
            if number % LANDED_EVERY == 0 and not away:
                self._delete_landed()

    def _publish(self) -> None:
        count = self._chance.choice(GROUPS)
        bodies = [body_of(position, self._seed) for position in range(self._next, self._next + count)]
        self._next += count
        address = self._chance.choice(ADDRESSES)
        self._rig.store.logs.append(self._log, Run(address, "device", 1, b"", bodies, self._next))

    def _commit(self) -> None:
        before = len(self._rig.commits)
        self._rig.now += COMMIT_S
        assert self._rig.store.commits.flush(), "messages are urgent"
        while len(self._rig.commits) == before:
            self._rig.turn()
        assert self._rig.commits[-1].error is None, self._rig.commits[-1].error
        self._rig.commits.clear()
        self._note(Act.ACKED, self._next)

    def _delete_landed(self) -> None:
        """Delete what was committed until now; the next commits do it."""
        self._note(Act.LANDED, self._next)
        self._rig.store.cursors.acknowledge(self._cursor, self._landed, self._next - 1)
        self._landed = self._next

    def _note(self, act: Act, position: int) -> None:
        noted = Noted(act, position, self._writes.stat().st_size)
        self._history.write(msgspec.json.encode(noted) + b"\n")


def look(seed: int) -> Found:
    """Read the store of the mounted disk, check it, and use it."""
    directory = PLACE / "waypost"
    if not (directory / FILE_NAME).exists():
        return Found("")
    rig = sqlite_rig(directory)
    try:
        log = rig.store.logs.open(LOG)
        first, after = rig.store.logs.bounds(log)
        messages = rig.read_all(log, first)
        if [position for position, *_ in messages] != list(range(first, after)):
            return Found("positions are missing", first, after)
        if any(body != body_of(position, seed) for position, _, _, body in messages):
            return Found("bodies differ", first, after)
        rig.store.logs.append(log, Run(ADDRESSES[0], "device", 1, b"", [body_of(after, seed)], 1))
        if (error := rig.commit().error) is not None:
            return Found(f"it takes no message: {error}", first, after)
    finally:
        rig.store.close()
    findings = verify(directory / FILE_NAME).findings
    return Found(f"{findings[0]}" if findings else "", first, after)


def check(kind: str, seed: int, disks: Sequence[str]) -> None:
    """Print what each disk holds."""
    for disk in disks:
        code = repair(disk, kind)
        found = Found(mount(disk, kind) if code <= REPAIRED else f"fsck ends with {code}")
        if not found.error:
            try:
                found = look(seed)
            except (StoreError, OSError) as error:
                found = Found(f"{type(error).__name__}: {error}")
            subprocess.run(["umount", str(PLACE)], check=True)
        found.repaired = code == REPAIRED
        print(msgspec.json.encode(found).decode(), flush=True)


def main() -> None:
    do, kind, seed, *rest = sys.argv[1:]
    if do == "check":
        check(kind, int(seed), rest)
        return
    disk, writes, history, commits = rest
    error = mount(disk, kind)
    assert not error, error
    Load(Path(writes), Path(history), int(seed)).run(int(commits))
    os.sync()


if __name__ == "__main__":
    main()
