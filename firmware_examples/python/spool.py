"""Ring of unacknowledged readings in a file: it survives a reset, keeps the order, and never grows.

The format is the same in all examples (`firmware_examples/README.md`): slots of 512 bytes, reading N in slot N modulo
the number of slots, little endian:

    0  u32  CRC-32 of the bytes from 4 to the end of the content
    4  u32  number of the reading
    8  u32  every reading below this number was acknowledged when this one was stored
    12 u16  length of the content
    14 u16  format, 1
    16      content

A slot is written once for each reading, and nothing is written for an acknowledgement. So after a reset some readings
are sent again that were acknowledged already; their numbers make them recognizable.
"""

from __future__ import annotations

import os
import struct
import threading
import zlib

SLOT_BYTES = 512
HEADER = struct.Struct("<IIIHH")
FORMAT = 1
CONTENT_BYTES_MAX = SLOT_BYTES - HEADER.size


class SpoolError(Exception):
    """The file cannot be used; the text has the next step."""


class ReadingSpool:
    """Unacknowledged readings, oldest first. Safe to use from several threads."""

    def __init__(self, path: str, capacity: int) -> None:
        """Open or create the file. `capacity` (readings) counts only when it is created. Raises SpoolError."""
        self._lock = threading.Lock()
        self._acked_early: set[int] = set()
        """Acknowledged readings behind one that is not."""
        try:
            if not os.path.exists(path):
                _create(path, capacity)
            self._file = os.open(path, os.O_RDWR)
            size = os.fstat(self._file).st_size
        except OSError as error:
            raise SpoolError(f"cannot open the spool {path}: {error.strerror}; check WAYPOST_SPOOL") from error
        if size == 0 or size % SLOT_BYTES:
            raise SpoolError(f"{path} is not a spool; move it away, or set WAYPOST_SPOOL to another file")
        self.capacity = size // SLOT_BYTES
        self.dropped = 0
        """Readings that were overwritten before they were acknowledged, since the start."""
        self.next = 0
        """Number of the next reading."""
        self.acknowledged = 0
        """Every reading below this number was acknowledged."""
        for slot in range(self.capacity):
            if found := self._read(slot):
                number, acknowledged, _ = found
                self.next = max(self.next, number + 1)
                self.acknowledged = max(self.acknowledged, acknowledged)
        self.acknowledged = max(self.acknowledged, self.next - self.capacity)
        self._first = self.next
        """First reading of this start."""
        self.delivered = threading.Event()
        """Set once a reading of this start was acknowledged: the sign of health of a new version."""

    def __len__(self) -> int:
        """Return the number of unacknowledged readings."""
        return self.next - self.acknowledged

    def add(self, content: bytes) -> int:
        """Store a reading, on disk when this returns; return its number. When full, drop the oldest.

        Raises SpoolError if it cannot be stored, and ValueError if it is too long.
        """
        if len(content) > CONTENT_BYTES_MAX:
            raise ValueError(f"a reading has {len(content)} bytes, and at most {CONTENT_BYTES_MAX} fit")
        with self._lock:
            if len(self) == self.capacity:
                self._acked_early.discard(self.acknowledged)
                self.acknowledged += 1
                self.dropped += 1
                self._advance()
            number = self.next
            body = HEADER.pack(0, number, self.acknowledged, len(content), FORMAT)[4:] + content
            try:
                os.pwrite(self._file, struct.pack("<I", zlib.crc32(body)) + body, number % self.capacity * SLOT_BYTES)
                os.fdatasync(self._file)
            except OSError as error:
                raise SpoolError(f"cannot store reading {number}: {error.strerror}; check the disk") from error
            self.next += 1
            return number

    def get(self, number: int) -> bytes | None:
        """Return the content of a reading; None if it was acknowledged or dropped, or is damaged."""
        with self._lock:
            if not self.acknowledged <= number < self.next or number in self._acked_early:
                return None
            found = self._read(number % self.capacity)
            return found[2] if found and found[0] == number else None

    def acknowledge(self, number: int) -> None:
        """Remove a reading."""
        with self._lock:
            if self.acknowledged <= number < self.next:
                self._acked_early.add(number)
                self._advance()
                if number >= self._first:
                    self.delivered.set()

    def _advance(self) -> None:
        while self.acknowledged in self._acked_early:
            self._acked_early.remove(self.acknowledged)
            self.acknowledged += 1

    def _read(self, slot: int) -> tuple[int, int, bytes] | None:
        """Return number, watermark and content of a slot; None if it is empty or torn."""
        data = os.pread(self._file, SLOT_BYTES, slot * SLOT_BYTES)
        checksum, number, acknowledged, length, version = HEADER.unpack_from(data)
        end = HEADER.size + length
        if version != FORMAT or end > len(data) or number % self.capacity != slot:
            return None
        if zlib.crc32(data[4:end]) != checksum:
            return None
        return number, acknowledged, data[HEADER.size : end]


def _create(path: str, capacity: int) -> None:
    """Create the file with its whole size, so that a disk without space is noticed now."""
    if capacity < 1:
        raise SpoolError("WAYPOST_SPOOL_READINGS has to be at least 1")
    made = path + ".new"
    with open(made, "wb") as file:
        file.write(bytes(SLOT_BYTES * capacity))
        file.flush()
        os.fsync(file.fileno())
    os.replace(made, path)
    folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
