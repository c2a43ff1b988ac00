"""Spool files of the examples, read and written from the description in `firmware_examples/README.md` alone."""

from __future__ import annotations

import contextlib
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SLOT_BYTES: Final = 512
_HEADER: Final = struct.Struct("<IIIHH")


@dataclass(frozen=True)
class StoredSlot:
    """A valid slot."""

    number: int
    acknowledged: int
    content: bytes


@dataclass(frozen=True)
class SpoolFile:
    """Content of a spool."""

    capacity: int
    slots: dict[int, StoredSlot]
    """Valid slots, with the number of the reading as key."""
    next: int
    """Number of the next reading."""
    acknowledged: int
    """Watermark: every reading below was acknowledged, as far as the disk has it."""


def read_spool(path: Path) -> SpoolFile:
    """Read a file, or a folder; one that does not exist yet is empty."""
    if path.is_dir():
        return _read_folder(path)
    data = path.read_bytes() if path.exists() else b""
    capacity, slots = len(data) // SLOT_BYTES, {}
    for index in range(capacity):
        slot = data[index * SLOT_BYTES : (index + 1) * SLOT_BYTES]
        checksum, number, acknowledged, length, version = _HEADER.unpack_from(slot)
        end = _HEADER.size + length
        if version == 1 and end <= SLOT_BYTES and zlib.crc32(slot[4:end]) == checksum:
            assert number % capacity == index, "a reading is in the wrong slot"
            slots[number] = StoredSlot(number, acknowledged, slot[_HEADER.size : end])
    watermark = max((slot.acknowledged for slot in slots.values()), default=0)
    return SpoolFile(capacity, slots, max(slots, default=-1) + 1, watermark)


def _read_folder(path: Path) -> SpoolFile:
    """Read the folder of the example in shell, a file for each unacknowledged reading, or of that for boards."""
    if any(path.glob("*.log")):
        return _read_segments(path)
    slots: dict[int, StoredSlot] = {}
    following = int((path / "next").read_text() or 0) if (path / "next").exists() else 0
    for file in (*path.glob(".[0-9]*.new"), *path.glob("[0-9]*.json")):
        number = int(file.stem.lstrip("."))
        if number >= following:
            continue  # after a kill its number is given again; one below `next` only lacks its name
        with contextlib.suppress(FileNotFoundError):  # acknowledged, or named, meanwhile
            slots[number] = StoredSlot(number, 0, file.read_bytes())
    return SpoolFile(0, slots, following, min(slots, default=following))


def _read_segments(path: Path) -> SpoolFile:
    """Read files of the example for boards: readings one behind the other, up to the first that is torn."""
    slots: dict[int, StoredSlot] = {}
    watermark = 0
    for file in sorted(path.glob("*.log")):
        data = b""
        with contextlib.suppress(FileNotFoundError):  # acknowledged meanwhile
            data = file.read_bytes()
        while len(data) >= _HEADER.size:
            checksum, number, acknowledged, length, version = _HEADER.unpack_from(data)
            end = _HEADER.size + length
            if version != 1 or end > len(data) or zlib.crc32(data[4:end]) != checksum:
                break
            slots[number] = StoredSlot(number, acknowledged, data[_HEADER.size : end])
            watermark, data = max(watermark, acknowledged), data[end:]
    following = max(slots, default=-1) + 1
    waiting = {number: slot for number, slot in slots.items() if number >= watermark}
    return SpoolFile(0, waiting, following, watermark)


def write_spool(path: Path, capacity: int, contents: list[bytes], *, first: int = 0, acknowledged: int = 0) -> None:
    """Write a file with these readings."""
    data = bytearray(SLOT_BYTES * capacity)
    for number, content in enumerate(contents, first):
        body = _HEADER.pack(0, number, acknowledged, len(content), 1)[4:] + content
        start = number % capacity * SLOT_BYTES
        data[start : start + SLOT_BYTES] = (struct.pack("<I", zlib.crc32(body)) + body).ljust(SLOT_BYTES, b"\0")
    path.write_bytes(data)


def tear_slot(path: Path, number: int) -> None:
    """Damage the content of a reading, as a power cut in the middle of its write does."""
    data = bytearray(path.read_bytes())
    data[number % (len(data) // SLOT_BYTES) * SLOT_BYTES + _HEADER.size] ^= 0xFF
    path.write_bytes(data)
