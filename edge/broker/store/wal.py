"""Makes the write-ahead log of a former process durable before SQLite recovers from it.

The recovery of SQLite accepts all commits that it can read, and it reads the kernel's cache, not the medium. A process
that is killed between the write and the sync of a commit leaves a commit that is readable but not durable. After a
failed sync the kernel treats the pages as written, so a later sync alone does not write them. If such messages were
delivered, a power cut would remove them, and their names would be used again. So the file is rewritten byte for byte
and synced. A store that was closed has no log.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from edge.broker.store.errors import StoreDamaged
from edge.broker.store.faults import ADVICE
from edge.broker.store.limits import MIB
from edge.broker.store.wal_frames import lost_commits

_CHUNK_BYTES: Final = MIB
"""Bytes read and written at once."""


def make_durable(database: Path) -> int:
    """Write and sync the log of `database` again. Return its size in bytes.

    Raises StoreDamaged when a recovery would lose durable commits, and OSError when the medium fails.
    """
    path, size = Path(f"{database}-wal"), 0
    if not path.exists():
        return size
    lost = lost_commits(database)
    if lost:
        raise StoreDamaged(f"the write-ahead log is damaged, at least {lost} commits in it cannot be read: {ADVICE}")
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        while chunk := os.pread(descriptor, _CHUNK_BYTES, size):
            size += _write(descriptor, chunk, size)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return size


def _write(descriptor: int, data: bytes, offset: int) -> int:
    left = data
    while left:
        written = os.pwrite(descriptor, left, offset)
        left, offset = left[written:], offset + written
    return len(data)
