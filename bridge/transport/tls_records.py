"""The records of a TLS stream (RFC 8446 section 5.1), so many at a time.

OpenSSL takes all it is given in one call where nothing of it is for us: 540 KB of requests for new keys kept it busy
for 0.4 s. The length of a record is in the clear, so it is given a few.
"""

from __future__ import annotations

from typing import Final

RECORDS_AT_ONCE: Final = 8
"""One takes 1.2 us, or 25 where it asks for new keys: nobody waits longer than for so many. A server may put 840
tickets for later sessions into one of 16 KiB, which takes 8.5 ms and cannot be taken in parts."""

PIECE_BYTES_MAX: Final = 18 * 1024
"""A whole record of any version (RFC 5246 section 6.2.3) is no longer. OpenSSL's buffers grow to what they are given at
once, and stay so."""

_HEADER_BYTES: Final = 5
"""Type, version, and two of length."""


class TlsRecords:
    """What came of one stream and was not given on."""

    __slots__ = ("_given", "_left", "_unread")

    def __init__(self) -> None:
        self._unread = memoryview(b"")
        self._left = 0
        """Bytes of the record of which some were given on."""
        self._given = 0
        """Bytes of it that were."""

    @property
    def held_bytes(self) -> int:
        """What is here, and what was given on of a record that is not whole: OpenSSL keeps that."""
        return len(self._unread) + self._given

    def add(self, data: bytes) -> None:
        """More has come."""
        self._unread = memoryview(bytes(self._unread) + data if self._unread else data)

    def next(self) -> memoryview:
        """Some of it, without the beginning of a header; empty where there is no more than that."""
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
        """`next` has something."""
        return len(self._unread) >= (1 if self._left else _HEADER_BYTES)

    @property
    def within_record(self) -> bool:
        """True where the beginning of the record that comes next was given on before."""
        return self._left > 0

    def clear(self) -> None:
        """Forget it all."""
        self._unread, self._left, self._given = memoryview(b""), 0, 0
