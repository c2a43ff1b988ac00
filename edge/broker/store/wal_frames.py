"""Reads a write-ahead log as bytes, and finds durable commits that SQLite would not accept.

SQLite reads a log up to the first frame with a wrong checksum, and treats the rest as an incomplete commit. That is
correct for the last commit, which was never synced. But each commit is synced before the next one is written. So a
valid frame *after* the end of a later commit shows that the earlier commit was synced. Then the log is damaged, and
commits that SQLite would discard were acknowledged (https://sqlite.org/fileformat2.html section 4.1).
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, Self

from bridge.hidden import hides

HEADER: Final = struct.Struct(">8I")
"""Magic, version, page size, checkpoint number, two salts, two checksums."""
FRAME: Final = struct.Struct(">6I")
"""Page number, size of the database after a commit (0: more frames follow), two salts, two checksums."""
MAGICS: Final = (0x377F0682, 0x377F0683)
"""Magic numbers for checksums over little-endian and big-endian words."""
PAGE_SIZES: Final = tuple(1 << bits for bits in range(9, 17))
SUMMED_BYTES: Final = 8
"""Bytes of the frame header that its checksum covers, in addition to the page."""
SECTOR_BYTES: Final = 512
"""Smallest unit that a medium writes atomically."""
_ACCEPTED: Final = slice(16, 20)
"""Bytes of the log index with the number of frames that SQLite accepts
(https://sqlite.org/walformat.html section 2.1)."""

Sums = tuple[int, int]


@hides("page")
class WalFrame(NamedTuple):
    """Frame: one page written by a commit."""

    head: bytes
    page: bytes

    @property
    def number(self) -> int:
        """Number of the page in the database, from 1."""
        return int.from_bytes(self.head[:4])

    @property
    def ends_commit(self) -> bool:
        """True for the last frame of a commit."""
        return self.head[4:8] != bytes(4)

    @property
    def salts(self) -> bytes:
        """Salts of the log header, or of an earlier one."""
        return self.head[8:16]

    @property
    def sums(self) -> Sums:
        """Stored checksum."""
        return int.from_bytes(self.head[16:20]), int.from_bytes(self.head[20:])


class WalLog(NamedTuple):
    """Properties of a log, even if SQLite does not accept it."""

    path: Path
    page_bytes: int
    order: str
    """Byte order of the checksum words, for `struct`."""
    salts: bytes
    sums: Sums
    """Checksum before the first frame."""
    valid: bool
    """True when the header is intact."""

    @classmethod
    def of(cls, path: Path) -> Self | None:
        """Return the log at `path`; None when it is empty. Raises OSError."""
        with path.open("rb") as file:
            head = file.read(HEADER.size)
            first = file.read(FRAME.size + PAGE_SIZES[-1])
        if len(head) < HEADER.size:
            return None
        magic, _, page_bytes, _, *_ = HEADER.unpack(head)
        stored = int.from_bytes(head[24:28]), int.from_bytes(head[28:])
        order = _order(magic)
        if magic in MAGICS and page_bytes in PAGE_SIZES and checksum(order, head[:24], (0, 0)) == stored:
            return cls(path, page_bytes, order, head[16:24], stored, valid=True)
        for order in "<>":
            for sums in (stored, checksum(order, head[:24], (0, 0))):
                for size in PAGE_SIZES:
                    frame = WalFrame(first[: FRAME.size], first[FRAME.size : FRAME.size + size])
                    if len(frame.page) == size and checksum_of(order, frame, sums) == frame.sums:
                        return cls(path, size, order, frame.salts, sums, valid=False)
        return None

    def frames(self, start: int = 0) -> Iterator[WalFrame]:
        """Iterate over the complete frames from `start` on, including those from before a reset. Raises OSError."""
        size = FRAME.size + self.page_bytes
        with self.path.open("rb") as file:
            file.seek(HEADER.size + start * size)
            while len(found := file.read(size)) == size:
                yield WalFrame(found[: FRAME.size], found[FRAME.size :])

    def synced_commits(self, accepted: int) -> Iterator[int]:
        """Iterate over the ends of durable commits beyond the first `accepted` frames.

        Each end is the number of the following frame. Raises OSError.
        """
        first = max(accepted - 1, 0)  # the frame before the first one to check
        before: WalFrame | None = None
        sums = self.sums  # the checksum before `before`
        for number, frame in enumerate(self.frames(first), first):
            if number > accepted and before is not None and before.ends_commit and frame.salts == self.salts:
                right = checksum_of(self.order, before, sums)
                goes_on = any(checksum_of(self.order, frame, known) == frame.sums for known in (before.sums, right))
                if goes_on and (before.sums == right or self._is_intact(before, number - 1)):
                    yield number
            sums = before.sums if before is not None else sums
            before = frame

    def durable(self) -> tuple[int, int]:
        """Return the number of frames in synced commits and a complete last commit, and how many of them are damaged.

        Raises OSError.
        """
        end = max(self.synced_commits(0), default=0)
        damaged, before = 0, self.sums
        for number, frame in enumerate(self.frames(), 1):
            whole = frame.salts == self.salts and checksum_of(self.order, frame, before) == frame.sums
            if number <= end:
                damaged += not whole
            elif not whole:
                break
            elif frame.ends_commit:
                end = number
            before = frame.sums
        return end, damaged

    def _is_intact(self, frame: WalFrame, number: int) -> bool:
        """Return True when the frame header comes from a single write.

        A header across a sector boundary may consist of an old first part, left by a power cut, and a new checksum.
        """
        begin = HEADER.size + number * (FRAME.size + self.page_bytes)
        return frame.salts == self.salts and begin % SECTOR_BYTES <= SECTOR_BYTES - FRAME.size


def checksum(order: str, data: bytes | bytearray, sums: Sums) -> Sums:
    """Return the checksum of `data`, a multiple of two words, continued from `sums`."""
    one, two = sums
    for first, second in struct.iter_unpack(f"{order}2I", data):
        one = (one + first + two) & 0xFFFF_FFFF
        two = (two + second + one) & 0xFFFF_FFFF
    return one, two


def checksum_of(order: str, frame: WalFrame, sums: Sums) -> Sums:
    """Return the expected checksum of a frame after one with `sums`."""
    return checksum(order, frame.page, checksum(order, frame.head[:SUMMED_BYTES], sums))


def lost_commits(database: Path) -> int:
    """Return the number of durable commits that SQLite would discard. No other process may have the database open.

    Raises OSError.
    """
    path = Path(f"{database}-wal")
    log = WalLog.of(path) if path.exists() else None
    if log is None:
        return 0
    accepted = _accepted(database) if log.valid else 0
    return 0 if accepted is None else sum(1 for _ in log.synced_commits(accepted)) + (not log.valid)


def _accepted(database: Path) -> int | None:
    """Return the number of frames that SQLite accepts; None when it cannot open the database.

    The connection is read-only, so that closing it leaves the log alone.
    """
    with contextlib.suppress(sqlite3.Error, OSError), contextlib.ExitStack() as stack:
        address = f"{database.resolve().as_uri()}?mode=ro"
        connection = stack.enter_context(contextlib.closing(sqlite3.connect(address, uri=True, isolation_level=None)))
        connection.execute("PRAGMA schema_version").fetchall()
        index = os.open(f"{database}-shm", os.O_RDONLY | os.O_CLOEXEC)
        connection.close()  # before the descriptor: closing that drops the locks of the process on the file
        stack.callback(os.close, index)
        return int.from_bytes(os.pread(index, _ACCEPTED.stop, 0)[_ACCEPTED], sys.byteorder)
    return None


def _order(magic: int) -> str:
    return ">" if magic & 1 else "<"
