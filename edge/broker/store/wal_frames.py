"""A write-ahead log as bytes: its header, its frames, and whether what SQLite does not accept of it was once durable.

SQLite reads a log up to the first frame whose checksum is wrong and takes the rest for a commit that was cut off. That
is right for the last commit in it: it was never synced. A frame that continues *behind* the end of a later commit shows
that the commit before was synced, as each is before the next is written; then something in the log is not as it was,
and what SQLite would leave out was acknowledged (https://sqlite.org/fileformat2.html section 4.1).
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
"""Page, size of the database after a commit (0: more frames follow), two salts, two checksums."""
MAGICS: Final = (0x377F0682, 0x377F0683)
"""Checksums of words in little-endian and big-endian order."""
PAGE_SIZES: Final = tuple(1 << bits for bits in range(9, 17))
SUMMED_BYTES: Final = 8
"""Of a frame's head, which its checksum covers beside the page."""
SECTOR_BYTES: Final = 512
"""The least that a medium writes whole."""
_ACCEPTED: Final = slice(16, 20)
"""Bytes of the log's index with the number of frames that SQLite accepts
(https://sqlite.org/walformat.html section 2.1)."""

Sums = tuple[int, int]


@hides("page")
class WalFrame(NamedTuple):
    """One page as a commit wrote it."""

    head: bytes
    page: bytes

    @property
    def number(self) -> int:
        """Number of the page in the database, 1 the first."""
        return int.from_bytes(self.head[:4])

    @property
    def ends_commit(self) -> bool:
        """It is the last one of its commit."""
        return self.head[4:8] != bytes(4)

    @property
    def salts(self) -> bytes:
        """As in the header of the log, or of one before it."""
        return self.head[8:16]

    @property
    def sums(self) -> Sums:
        """As written."""
        return int.from_bytes(self.head[16:20]), int.from_bytes(self.head[20:])


class WalLog(NamedTuple):
    """What a log says of itself, whether SQLite believes it or not."""

    path: Path
    page_bytes: int
    order: str
    """Of words in a checksum, for `struct`."""
    salts: bytes
    sums: Sums
    """What the first frame goes on from."""
    sound: bool
    """The header is as it was written."""

    @classmethod
    def of(cls, path: Path) -> Self | None:
        """The log at `path`; None when it has nothing in it. Raises OSError."""
        with path.open("rb") as file:
            head = file.read(HEADER.size)
            first = file.read(FRAME.size + PAGE_SIZES[-1])
        if len(head) < HEADER.size:
            return None
        magic, _, page_bytes, _, *_ = HEADER.unpack(head)
        stored = int.from_bytes(head[24:28]), int.from_bytes(head[28:])
        order = _order(magic)
        if magic in MAGICS and page_bytes in PAGE_SIZES and checksum(order, head[:24], (0, 0)) == stored:
            return cls(path, page_bytes, order, head[16:24], stored, sound=True)
        for order in "<>":
            for sums in (stored, checksum(order, head[:24], (0, 0))):
                for size in PAGE_SIZES:
                    frame = WalFrame(first[: FRAME.size], first[FRAME.size : FRAME.size + size])
                    if len(frame.page) == size and checksum_of(order, frame, sums) == frame.sums:
                        return cls(path, size, order, frame.salts, sums, sound=False)
        return None

    def frames(self, start: int = 0) -> Iterator[WalFrame]:
        """Every whole frame of the file from that one on, also those of an older turn of the log. Raises OSError."""
        size = FRAME.size + self.page_bytes
        with self.path.open("rb") as file:
            file.seek(HEADER.size + start * size)
            while len(found := file.read(size)) == size:
                yield WalFrame(found[: FRAME.size], found[FRAME.size :])

    def synced_commits(self, accepted: int) -> Iterator[int]:
        """Where commits end that were durable once and are not among the first `accepted` frames: for each the number
        of the frame behind it. Raises OSError."""
        first = max(accepted - 1, 0)  # what the first frame in question goes on from
        before: WalFrame | None = None
        sums = self.sums  # that `before` goes on from
        for number, frame in enumerate(self.frames(first), first):
            if number > accepted and before is not None and before.ends_commit and frame.salts == self.salts:
                right = checksum_of(self.order, before, sums)
                goes_on = any(checksum_of(self.order, frame, known) == frame.sums for known in (before.sums, right))
                if goes_on and (before.sums == right or self._is_of_one_write(before, number - 1)):
                    yield number
            sums = before.sums if before is not None else sums
            before = frame

    def durable(self) -> tuple[int, int]:
        """Return how many frames belong to commits that were synced, or to a last commit that is whole, and how many of
        these fail their checksum. Raises OSError."""
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

    def _is_of_one_write(self, frame: WalFrame, number: int) -> bool:
        """Its head is: one over the boundary of two sectors may have the end of an older commit in the first, which a
        power cut left as it was, and its own checksum in the second."""
        begin = HEADER.size + number * (FRAME.size + self.page_bytes)
        return frame.salts == self.salts and begin % SECTOR_BYTES <= SECTOR_BYTES - FRAME.size


def checksum(order: str, data: bytes | bytearray, sums: Sums) -> Sums:
    """Of a whole number of pairs of words, from what came before."""
    one, two = sums
    for first, second in struct.iter_unpack(f"{order}2I", data):
        one = (one + first + two) & 0xFFFF_FFFF
        two = (two + second + one) & 0xFFFF_FFFF
    return one, two


def checksum_of(order: str, frame: WalFrame, sums: Sums) -> Sums:
    """What a frame should have after one that has `sums`."""
    return checksum(order, frame.page, checksum(order, frame.head[:SUMMED_BYTES], sums))


def lost_commits(database: Path) -> int:
    """How many commits SQLite would leave out that were durable once. Nobody else may have the database open.

    Raises OSError.
    """
    path = Path(f"{database}-wal")
    log = WalLog.of(path) if path.exists() else None
    if log is None:
        return 0
    accepted = _accepted(database) if log.sound else 0
    return 0 if accepted is None else sum(1 for _ in log.synced_commits(accepted)) + (not log.sound)


def _accepted(database: Path) -> int | None:
    """Frames of the log that SQLite accepts; None when it does not open the database at all.

    The connection is read-only, so that closing it leaves the log alone.
    """
    with contextlib.suppress(sqlite3.Error, OSError), contextlib.ExitStack() as stack:
        address = f"{database.resolve().as_uri()}?mode=ro"
        connection = stack.enter_context(contextlib.closing(sqlite3.connect(address, uri=True, isolation_level=None)))
        connection.execute("PRAGMA schema_version").fetchall()
        index = os.open(f"{database}-shm", os.O_RDONLY | os.O_CLOEXEC)
        connection.close()  # before the descriptor: closing that takes the locks of the process on the file along
        stack.callback(os.close, index)
        return int.from_bytes(os.pread(index, _ACCEPTED.stop, 0)[_ACCEPTED], sys.byteorder)
    return None


def _order(magic: int) -> str:
    return ">" if magic & 1 else "<"
