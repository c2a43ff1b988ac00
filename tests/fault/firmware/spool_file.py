"""Spool files of the examples, read and written from the description in `firmware_examples/README.md` alone."""

from __future__ import annotations

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
    """Content of a spool file."""

    capacity: int
    slots: dict[int, StoredSlot]
    """By the number of the reading."""

    @property
    def next(self) -> int:
        """Return the number of the next reading."""
        return max(self.slots, default=-1) + 1

    @property
    def acknowledged(self) -> int:
        """Return the watermark: every reading below was acknowledged, as far as the file has it."""
        return max((slot.acknowledged for slot in self.slots.values()), default=0)


def read_spool(path: Path) -> SpoolFile:
    """Read a file; one that does not exist yet is empty."""
    data = path.read_bytes() if path.exists() else b""
    capacity, slots = len(data) // SLOT_BYTES, {}
    for index in range(capacity):
        slot = data[index * SLOT_BYTES : (index + 1) * SLOT_BYTES]
        checksum, number, acknowledged, length, version = _HEADER.unpack_from(slot)
        end = _HEADER.size + length
        if version == 1 and end <= SLOT_BYTES and zlib.crc32(slot[4:end]) == checksum:
            assert number % capacity == index, "a reading is in the wrong slot"
            slots[number] = StoredSlot(number, acknowledged, slot[_HEADER.size : end])
    return SpoolFile(capacity, slots)


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
