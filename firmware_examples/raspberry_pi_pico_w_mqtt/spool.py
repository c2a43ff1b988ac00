"""Readings in flash: a copy of the ring of unacknowledged readings that survives a reset.

Files of 16 readings, which are only appended to, as flash file systems rewrite a file from a changed place to its end.
Each reading has the header of `firmware_examples/README.md`: checksum, number, watermark, length, format.
"""

import binascii
import os
import struct

SEGMENT = 16  # readings in a file
HEADER = "<IIIHH"
HEADER_BYTES = 16
FORMAT = 1
CONTENT_BYTES_MAX = 496


class FlashSpool:
    """Raises OSError when the flash is full or damaged."""

    def __init__(self, folder):
        self._folder = folder
        self._file = None
        self._segments = []  # first numbers of the files, oldest first
        self.next = 0  # number of the next reading
        self.acknowledged = 0  # every reading below this number was acknowledged or dropped
        self.readings = []  # (number, content) of unacknowledged readings, as they were at the start
        try:
            os.mkdir(folder)
        except OSError:
            pass  # it is there
        self._load()

    def add(self, content, acknowledged):
        """Store a reading; it is in flash when this returns. `acknowledged`: the watermark."""
        if len(content) > CONTENT_BYTES_MAX:
            raise ValueError("the reading is too long")
        if self._file is None or self.next - self._segments[-1] >= SEGMENT:
            self._begin_segment()
        body = struct.pack(HEADER, 0, self.next, acknowledged, len(content), FORMAT)[4:] + content
        self._file.write(struct.pack("<I", binascii.crc32(body) & 0xFFFFFFFF) + body)
        self._file.flush()
        if hasattr(os, "fsync"):  # a PC; on a board flush writes to flash
            os.fsync(self._file.fileno())
        self.next += 1
        self.acknowledged = acknowledged
        while len(self._segments) > 1 and self._segments[1] <= acknowledged:  # the newest stays: it has the number
            os.remove(self._path(self._segments.pop(0)))

    def close(self):
        """Close the file; readings are in flash already."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _begin_segment(self):
        self.close()
        self._segments.append(self.next)
        self._file = open(self._path(self.next), "wb")

    def _path(self, first):
        return f"{self._folder}/{first:010d}.log"

    def _load(self):
        names = sorted(name for name in os.listdir(self._folder) if name.endswith(".log"))
        for name in names:
            self._segments.append(int(name[:-4]))
            with open(self._folder + "/" + name, "rb") as file:
                self._load_segment(file.read())
        if self._segments:
            self.next = max(self.next, self._segments[-1])
        # A file that was torn is not appended to; its next reading begins a new one, perhaps of the same name.
        self.readings = [each for each in self.readings if each[0] >= self.acknowledged]
        if self._segments and self._segments[-1] == self.next:
            self._segments.pop()

    def _load_segment(self, data):
        at = 0
        while at + HEADER_BYTES <= len(data):
            checksum, number, acknowledged, length, version = struct.unpack(HEADER, data[at : at + HEADER_BYTES])
            end = at + HEADER_BYTES + length
            if version != FORMAT or end > len(data) or binascii.crc32(data[at + 4 : end]) & 0xFFFFFFFF != checksum:
                return  # torn: this reading was never stored
            self.next = number + 1
            self.acknowledged = max(self.acknowledged, acknowledged)
            self.readings.append((number, data[at + HEADER_BYTES : end]))
            at = end
