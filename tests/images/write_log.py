"""What a power cut leaves on an emulated disk: what was flushed, and of what was not anything at all.

QEMU notes each write and each flush once it is done (its block driver blklogwrites), in the format of Linux's
dm-log-writes: a sector of the log's own, then a sector for each request with its data behind it.
"""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from images.card.partition import SECTOR

_HEADER = struct.Struct("<4Q")
"""Of a request: its first sector, how many, flags, and how many bytes of text follow (QEMU writes none)."""
_FLUSH = 1
_CHUNK_BYTES = 1 << 20


class Write(NamedTuple):
    """All of a write, or its first sectors."""

    place: int
    """On the disk, bytes."""
    data: int
    """Where in the log, bytes."""
    size: int
    """Bytes."""


class WriteLog:
    """Of a disk with a write cache."""

    def __init__(self, file: Path) -> None:
        self.file = file
        file.touch()

    def blockdev(self, drive: Path) -> str:
        """QEMU's option for a disk in a file (qcow2) whose writes are logged here. What is discarded stays there."""
        disk = f"file.driver=qcow2,file.file.driver=file,file.file.filename={drive},file.cache.no-flush=on"
        log = f"log.driver=file,log.filename={self.file},log.cache.no-flush=on"
        return f"driver=blklogwrites,node-name=card,discard=ignore,{disk},{log}"

    @property
    def size(self) -> int:
        """Bytes until now."""
        return self.file.stat().st_size

    def left(self, size: int, chance: random.Random) -> Sequence[Write]:
        """Of what the log held when it was this long: what was flushed, and of each later write all, some or none."""
        flushed, later = self._until(size)
        kept = chance.random()
        for each in later:
            if chance.random() < kept:
                flushed.append(each)
            elif chance.random() < kept:
                flushed.append(each._replace(size=chance.randrange(each.size // SECTOR) * SECTOR))
        return flushed

    def write(self, writes: Sequence[Write], disk: Path) -> None:
        """Onto what was there before the first of them."""
        with self.file.open("rb", buffering=0) as log, disk.open("r+b", buffering=0) as target:
            for each in writes:
                for done in range(0, each.size, _CHUNK_BYTES):
                    length = min(_CHUNK_BYTES, each.size - done)
                    data = os.pread(log.fileno(), length, each.data + done)
                    if os.pread(target.fileno(), length, each.place + done) != data:  # zeros onto a hole leave it one
                        os.pwrite(target.fileno(), data, each.place + done)

    def _until(self, size: int) -> tuple[list[Write], list[Write]]:
        """Writes before and after the last flush that the first `size` bytes of the log tell of."""
        flushed, later, at = list[Write](), list[Write](), SECTOR
        with self.file.open("rb") as log:
            while at + SECTOR <= size:
                log.seek(at)
                sector, sectors, flags, _ = _HEADER.unpack(log.read(_HEADER.size))
                write = Write(sector * SECTOR, at + SECTOR, sectors * SECTOR)
                at = write.data + write.size
                if flags & _FLUSH:
                    flushed, later = flushed + later, []
                elif write.size and at <= size:
                    later.append(write)
        return flushed, later
