"""Content of an emulated disk after a power cut: all flushed writes, and any part of the others.

QEMU logs each completed write and flush (its block driver blklogwrites), in the format of Linux's dm-log-writes: a
sector for the log itself, then a sector for each request followed by its data.
"""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from images.card.partition import SECTOR

_HEADER = struct.Struct("<4Q")
"""Header of a request: its first sector, sectors, flags, and bytes of the following text (QEMU writes none)."""
_FLUSH = 1
_CHUNK_BYTES = 1 << 20


class Write(NamedTuple):
    """All of a write, or its first sectors."""

    place: int
    """Position on the disk in bytes."""
    data: int
    """Position in the log in bytes."""
    size: int
    """Bytes."""


class WriteLog:
    """Log of a disk with a write cache."""

    def __init__(self, file: Path) -> None:
        self.file = file
        file.touch()

    def blockdev(self, drive: Path) -> str:
        """Return QEMU's option for a disk in a file (qcow2) that logs its writes here. Discarded data stays
        in the log.
        """
        disk = f"file.driver=qcow2,file.file.driver=file,file.file.filename={drive},file.cache.no-flush=on"
        log = f"log.driver=file,log.filename={self.file},log.cache.no-flush=on"
        return f"driver=blklogwrites,node-name=card,discard=ignore,{disk},{log}"

    @property
    def size(self) -> int:
        """Return the current size of the log in bytes."""
        return self.file.stat().st_size

    def left(self, size: int, chance: random.Random) -> Sequence[Write]:
        """Return the writes that survive a cut at this size of the log: all flushed ones, and of each later one all, a
        part or nothing.
        """
        flushed, later = self._until(size)
        kept = chance.random()
        for each in later:
            if chance.random() < kept:
                flushed.append(each)
            elif chance.random() < kept:
                flushed.append(each._replace(size=chance.randrange(each.size // SECTOR) * SECTOR))
        return flushed

    def ends(self) -> Sequence[int]:
        """Return the size of the log after each of its requests."""
        return [end for end, _, _ in self.requests(self.size)]

    def requests(self, size: int) -> Iterator[tuple[int, Write, bool]]:
        """Yield each request within the first `size` bytes of the log: its end in the log, its write, and whether it
        is a flush.
        """
        at = SECTOR
        with self.file.open("rb") as log:
            while at + SECTOR <= size:
                log.seek(at)
                sector, sectors, flags, _ = _HEADER.unpack(log.read(_HEADER.size))
                write = Write(sector * SECTOR, at + SECTOR, sectors * SECTOR)
                at = write.data + write.size
                yield at, write, bool(flags & _FLUSH)

    def in_order(self) -> Sequence[Write]:
        """Return all writes in their order, flushed or not: those of a program that waits for each one."""
        flushed, later = self._until(self.size)
        return [*flushed, *later]

    def write(self, writes: Sequence[Write], disk: Path) -> None:
        """Apply the writes to a disk in its state before the first of them."""
        with self.file.open("rb", buffering=0) as log, disk.open("r+b", buffering=0) as target:
            for each in writes:
                for done in range(0, each.size, _CHUNK_BYTES):
                    length = min(_CHUNK_BYTES, each.size - done)
                    data = os.pread(log.fileno(), length, each.data + done)
                    if os.pread(target.fileno(), length, each.place + done) != data:  # zeros in a hole keep the hole
                        os.pwrite(target.fileno(), data, each.place + done)

    def _until(self, size: int) -> tuple[list[Write], list[Write]]:
        """Return the writes before and after the last flush within the first `size` bytes of the log."""
        flushed, later = list[Write](), list[Write]()
        for end, write, is_flush in self.requests(size):
            if is_flush:
                flushed, later = flushed + later, []
            elif write.size and end <= size:
                later.append(write)
        return flushed, later
