"""A damaged write-ahead log, made such that SQLite accepts every commit in it that was durable.

SQLite reads a log up to its first damaged frame. What comes behind is as good as what comes before: each commit that
another one follows was synced. So the checksums are computed anew, over the frames as they are; a frame in which one
bit is wrong is put right first, where its checksum says which.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from edge.broker.store.wal_frames import HEADER, MAGICS, SUMMED_BYTES, Frame, Log, Sums, checksum, checksum_of

_VERSION: Final = 3_007_000


def reseal(path: Path) -> int:
    """Rewrite the log at `path`, a copy; how many frames of it were damaged. Raises OSError."""
    log = Log.of(path)
    if log is None:
        return 0
    frames = list(log.frames())
    frames = frames[: _durable(log, frames)]
    target = path.with_name(f"{path.name}-resealed")
    header, sums = _header(log)
    before, damaged = log.sums, int(not log.sound)
    with target.open("wb") as out:
        out.write(header)
        for number, found in enumerate(frames):
            frame = found
            expected = checksum_of(log.order, frame, before)
            if expected != frame.sums:
                damaged += 1
                following = frames[number + 1] if number + 1 < len(frames) else None
                frame = _corrected(log.order, frame, before, expected, following)
            before = frame.sums
            sums = checksum_of(log.order, frame, sums)
            out.write(frame.head[:SUMMED_BYTES] + log.salts + _packed(sums) + frame.page)
    os.replace(target, path)
    return damaged


def _durable(log: Log, frames: Sequence[Frame]) -> int:
    """How many frames belong to commits that were synced, and to a last one that is whole."""
    end = max(log.synced_commits(0), default=0)
    before = frames[end - 1].sums if end else log.sums
    for number, frame in enumerate(frames[end:], end + 1):
        if frame.salts != log.salts or checksum_of(log.order, frame, before) != frame.sums:
            break
        before = frame.sums
        if frame.ends_commit:
            end = number
    return end


def _corrected(order: str, frame: Frame, before: Sums, expected: Sums, following: Frame | None) -> Frame:
    """The frame with the bit put right that makes its checksum fit; as it is when there is no such bit, or several, or
    when the checksum itself is what was wrong. `expected`: its checksum as it is."""
    if following is not None and checksum_of(order, following, expected) == following.sums:
        return frame._replace(head=frame.head[:-8] + _packed(expected))
    content = bytearray(frame.head[:SUMMED_BYTES] + frame.page)
    fitting: list[Frame] = []
    for bit in range(len(content) * 8):
        content[bit // 8] ^= 1 << bit % 8
        if checksum(order, content, before) == frame.sums:
            head = bytes(content[:SUMMED_BYTES]) + frame.head[SUMMED_BYTES:]
            fitting.append(Frame(head, bytes(content[SUMMED_BYTES:])))
        content[bit // 8] ^= 1 << bit % 8
    return fitting[0] if len(fitting) == 1 else frame


def _header(log: Log) -> tuple[bytes, Sums]:
    """That of a new log with the same salts, and what its first frame goes on from."""
    magic = MAGICS[log.order == ">"]
    salts = int.from_bytes(log.salts[:4]), int.from_bytes(log.salts[4:])
    head = HEADER.pack(magic, _VERSION, log.page_bytes, 0, *salts, 0, 0)[:-8]
    sums = checksum(log.order, head, (0, 0))
    return head + _packed(sums), sums


def _packed(sums: Sums) -> bytes:
    return sums[0].to_bytes(4) + sums[1].to_bytes(4)
