"""The write-ahead log a former process left behind: made durable before anything is built upon it.

SQLite's recovery believes whatever commits it can read, and what it reads is the kernel's cache, not the medium. A
process that was killed between writing a commit and syncing it leaves one that is readable and not durable; a sync that
failed leaves one that the kernel takes for written and never writes again. A power cut after the messages in it were
shown to the world would take them back and give their names to others. So the log is written once more, byte for byte,
and synced. After a clean end there is none.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from edge.broker.store.errors import StoreDamaged
from edge.broker.store.faults import ADVICE
from edge.broker.store.wal_frames import FRAME, HEADER, PAGE_SIZES, lost_commits

_CHUNK_FRAMES: Final = 256
"""Read and written at once: 1 MiB of pages of 4 KiB."""


def make_durable(database: Path) -> int:
    """Write and sync again the log of `database` that a recovery would read; its bytes.

    Raises StoreDamaged when a recovery would leave out commits that were durable, OSError when the medium fails.
    """
    path, size = Path(f"{database}-wal"), 0
    if not path.exists():
        return size
    lost = lost_commits(database)
    if lost:
        raise StoreDamaged(f"the write-ahead log is damaged, at least {lost} commits in it cannot be read: {ADVICE}")
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        header = os.pread(descriptor, HEADER.size, 0)
        if len(header) == HEADER.size and HEADER.unpack(header)[2] in PAGE_SIZES:
            _write(descriptor, header, 0)
            size = _rewrite(descriptor, header)  # with any other header SQLite ignores the log
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return size


def _rewrite(descriptor: int, header: bytes) -> int:
    """The frames up to the first of an older turn of the log; where they end."""
    _, _, page_bytes, _, *salts = HEADER.unpack(header)[:6]
    frame_bytes = FRAME.size + page_bytes
    offset = HEADER.size
    while frames := os.pread(descriptor, _CHUNK_FRAMES * frame_bytes, offset):
        count = 0
        while (count + 1) * frame_bytes <= len(frames):
            _, _, *found = FRAME.unpack_from(frames, count * frame_bytes)[:4]
            if found != salts:
                break
            count += 1
        _write(descriptor, frames[: count * frame_bytes], offset)
        offset += count * frame_bytes
        if count < _CHUNK_FRAMES:
            break
    return offset


def _write(descriptor: int, data: bytes, offset: int) -> None:
    while data:
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written
