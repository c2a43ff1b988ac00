"""Records of a TLS stream (RFC 8446 section 5.1), a few at a time.

OpenSSL handles everything it is given in one call if it contains no application data: 540 KB of key updates kept it
busy for 0.4 s. The length of a record is not encrypted, so OpenSSL is given only a few.
"""

from __future__ import annotations

from typing import Final

RECORDS_AT_ONCE: Final = 8
"""Records given to OpenSSL at once: one takes 1.2 us, or 25 us for a key update. A server may put 840 session tickets
into one record of 16 KiB, which takes 8.5 ms and cannot be split."""

PIECE_BYTES_MAX: Final = 18 * 1024
"""Largest record of any version (RFC 5246 section 6.2.3). OpenSSL's buffers grow to the size of a write and stay so."""

_HEADER_BYTES: Final = 5
"""Type, version, and two bytes of length."""


class TlsRecords:
    """Received bytes of one stream that OpenSSL was not given."""

    __slots__ = ("_given", "_left", "_unread")

    def __init__(self) -> None:
        self._unread = memoryview(b"")
        self._left = 0
        """Remaining bytes of a record that was partly given to OpenSSL."""
        self._given = 0
        """Bytes of that record that OpenSSL was given."""

    @property
    def held_bytes(self) -> int:
        """Bytes held here, and those of an incomplete record that OpenSSL holds."""
        return len(self._unread) + self._given

    def add(self, data: bytes) -> None:
        """Add received bytes."""
        self._unread = memoryview(bytes(self._unread) + data if self._unread else data)

    def next(self) -> memoryview:
        """Return the next piece, without an incomplete header; empty when there is nothing else."""
        unread, begin, end = self._unread, -self._given, self._left
        for _ in range(RECORDS_AT_ONCE):
            if end >= PIECE_BYTES_MAX or end + _HEADER_BYTES > len(unread):
                break
            begin = end
            end += _HEADER_BYTES + (unread[end + 3] << 8 | unread[end + 4])
        size = min(end, PIECE_BYTES_MAX, len(unread))
        self._left = end - size
        self._given = size - begin if self._left else 0
        rest = unread[size:]
        self._unread = rest if len(rest) >= _HEADER_BYTES else memoryview(bytes(rest))  # a view keeps the whole read
        return unread[:size]

    def __bool__(self) -> bool:
        """Return True when `next` returns bytes."""
        return len(self._unread) >= (1 if self._left else _HEADER_BYTES)

    @property
    def within_record(self) -> bool:
        """True when the next bytes continue a record that was partly given to OpenSSL."""
        return self._left > 0

    def clear(self) -> None:
        """Drop all bytes."""
        self._unread, self._left, self._given = memoryview(b""), 0, 0
